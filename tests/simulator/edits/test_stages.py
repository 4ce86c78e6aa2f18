"""A pipeline on another number of stages: held to the same model, written for that number.

The model is written op by op for any number of stages: what is divided from one is, kernel by
kernel and to the last microsecond, what is written for the other.
"""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import plan, switch_network
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.edits.jobs import moved
from simulator.edits.passes import Pass, Pipeline, Segment, passes_of_ranks, pipeline_of
from simulator.edits.repeats import programs
from simulator.edits.stages import restaged
from simulator.engine.simulate import simulate
from simulator.support.errors import WorkloadError
from simulator.workload import What


def in_turn(stage, stages, batches):
    """1F1B: as many forward passes ahead as there are stages behind."""
    ahead = min(batches, stages - stage - 1)
    order = [Pass(True, batch) for batch in range(ahead)]
    for batch in range(batches):
        order += [Pass(True, batch + ahead)] * (batch + ahead < batches) + [Pass(False, batch)]
    return order


def all_forward_first(_stage, _stages, batches):
    return [Pass(forward, batch) for forward in (True, False) for batch in range(batches)]


ORDERS = {"1f1b": in_turn, "gpipe": all_forward_first}


@dataclass
class Model:
    """What is drawn: layers of unlike durations on two columns of ranks, times in us."""

    seed: int
    layers: int = 12
    columns: int = 2
    order: str = ""
    early: bool = False
    awaited: bool = False
    scattered: bool = False
    batches: int = 0
    is_host: bool = False
    reduces: bool = False
    has_ends: bool = False
    ends_update: bool = False
    lag: float = 0.0
    lasting: dict = field(default_factory=dict)

    def __post_init__(self):
        chance = random.Random(self.seed)
        self.order = self.order or chance.choice(sorted(ORDERS))
        self.early, self.awaited = chance.random() < 0.5, chance.random() < 0.5
        self.scattered = chance.random() < 0.5
        self.reduces = not self.is_host and chance.random() < 0.5
        self.has_ends = chance.random() < 0.5
        self.awaited |= self.is_host
        self.batches = self.batches or chance.randint(5, 7)
        for layer in range(self.layers):
            forward = 100 if self.is_host else chance.randint(95, 105)
            self.lasting[True, layer] = forward
            self.lasting[False, layer] = 2 * forward


