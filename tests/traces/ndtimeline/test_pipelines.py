"""Pipelines of any depth, timed here from their own rules: they are read as what they are.

Each worker runs one forward, one backward (1F1B: Narayanan et al., arXiv 2104.04473, section 2.2).
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.ndtimeline_files import COLUMNS, rows, write
from helpers.passes import timeline
from helpers.strategies import switch_network
from helpers.tries import tries
from simulator.support.errors import TraceError
from simulator.support.quantities import CENTURY
from traces.load import load
from traces.ndtimeline import is_ndtimeline

GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"
EMBEDDING, CLIP = "embedding-grads-all-reduce", "optimizer-clip-main-grad"
NETWORK = switch_network(8, bandwidth=1e9, latency=1e-6)


@dataclass
class Pipeline:
    """A step of ``replicas`` pipelines: when each operation begins and ends (s)."""

    replicas: int
    stages: int
    batches: int
    seed: int
    slower: dict[str, float] = field(default_factory=dict)
    _ends: dict[tuple, float] = field(default_factory=dict)

    @cached_property
    def _random(self):
        return np.random.default_rng(self.seed)

    @cached_property
    def took(self):
        """Seconds of each computation, and of each transfer, by what they are of."""
        stages = [(r, s) for r in range(self.replicas) for s in range(self.stages)]
        drawn = {
            (kind, r, s, i): self._random.uniform(*span)
            for r, s in stages
            for i in range(self.batches)
            for kind, span in (
                *(("forward", (1.0, 2.0)), ("backward", (2.0, 4.0))),
                *((f"{way}-message", (0.02, 0.3)) for way in ("forward", "backward")),
            )
        }
        for kind in (GATHER, SCATTER, EMBEDDING, CLIP):
            drawn |= {(kind, s): self._random.uniform(0.1, 0.5) for s in range(self.stages)}
        return {key: each * self.slower.get(key[0], 1.0) for key, each in drawn.items()}

    def order(self, s):
        """Computations of a stage: forwards until all later ones have one, then by turns."""
        ahead = min(self.batches, self.stages - 1 - s)
        order = [("forward", i) for i in range(ahead)]
        for i in range(self.batches):
            order += [("forward", ahead + i)] * (ahead + i < self.batches) + [("backward", i)]
        return order

    def end(self, kind, r, s, i):
        """When a computation ends."""
        key = kind, r, s, i
        if key not in self._ends:
            self._ends[key] = self.start(*key) + self.took[key]
        return self._ends[key]

    def start(self, kind, r, s, i):
        at = self.order(s).index((kind, i))
        before = [self.end(self.order(s)[at - 1][0], r, s, self.order(s)[at - 1][1])] if at else []
        if self.peer(kind, s, -1) is not None:
            before.append(self.moved(kind, r, self.peer(kind, s, -1), i))
        if not at:
            before.append(self.joined(GATHER, s, 0.0))
        return max(before, default=0.0)

    def peer(self, kind, s, way):
        """The stage that a stage sends to (1) or receives from (-1); None beyond the ends."""
        at = s + (way if kind == "forward" else -way)
        return at if 0 <= at < self.stages else None

    def sends(self, kind, r, s, i):
        """When a stage begins to send: after its computation and its message before."""
        before = [self.moved(kind, r, s, i - 1)] if i else []
        return max([self.end(kind, r, s, i), *before])

    def receives(self, kind, r, s, i):
        """When a stage posts a receive: after its message and its computation before."""
        if i:
            sender = self.peer(kind, s, -1)
            return max(self.moved(kind, r, sender, i - 1), self.end(kind, r, s, i - 1))
        order = self.order(s)
        first = order.index((kind, 0))
        if kind == "forward" or first < 2:
            return 0.0
        before, batch = order[first - 2]
        return self.end(before, r, s, batch)

    def moved(self, kind, r, s, i):
        """When the message that a stage sends has arrived."""
        key = f"{kind}-message", r, s, i
        if key not in self._ends:
            receives = self.receives(kind, r, self.peer(kind, s, 1), i)
            self._ends[key] = max(self.sends(kind, r, s, i), receives) + self.took[key]
        return self._ends[key]

    def joined(self, kind, s, last):
        return last + self.took[kind, s]

    def chain(self):
        """Begin and end of what follows the last computation, by operation and worker."""
        workers = [(r, s) for r in range(self.replicas) for s in range(self.stages)]
        done = {(r, s): self.end(*self.last(s, r)) for r, s in workers}
        spans = {}
        groups = {
            EMBEDDING: lambda r, s: r if s in (0, self.stages - 1) else None,
            SCATTER: lambda r, s: s,
            CLIP: lambda r, s: 0,
        }
        for kind, group in groups.items():
            begun = dict(done)
            for worker in workers:
                members = [each for each in workers if group(*each) == group(*worker)]
                if group(*worker) is None:
                    continue
                stage = worker[1] if kind == SCATTER else 0
                over = self.joined(kind, stage, max(begun[member] for member in members))
                spans[kind, *worker], done[worker] = (begun[worker], over), over
        return spans | {("optimizer", *worker): (over, over + 1.0) for worker, over in done.items()}

    def last(self, s, r):
        kind, i = self.order(s)[-1]
        return kind, r, s, i

    def rows(self):
        """The table of NDTimeline."""
        table = []

        def add(kind, r, s, i, span):
            rank, chunk = 2 * (r * self.stages + s), 0 if kind.endswith("compute") else -1
            table.append((r, s, rank, 5, kind, span[0], span[1] - span[0], i, chunk, 0, 0))

        for r in range(self.replicas):
            for s in range(self.stages):
                add(GATHER, r, s, 0, (0.0, self.joined(GATHER, s, 0.0)))
                for kind, i in self.order(s):
                    here = kind, r, s, i
                    add(f"{kind}-compute", r, s, i, (self.start(*here), self.end(*here)))
                    if self.peer(kind, s, 1) is not None:
                        add(f"{kind}-send", r, s, i, (self.sends(*here), self.moved(*here)))
                    if (sender := self.peer(kind, s, -1)) is not None:
                        over = self.moved(kind, r, sender, i)
                        add(f"{kind}-recv", r, s, i, (self.receives(*here), over))
        for (kind, r, s), span in self.chain().items():
            add(kind, r, s, 0, span)
        return table

    @property
    def step(self):
        return max(end for _, end in self.chain().values())


def step_time(workload):
    return float(timeline(workload, NETWORK, engine="analytic").end.max())


def scaled(workload, slower):
    """The step as it was read, with computations and transfers of some kinds slower."""
    duration, transfer = workload.duration.copy(), workload.calls.transfer.copy()
    names = np.array(workload.names)[workload.name]
    for kind, factor in slower.items():
        duration[names == f"{kind}-compute"] *= factor
        ops = names == kind.replace("message", "send")
        for call in set(workload.call[ops & (workload.call >= 0)].tolist()):
            transfer[call] *= factor
    return replace(workload, duration=duration, calls=replace(workload.calls, transfer=transfer))


@tries(15, least=6)
@given(
    replicas=st.integers(1, 2),
    stages=st.integers(2, 4),
    batches=st.integers(1, 5),
    seed=st.integers(0, 10**6),
)
def test_a_pipeline_is_read_with_its_order_and_answers_what_slower_parts_do(
    replicas, stages, batches, seed, tmp_path_factory
):
    shape = replicas, stages, batches, seed
    pipeline = Pipeline(*shape)
    file = write(tmp_path_factory.mktemp("pipeline") / "t", pipeline.rows())
    workload = load(file).workload
    assert step_time(workload) == pytest.approx(pipeline.step)
    for slower in ({"forward": 2.0}, {"backward": 3.0}, {"forward-message": 9.0},
                   {"backward-message": 9.0}, {GATHER: 4.0}, {CLIP: 4.0}, {EMBEDDING: 4.0},
                   {SCATTER: 4.0}):  # fmt: skip
        expected = Pipeline(*shape, slower).step
        assert step_time(scaled(workload, slower)) == pytest.approx(expected), slower
    pairs = replicas * (stages - 1) * batches
    groups = [(workload.groups[g].label, workload.groups[g].ranks) for g in workload.calls.group]
    assert Counter(label for label, _ in groups) == Counter(
        forward=pairs, backward=pairs, data=2 * stages, embedding=replicas, all=1
    )
    ranks = [[2 * (r * stages + s) for s in range(stages)] for r in range(replicas)]
    assert {members for label, members in groups if label == "embedding"} == {
        (row[0], row[-1]) for row in ranks
    }
    assert {members for label, members in groups if label == "data"} == set(
        zip(*ranks, strict=True)
    )


def test_messages_beyond_the_ends_are_left_out_and_counted(tmp_path):
    pipeline = Pipeline(1, 2, 2, 1)
    beyond = [
        (0, 1, 2, 5, kind, 0.0, 0.5, i, -1, 0, 0)
        for kind in ("forward-send", "backward-recv")
        for i in range(2)
    ]
    loaded = load(write(tmp_path / "t", pipeline.rows() + beyond))
    assert step_time(loaded.workload) == pytest.approx(pipeline.step)
    assert "4 messages beyond the ends of the pipeline" in loaded.coverage.notes
    plain = load(write(tmp_path / "u", pipeline.rows()))
    assert not any("beyond the ends" in note for note in plain.coverage.notes)


def with_cell(column, value, number=4):
    at = COLUMNS.index(column)
    return [
        (*row[:at], value, *row[at + 1 :]) if n == number else row for n, row in enumerate(rows())
    ]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *((name, 2**24) for name in ("dp_rank", "stage", "rank", "mc")),
        *((name, 2**40) for name in ("step", "seq_id")),
        ("start_ts", 1.01 * CENTURY), ("duration", -1e-9),
    ],
)  # fmt: skip
def test_numbers_beyond_what_a_job_has_are_refused_with_row_and_column(tmp_path, column, value):
    with pytest.raises(TraceError, match=rf"row 4: {column}: "):
        load(write(tmp_path / "t", with_cell(column, value)))


def test_a_stage_that_no_row_is_of_is_named(tmp_path):
    stages = [(row[0], 5 * row[1], *row[2:]) for row in rows()]
    with pytest.raises(TraceError, match="dp_rank 0 has no stage 1"):
        load(write(tmp_path / "t", stages))


def test_computations_may_overlap_by_what_clocks_are_off_but_no_more(tmp_path):
    late = [(*row[:5], row[5] - (row[4] == "backward-compute") * 9e-5, *row[6:]) for row in rows()]
    assert load(write(tmp_path / "t", late)).coverage.step == "3"
    late = [(*row[:5], row[5] - (row[4] == "backward-compute") * 2e-4, *row[6:]) for row in rows()]
    with pytest.raises(TraceError, match="a worker computes in order"):
        load(write(tmp_path / "t", late))


def test_a_table_needs_every_column_and_may_have_more(tmp_path):
    file = write(tmp_path / "t", rows())
    assert is_ndtimeline(file)
    exact = tmp_path / "exact"
    pq.write_table(pq.read_table(file).select(COLUMNS[:9]), exact)
    assert is_ndtimeline(exact)
    for name in COLUMNS[:9]:
        lacking = tmp_path / "lacking"
        pq.write_table(pq.read_table(file).drop_columns([name]), lacking)
        assert not is_ndtimeline(lacking)


def test_the_median_step_is_the_lower_of_two_in_the_middle(tmp_path):
    table = []
    for step, times in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 1.5)):
        table += [
            (*row[:3], step, row[4], times * row[5], times * row[6], *row[7:]) for row in rows()
        ]
    file = write(tmp_path / "t", table)
    loaded = load(file)
    assert (loaded.coverage.step, loaded.coverage.steps) == ("4", (1, 2, 3, 4))
    assert loaded.measured_step == pytest.approx(1.5 * 17.0)
    assert load(file, "1").measured_step == pytest.approx(3 * 17.0)
