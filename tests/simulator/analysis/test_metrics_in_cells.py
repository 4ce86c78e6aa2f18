"""Every metric in whole seconds: sets of seconds in which something is under way, and their counts.

The definitions once more, as a table of one row a second would have them.
"""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.measured_steps import as_measured
from helpers.tries import tries
from simulator.analysis import metrics as of
from simulator.analysis.attribution import REST, USES, account
from simulator.analysis.difference import compared
from simulator.timeline import measured
from simulator.workload import DATA_LOADER, IN_PART, STEP_BEFORE, UNEXPLAINED_HOST, Edges, What

NAMES = ("gemm", "norm", "moe_gate", "dispatch", STEP_BEFORE)
SILENT = (DATA_LOADER, UNEXPLAINED_HOST)
CALL = What.COLLECTIVE


def drawn(seed):
    """Ops of up to three ranks that begin and end at whole seconds; calls end together."""
    chance = random.Random(seed)
    ranks, rows, calls = chance.randint(1, 3), [], []
    for number in range(chance.randint(0, 3)):
        end = chance.randint(6, 16)
        members = sorted(chance.sample(range(ranks), chance.randint(1, ranks)))
        rows += [
            (CALL, rank, "expert_all_to_all", chance.randint(0, end), end, number)
            for rank in members
        ]
        calls.append(number)
    for _ in range(chance.randint(0, 9)):
        what = chance.choice((What.COMPUTE, What.COMPUTE, What.COPY, What.HOST))
        start = chance.randint(0, 14)
        end = start + chance.randint(0, 5)
        rows.append((what, chance.randrange(ranks), chance.choice(NAMES), start, end, -1))
    chance.shuffle(rows)
    rows = [(*row[:3], float(row[3]), float(row[4]), row[5]) for row in rows]
    return as_measured(rows, calls, ranks=3)


class Seconds:
    """What each rank does in each second."""

    def __init__(self, run):
        workload = run.workload
        self.rows = [
            (
                What(workload.what[op]),
                int(workload.rank[op]),
                workload.names[workload.name[op]],
                int(run.start[op]),
                int(run.end[op]),
                int(workload.call[op]),
            )
            for op in range(len(workload))
        ]
        self.run, self.ranks = run, sorted({row[1] for row in self.rows})
        self.call_start = run.call_start.tolist()
        self.step = max((row[4] for row in self.rows), default=0)

    def of(self, rank, wanted):
        """Return the seconds in which any such op of a rank is under way."""
        spans = (wanted(row) for row in self.rows if row[1] == rank)
        return {second for span in spans if span for second in range(*map(int, span))}

    def kernels(self, rank, *, own=False):
        def span(row):
            counts = row[0] == What.COMPUTE and not (own and row[2] == STEP_BEFORE)
            return row[3:5] if counts else None

        return self.of(rank, span)

    def copies(self, rank):
        return self.of(rank, lambda row: row[3:5] if row[0] == What.COPY else None)

    def calls(self, rank):
        return self.of(rank, lambda row: row[3:5] if row[0] == CALL else None)

    def moving(self, rank):
        return self.of(
            rank, lambda row: (self.call_start[row[5]], row[4]) if row[0] == CALL else None
        )

    def waiting(self, rank):
        return self.of(
            rank, lambda row: (row[3], self.call_start[row[5]]) if row[0] == CALL else None
        )


def mean(values):
    values = [*values]
    return sum(values) / len(values) if values else 0.0


@tries(200)
@given(st.integers(0, 2**32 - 1))
def test_times_of_ranks_are_counts_of_seconds(seed):
    run = drawn(seed)
    table = Seconds(run)
    for row in of.rank_times(run):
        rank, kernels = row.rank, table.kernels(row.rank)
        mine = [one for one in table.rows if one[1] == rank]
        assert (row.start, row.end) == (min(r[3] for r in mine), max(r[4] for r in mine))
        moving = table.moving(rank)
        assert row.compute == len(kernels)
        assert row.communication == len(moving)
        assert row.exposed_communication == len(moving - kernels)
        assert row.exposed_waiting == len(table.waiting(rank) - kernels)
        assert row.exposed_copy == len(table.copies(rank) - kernels - moving)
    moving = [len(table.moving(rank)) for rank in table.ranks]
    exposed = [len(table.moving(rank) - table.kernels(rank)) for rank in table.ranks]
    assert [row.rank for row in of.rank_times(run)] == table.ranks
    assert of.step_time(run) == table.step
    assert of.exposed_communication(run) == pytest.approx(mean(exposed))
    assert of.communication_time(run) == pytest.approx(
        mean(len(table.calls(rank)) for rank in table.ranks)
    )
    share = mean(moving) / table.step if table.step else 0.0
    assert of.communication_fraction(run) == pytest.approx(share)
    overlap = of.communication_overlap(run)
    assert overlap == (pytest.approx(1 - sum(exposed) / sum(moving)) if sum(moving) else None)
    copied = mean(
        len(table.copies(rank) - table.kernels(rank) - table.moving(rank)) for rank in table.ranks
    )
    overhead = copied / table.step if table.step else 0.0
    assert of.memory_transfer_overhead(run) == pytest.approx(overhead)