class Written:
    """The model's step on so many stages, op by op."""

    def __init__(self, model, stages):
        self.model, self.stages = model, stages
        self.ranks = stages * model.columns
        self.builder = WorkloadBuilder(job_ranks=self.ranks)
        self.calls = {}
        for rank in range(self.ranks):
            self.rank = rank
            self.stage, self.column = next(
                (stage, column)
                for stage in range(stages)
                for column in range(model.columns)
                if self.at(stage, column) == rank
            )
            self.last, self.joined, self.pending, self.reduced = {}, Counter(), (), []
            self.write()
        built = self.builder.build()
        self.workload = replace(built, module=built.name, modules=built.names)

    def at(self, stage, column):
        """Return a rank: stages of a column are neighbours, or the columns of a stage."""
        if self.model.scattered:
            return column * self.stages + stage
        return stage * self.model.columns + column

    def op(self, what, lane, name, us, call=-1):
        op = self.builder.op(
            what,
            rank=self.rank,
            lane=lane,
            name=name,
            duration=1e-6 * us,
            call=call,
            work=(2.0 * us, 3.0 * us),
        )
        if lane in self.last:
            self.builder.edge(self.last[lane], op)
        self.last[lane] = op
        return op

    def host(self, us, name="launch"):
        op = self.op(What.HOST, f"thread {self.rank}", name, us)
        for before in self.pending:
            self.builder.edge(before, op)
        self.pending = ()
        return op

    def launch(self, what, lane, name, us, waits=(), call=-1):
        host = self.host(0.0)
        op = self.op(what, lane, name, us, call)
        self.builder.edge(host, op, lag=self.model.lag)
        for before in waits:
            self.builder.edge(before, op)
        return op

    def collective(self, kind, ranks, size, lane, what=What.COLLECTIVE, waits=()):
        label = "stages" if kind == "send_receive" else lane
        group = self.builder.group(tuple(ranks), label)
        key = group, self.joined[group]
        self.joined[group] += 1
        if key not in self.calls:
            self.calls[key] = self.builder.call(CallRow(kind, group, key[1], size))
        return self.launch(what, lane, kind, 0.0, waits, self.calls[key])

    def message(self, way, *, sends):
        """To or from the stage that a pass comes from or leads to."""
        step = 1 if way == sends else -1
        if not 0 <= self.stage + step < self.stages:
            return None
        ends = (self.rank, self.at(self.stage + step, self.column))
        ends = ends if sends else ends[::-1]
        lane = f"{'to' if sends else 'from'} {step}"
        waits = [self.last["stream 7"]] if sends and not self.model.is_host else ()
        what = What.SEND if sends else What.RECEIVE
        return self.collective("send_receive", ends, 1e5, lane, what, waits)

    def write(self):
        model = self.model
        if model.has_ends and self.stage == 0:
            self.kernel("tables", 200)
        self.kernel("begin", 400)
        if model.has_ends and self.stage == self.stages - 1:
            self.kernel("labels", 300)
        passes = ORDERS[model.order](self.stage, self.stages, model.batches)
        posted, arrived = 0, defaultdict(list)
        for number, way in enumerate(passes):
            for ahead in passes[posted : number + 1 + model.early]:
                if (op := self.message(ahead.is_forward, sends=False)) is not None:
                    arrived[ahead.is_forward].append(op)
            posted = number + 1 + model.early
            needed = arrived[way.is_forward][:1]
            del arrived[way.is_forward][:1]
            self.run(way, needed)
            self.message(way.is_forward, sends=True)
        layers = model.layers // self.stages
        self.collective("all_reduce", range(self.ranks), 64.0, "norm")
        done = self.collective("all_gather", self.columns, 1e4 * layers, "data")
        self.kernel("update", 500 * layers, [done, *self.reduced])
        if model.ends_update and self.stage == 0:
            self.kernel("update of tables", 200)

    def run(self, way, needed):
        """Run the layers of a stage; half of each is behind a sum over the columns."""
        model, layers = self.model, self.model.layers // self.stages
        mine = range(self.stage * layers, (self.stage + 1) * layers)
        if model.awaited and needed:
            self.pending = needed
            needed = ()
        for layer in mine if way.is_forward else reversed(mine):
            us = model.lasting[way.is_forward, layer]
            if model.is_host:
                self.kernel("layer", us)
                continue
            label = f"{'forward' if way.is_forward else 'backward'} {layer} of {way.micro_batch}"
            first = self.kernel(label, us / 2, needed)
            needed = ()
            done = self.collective("all_reduce", self.columns, 1e4, "sum", waits=[first])
            last = self.kernel(f"{label}, then", us / 2, [done])
            if model.reduces and way == Pass(False, model.batches - 1):
                # As DDP does beside the backward pass; the update waits for it.
                of_layer = self.collective("all_reduce", self.columns, 1e8, "grads", waits=[last])
                self.reduced.append(of_layer)

    @property
    def columns(self):
        return [self.at(self.stage, column) for column in range(self.model.columns)]

    def kernel(self, name, us, waits=()):
        if self.model.is_host:
            return self.host(us, name)
        return self.launch(What.COMPUTE, "stream 7", name, us, waits)


def divided(written, stages):
    workload = written.workload
    start = simulate(workload, switch_network(written.ranks), plan).start
    launched = programs(workload, start)
    pipeline = pipeline_of(workload, launched)
    return restaged(workload, launched, pipeline, ORDERS, stages)


def rows(workload, whats):
    """Ops of each rank in their order: names and calls, times and work, and when each ends."""
    end = simulate(workload, switch_network(workload.job_ranks), plan, engine="analytic").end
    found = defaultdict(list)
    for op in np.flatnonzero(np.isin(workload.what, whats)).tolist():
        call = str(workload.call_view(int(workload.call[op]))) if workload.call[op] >= 0 else ""
        label = workload.names[workload.name[op]], call
        times = workload.duration[op], workload.flops[op], workload.traffic[op], end[op]
        found[int(workload.rank[op])].append((label, times))
    return found


def check(made, wanted):
    assert made.keys() == wanted.keys()
    for rank, row in wanted.items():
        assert [label for label, _ in made[rank]] == [label for label, _ in row]
        times = [np.array([of for _, of in every]) for every in (made[rank], row)]
        np.testing.assert_allclose(*times, rtol=1e-9)


def calls(workload):
    return Counter(
        (view.kind, view.group.ranks, view.size, view.group.label)
        for view in map(workload.call_view, range(len(workload.calls)))
    )


def launched(workload):
    """Names of what the one host thread of each rank launches, and how often."""
    hosts = workload.what == What.HOST
    assert (
        len({*zip(workload.rank[hosts], workload.lane[hosts], strict=True)}) == workload.job_ranks
    )
    source, target = workload.edges.source, workload.edges.target
    launch = (workload.what[source] == What.HOST) & (workload.what[target] != What.HOST)
    names = [workload.names[name] for name in workload.name[target[launch]]]
    return Counter(zip(workload.rank[target[launch]].tolist(), names, strict=True))


STAGES = [(2, 3), (2, 4), (3, 2), (4, 3), (2, 6), (3, 1)]