def active(table, rank):
    """Seconds of kernels, those of calls included if the rank has others or copies."""
    mine = [row for row in table.rows if row[1] == rank]
    own = [row for row in mine if row[0] == What.COMPUTE and row[2] != STEP_BEFORE]
    if own or any(row[0] == What.COPY for row in mine):
        own += [row for row in mine if row[0] == CALL]
    return own


@tries(200)
@given(st.integers(0, 2**32 - 1))
def test_imbalance_and_the_shares_of_kernels_are_counts_of_seconds(seed):
    run = drawn(seed)
    table = Seconds(run)
    compute = [len(table.kernels(rank, own=True)) for rank in table.ranks]
    has_mean = len(compute) > 1 and sum(compute) > 0
    wanted = max(compute) / mean(compute) - 1 if has_mean else None
    assert of.load_imbalance(run) == (None if wanted is None else pytest.approx(wanted, abs=1e-9))
    every = [active(table, rank) for rank in table.ranks]
    busy = [len({s for row in rows for s in range(row[3], row[4])}) for rows in every]
    ratio = max(busy) / min(busy) if len(busy) > 1 and min(busy) else None
    assert of.load_imbalance_ratio(run) == (None if ratio is None else pytest.approx(ratio))
    lasting = [(row[2], row[4] - row[3]) for rows in every for row in rows]
    total = sum(time for _, time in lasting)
    routed = sum(time for name, time in lasting if re.search("moe|dispatch|expert", name))
    assert of.experts_share(run) == (pytest.approx(routed / total) if total else None)
    spent = dict.fromkeys(NAMES, 0)
    for what, _, name, start, end, _ in table.rows:
        spent[name] = spent.get(name, 0) + (end - start) * (
            what == What.COMPUTE and name != STEP_BEFORE
        )
    found = of.dominant_kernel(run)
    if not sum(spent.values()):
        assert found is None
        return
    assert spent[found.name] == max(spent.values())
    assert found.share == pytest.approx(spent[found.name] / sum(spent.values()))


@tries(200)
@given(st.integers(0, 2**32 - 1))
def test_what_calls_wait_for_is_the_count_of_seconds(seed):
    run = drawn(seed)
    table = Seconds(run)
    windows = []
    for rank in table.ranks:
        mine = [row for row in table.rows if row[1] == rank and row[0] == CALL]
        if mine:
            windows.append((min(row[3] for row in mine), max(row[4] for row in mine)))
    delay = of.straggler_delay(run)
    if len(windows) < 2:
        assert delay is None
    else:
        ends = [end for _, end in windows]
        whole = max(ends) - min(start for start, _ in windows)
        assert delay == pytest.approx((max(ends) - min(ends)) / whole if whole else 0.0)
    lag, span, waited = 0, 0, {}
    for call in range(len(run.workload.calls)):
        arrivals = {row[1]: row[3] for row in table.rows if row[5] == call}
        if len(arrivals) < 2:
            continue
        first, last = min(arrivals.values()), max(arrivals.values())
        lag, span = lag + last - first, span + int(run.call_end[call]) - first
        for rank, at in arrivals.items():
            waited[rank] = waited.get(rank, 0) + (last - first) * (at == last)
    found = of.straggler(run)
    if not waited:
        assert found is None
        return
    assert found.index == pytest.approx(lag / span if span else 0.0)
    longest = max(waited.values())
    assert found.rank == (min(r for r in waited if waited[r] == longest) if longest else None)


def launching(seed):
    """The same, with kernels in part, silent hosts, and host ops that launch what begins later."""
    chance, run = random.Random(seed), drawn(seed)
    step = run.workload
    names = (*step.names, IN_PART, *SILENT)
    name = step.name.copy()
    for op in range(len(step)):
        if step.what[op] == What.HOST and chance.random() < 0.3:
            name[op] = names.index(chance.choice(SILENT))
        if step.what[op] == What.COMPUTE and chance.random() < 0.3:
            name[op] = names.index(IN_PART)
    pairs = [
        (one, two)
        for one in range(len(step))
        for two in range(len(step))
        if run.end[one] <= run.start[two] and run.end[one] < run.end[two] and chance.random() < 0.4
    ]
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    edges = Edges.of(len(step), source, target, np.zeros(len(pairs)))
    found = measured(replace(step, names=names, name=name, edges=edges))
    by = {two: max((run.end[a], -a) for a, b in pairs if b == two) for _, two in pairs}
    return found, {op: -minus for op, (_, minus) in by.items()}