@pytest.mark.parametrize("stages", STAGES, ids=str)
@tries(6, least=3)
@given(seed=st.integers(0, 2**32 - 1))
def test_other_stages_are_what_the_model_is_on_so_many(stages, seed):
    model = Model(seed, ends_update=stages[1] == 1)  # tables are not divided with the layers
    now, then = (Written(model, number) for number in stages)
    found, name = divided(now, stages[1])
    assert name == model.order
    assert calls(found) == calls(then.workload)
    check(rows(found, [What.COMPUTE]), rows(then.workload, [What.COMPUTE]))
    assert launched(found) == launched(then.workload)
    kernels = found.what == What.COMPUTE
    assert [found.modules[module] for module in found.module[kernels]] == [
        found.names[name] for name in found.name[kernels]
    ]


@pytest.mark.parametrize("stages", STAGES[1:4], ids=str)
@tries(6, least=3)
@given(seed=st.integers(0, 2**32 - 1))
def test_where_only_hosts_were_recorded_their_time_is_divided(stages, seed):
    """Each message ends when it does in the step that is written for so many stages."""
    model = Model(seed, is_host=True)
    now, then = (Written(model, number) for number in stages)
    found, name = divided(now, stages[1])
    assert name == model.order
    messages = [What.SEND, What.RECEIVE]
    made, wanted = rows(found, messages), rows(then.workload, messages)
    for rank, row in wanted.items():
        assert [label for label, _ in made[rank]] == [label for label, _ in row]
        ends = [[times[-1] for _, times in every] for every in (made[rank], row)]
        assert ends[0] == pytest.approx(ends[1], rel=1e-9)
    lasting = [
        np.bincount(each.rank, np.where(each.what == What.HOST, each.duration, 0.0))
        for each in (found, then.workload)
    ]
    np.testing.assert_allclose(*lasting, rtol=1e-9)


@given(data=st.data(), forward=st.integers(1, 99), backward=st.integers(1, 99))
def test_passes_between_the_same_messages_are_as_long_as_alone_or_on_other_stages(
    data, forward, backward
):
    """Stage 0 shows both alone; what the other shows, its segments' lengths determine."""
    counts = st.tuples(st.integers(0, 2), st.integers(0, 2))
    shown = (
        data.draw(st.lists(counts, max_size=6).filter(lambda every: sum(map(sum, every)))),
        [(1, 0), (0, 1)],
    )
    builder, segments = WorkloadBuilder(job_ranks=2), {}
    for rank, parts in enumerate(reversed(shown)):
        number, segments[rank] = Counter(), []
        for many in parts:
            ways = data.draw(st.permutations([True] * many[0] + [False] * many[1]))
            passes = []
            for way in ways:
                passes.append(Pass(way, number[way]))
                number[way] += 1
            length = many[0] * forward + many[1] * backward
            op = builder.op(What.COMPUTE, rank=rank, lane="s", name="k", duration=length)
            ops, weight = np.array([op]), np.array([float(length)])
            follows = np.zeros(1, dtype=bool)
            segments[rank].append(Segment(tuple(passes), ops, weight, follows, -1, opaque=False))
    pipeline = Pipeline(np.array([[0], [1]]), stride=1, micro_batches=1)
    found = passes_of_ranks(builder.build(), pipeline, segments)
    for rank, parts in segments.items():
        for part in parts:
            for each in part.passes:
                content = found[rank].passes[each]
                lasts = (content.end - content.begin) * part.length
                assert lasts == pytest.approx(forward if each.is_forward else backward)


def test_messages_start_as_long_after_their_launches_as_recorded():
    now = Written(Model(3, lag=4e-6), 2)
    found, _ = divided(now, 3)
    source, target = found.edges.source, found.edges.target
    launched = (found.what[source] == What.HOST) & (found.what[target] >= What.COLLECTIVE)
    assert launched.sum() > 9
    assert set(found.edges.lag[launched].tolist()) == {4e-6}


@pytest.mark.parametrize(
    ("stages", "said"),
    [(1, "exchange no messages"), (2, "too few kernels to be divided among 100 stages")],
)
def test_what_cannot_be_divided_is_refused(stages, said):
    with pytest.raises(WorkloadError, match=said):
        divided(Written(Model(1, layers=2, batches=5), stages), 100)


@pytest.mark.parametrize(
    ("order", "said"), [([0, 2, 1, 3], "not equally far apart"), ([1, 0], "not equally far apart")]
)
def test_stages_lie_apart_alike(order, said):
    model = Model(1, layers=4, columns=1, batches=5)
    written = Written(model, len(order))
    written.workload = moved(written.workload, np.array(order), len(order))
    with pytest.raises(WorkloadError, match=said):
        divided(written, 2)