def spans(run, launched_by):
    """Begin and end of each op in each use that it has."""
    workload, every = run.workload, {use: {} for use in (*USES, IN_PART)}
    for op in range(len(workload)):
        what, name = What(workload.what[op]), workload.names[workload.name[op]]
        start, end = int(run.start[op]), int(run.end[op])
        by = launched_by.get(op)
        if what == What.COMPUTE:
            every[IN_PART if name == IN_PART else "compute"][op] = start, end
        elif what == What.COPY:
            every["copy"][op] = start, end
        elif what == What.HOST:
            every[name if name in SILENT else "host"][op] = start, end
        elif what == CALL:
            begun = int(run.call_start[workload.call[op]])
            every["communication"][op] = begun, end
            every["waiting for ranks"][op] = start, begun
        if what != What.HOST and by is not None and workload.what[by] == What.HOST:
            every["launch"][op] = int(run.end[by]), start
    return every


def uses_in_order(*, computes):
    """Return the uses in order of precedence: of a rank without kernels its host comes first."""
    order = ("compute", IN_PART, *USES[1:])
    return order if computes else ("host", *(use for use in order if use != "host"))


def lasting(use, every, found):
    """Return how long each op spent on a use; a part of a kernel, what counts of it."""
    lasted = np.full(len(found.of_op[use]), np.nan)
    for op, (start, end) in every[use].items():
        lasted[op] = max(0, end - start)
    if use == "compute":
        parts = [op for op in every[IN_PART] if found.of_op[use][op] > 0]
        lasted[parts] = found.of_op[use][parts]
    return lasted


@tries(200)
@given(st.integers(0, 2**32 - 1))
def test_each_second_counts_for_the_first_use_and_its_ops_in_equal_parts(seed):
    run, launched_by = launching(seed)
    workload, every = run.workload, spans(run, launched_by)
    found, step = account(run), int(max(run.end, default=0))
    wanted = {use: np.zeros(len(workload)) for use in USES}
    rest = {use: np.zeros(len(workload.ranks)) for use in REST}
    for number, rank in enumerate(workload.ranks):
        mine = {op for op in range(len(workload)) if workload.rank[op] == rank}
        order = uses_in_order(computes=any(workload.what[op] == What.COMPUTE for op in mine))
        first, last = (
            edge(mine, key=key) for edge, key in ((min, run.start.item), (max, run.end.item))
        )
        for second in range(step):
            for use in order:
                busy = [
                    op
                    for op in mine & set(every[use])
                    if every[use][op][0] <= second < every[use][op][1]
                ]
                if busy:
                    # A part of a kernel counts where no whole one runs.
                    wanted["compute" if use == IN_PART else use][busy] += 1 / len(busy)
                    break
            else:
                early, late = second < run.start[first], second >= run.end[last]
                rest[REST[0] if early else REST[1] if late else REST[2]][number] += 1
    for use in USES:
        np.testing.assert_allclose(found.of_op[use], wanted[use], atol=1e-12)
        np.testing.assert_array_equal(found.lasted[use], lasting(use, every, found))
    for use in REST:
        np.testing.assert_allclose(found.of_rank[use], rest[use], atol=1e-12)
    assert found.step == step
    ranks = max(1, len(workload.ranks))
    totals = {use: column.sum() / ranks for use, column in (wanted | rest).items()}
    assert found.totals() == pytest.approx(totals)


def by_class(run, found):
    """Number, mean time and part of the step of each name in each use, op by op."""
    workload, totals, ranks = run.workload, {}, max(1, len(run.workload.ranks))
    for use in USES:
        for op in range(len(workload)):
            if np.isnan(found.lasted[use][op]):
                continue
            name = workload.names[workload.name[op]]
            if workload.call[op] >= 0 and use in ("communication", "waiting for ranks"):
                view = workload.call_view(int(workload.call[op]))
                name = f"{view.kind} {view.group}"
            row = totals.setdefault((use, name), [0, 0.0, 0.0])
            row[0] += 1
            row[1] += found.lasted[use][op]
            row[2] += found.of_op[use][op] / ranks
    classes = {key: (count, lasted / count, adds) for key, (count, lasted, adds) in totals.items()}
    rest = {(use, ""): (0, None, found.of_rank[use].sum() / ranks) for use in REST}
    return classes | {key: row for key, row in rest.items() if row[-1]}


@tries(100)
@given(st.integers(0, 2**32 - 1))
def test_two_runs_are_compared_name_by_name_and_the_largest_difference_comes_first(seed):
    runs = drawn(seed), drawn(seed + 1)
    found = [account(run) for run in runs]
    plainly = [by_class(*pair) for pair in zip(runs, found, strict=True)]
    rows = compared(*found)
    assert {(row.what, row.name) for row in rows} == set(plainly[0]) | set(plainly[1])
    for row in rows:
        for side, of_run in zip((row.a, row.b), plainly, strict=True):
            count, lasts, adds = of_run.get((row.what, row.name), (0, None, 0.0))
            assert (side.count, side.adds_s) == (count, pytest.approx(adds))
            assert side.lasts_s == (None if lasts is None else pytest.approx(lasts))
        assert row.difference == row.b.adds_s - row.a.adds_s
    keys = [(-abs(row.difference), row.what, row.name) for row in rows]
    assert keys == sorted(keys)
