"""Units inserted among units: the step that has as many, and what repeats found by trying all."""

import random
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import plan, switch_network
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.edits.repeats import Insertion, Program, programs, repeated
from simulator.engine.simulate import simulate
from simulator.support.errors import WorkloadError
from simulator.workload import LAUNCH_DELAY, What


def program(looks, each=1):
    """A rank that launches ops that look so, ``each`` host ops for one launch."""
    count = len(looks)
    position = each * np.arange(1, count + 1)
    hosts = 1000 + np.arange(each * count)
    return Program(3, np.arange(count) + 100, np.array(looks), position, hosts)


def repeats(looks, begin, period, units):
    """Whether as many units of a period are there, one like the other."""
    part = looks[begin : begin + period * units]
    return len(part) == period * units and part == part[:period] * units


@tries(300)
@given(st.lists(st.integers(0, 2), max_size=14), st.integers(1, 4), st.integers(1, 3))
def test_runs_are_the_longest_repetitions_of_each_period(looks, least, each):
    """By brute force: no run is left out, none goes on at either end."""
    whole, found = program(looks, each), set()
    for run in whole.runs(least):
        found.add((run.period, run.first, len(run)))
        assert run.end == run.first + run.period * len(run)
        assert np.concatenate(run.launched).tolist() == list(range(100 + run.first, 100 + run.end))
        hosts = np.concatenate(run.hosts).tolist()
        assert hosts == list(range(1000 + each * run.first, 1000 + each * run.end))
        assert {len(unit) for unit in run.hosts} == {each * run.period}
        assert run.rank == 3
    wanted, least_units = set(), max(least, 2)
    for period in range(1, len(looks) // least_units + 1):
        begin = 0
        while begin + period < len(looks):
            if looks[begin] != looks[begin + period]:
                begin += 1
                continue
            end = begin
            while end + period < len(looks) and looks[end] == looks[end + period]:
                end += 1
            units = (end - begin + period) // period
            if units >= least:
                wanted.add((period, begin, units))
                assert repeats(looks, begin, period, units)
                assert not repeats(looks, begin, period, units + 1)
            begin = end
    assert found == wanted


@tries(300)
@given(
    st.integers(0, 4), st.integers(1, 3), st.integers(2, 6),
    st.lists(st.tuples(st.integers(0, 25), st.integers(1, 6)), max_size=3),
)  # fmt: skip
def test_outside_others_is_the_longest_part_of_a_run(first, period, units, others):
    looks = [9] * first + list(range(period)) * units + [8] * 12
    whole = program(looks)
    run = next(run for run in whole.runs(2) if (run.first, run.period) == (first, period))
    parts = [whole._run(begin, 1, many) for begin, many in others if begin + many <= len(looks)]
    taken = {place for part in parts for place in range(part.first, part.end)}
    free = [place not in taken for place in range(run.first, run.end)]
    longest = max((len([*ones]) for is_free, ones in groupby(free) if is_free), default=0)
    part = whole.outside(run, parts)
    if longest < period:
        assert part is None
        return
    assert len(part) == longest // period
    assert part.period == period
    assert not taken & set(range(part.first, part.end))
    assert run.first <= part.first
    assert part.end <= run.end


class Step:
    """Units of a rank's launches, between a beginning and an end that do not repeat.

    What is drawn is the same for every number of units: which ops wait for which, of the same unit
    or of one or two before, on which streams, how long they last, and which are calls.
    """

    def __init__(self, seed, units, ranks=2):
        chance = random.Random(seed)
        size = chance.randint(2, 4)
        self.builder, self.calls = WorkloadBuilder(job_ranks=ranks), {}
        lasting = [chance.choice([3e-5, 7e-5, 2e-4]) for _ in range(size)]
        streams = [chance.choice("ab") for _ in range(size)]
        joins = [chance.random() < 0.3 for _ in range(size)]
        waits = [
            (chance.randrange(size), chance.randrange(size), chance.randint(1, 2))
            for _ in range(chance.randint(0, 3))
        ]
        inside = [sorted(chance.sample(range(size), 2)) for _ in range(chance.randint(0, 2))]
        awaited = chance.randrange(size) if chance.random() < 0.5 else None
        host = chance.choice([1e-6, 1e-4])
        for rank in range(ranks):
            self.rank, self.last, self.made = rank, {}, 0
            self.begin = self.launch("begin", "a", 1e-4, host)
            ops = {}
            for unit in range(units):
                for place in range(size):
                    call = self.call() if joins[place] else -1
                    last = 0.0 if joins[place] else lasting[place] * (1 + rank)
                    name = f"kernel {place}"
                    ops[unit, place] = self.launch(name, streams[place], last, host, call)
                for before, after in inside:
                    self.builder.edge(ops[unit, before], ops[unit, after], lag=1e-6)
                for before, after, distance in waits:
                    if unit >= distance:
                        source = ops[unit - distance, before]
                        self.builder.edge(source, ops[unit, after], lag=2e-6)
                if awaited is not None and unit:
                    self.builder.edge(ops[unit - 1, awaited], self.hosts[unit * size + 1])
            end = self.launch("end", "a", 1e-4, host)
            self.builder.edge(ops[units - 1, size - 1], end)
        self.workload = self.builder.build()
        self.size = size

    def call(self):
        group = self.builder.group(tuple(range(2)), "dp")
        if self.made not in self.calls:
            self.calls[self.made] = self.builder.call(CallRow("all_reduce", group, self.made, 1e5))
        self.made += 1
        return self.calls[self.made - 1]

    def op(self, what, lane, name, lasting, call=-1):
        op = self.builder.op(
            what, rank=self.rank, lane=lane, name=name, duration=lasting, call=call
        )
        if lane in self.last:
            self.builder.edge(self.last[lane], op)
        self.last[lane] = op
        return op

    def launch(self, name, stream, lasting, host, call=-1):
        thread = self.op(What.HOST, "thread", "launch", host)
        if name == "begin":
            self.hosts = []
        self.hosts.append(thread)
        what = What.COMPUTE if call < 0 else What.COLLECTIVE
        op = self.op(what, stream, name, lasting, call)
        self.builder.edge(thread, op, lag=4e-6)
        return op


def ends(workload):
    """When ops of each rank end, by name: the same whatever their numbers."""
    end = simulate(workload, switch_network(2), plan, engine="analytic").end
    names = [workload.names[name] for name in workload.name]
    return sorted(zip(workload.rank.tolist(), names, end.round(12).tolist(), strict=True))


@tries(60)
@given(st.integers(0, 2**32 - 1), st.integers(5, 7), st.integers(1, 4), st.integers(2, 4))
def test_more_units_are_the_step_that_has_as_many(seed, units, copies, at):
    """To the last wait: every op of every unit ends when it does there."""
    now, then = Step(seed, units), Step(seed, units + copies)
    start = simulate(now.workload, switch_network(2), plan, engine="analytic").start
    insertions = []
    for whole in programs(now.workload, start):
        run = next(run for run in whole.runs(units) if (run.period, len(run)) == (now.size, units))
        insertions.append(Insertion(run, min(at, units - 2), copies, range(1, units - 1)))
    found = repeated(now.workload, insertions)
    assert ends(found) == ends(then.workload)
    assert len(found.calls) == len(then.workload.calls)
    assert found.calls.sequence.tolist() == list(range(len(found.calls)))
    assert len(found.edges.target) == len(then.workload.edges.target)


@tries(40)
@given(st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_units_in_two_places_are_as_many_in_one(seed, apart):
    now, then = Step(seed, 7), Step(seed, 10)
    start = simulate(now.workload, switch_network(2), plan, engine="analytic").start
    insertions = []
    for whole in programs(now.workload, start):
        run = next(run for run in whole.runs(7) if (run.period, len(run)) == (now.size, 7))
        for unit, copies in ((2, 1), (2 + apart, 2)) if apart else ((2, 3),):
            insertions.append(Insertion(run, unit, copies, range(1, 6)))
    assert ends(repeated(now.workload, insertions)) == ends(then.workload)


def test_copies_last_as_the_median_of_units_and_their_host_as_long_in_all():
    builder = WorkloadBuilder(job_ranks=1)
    hosts, ops = [], []
    for unit, (host, kernel) in enumerate([(1.0, 5.0), (2.0, 7.0), (9.0, 6.0), (4.0, 50.0)]):
        hosts.append(builder.op(What.HOST, rank=0, lane="t", name=f"host {unit}", duration=host))
        ops.append(builder.op(What.COMPUTE, rank=0, lane="s", name="k", duration=kernel))
        builder.edge(hosts[-1], ops[-1])
    workload = builder.build()
    (whole,) = programs(workload, np.arange(8.0))
    (run,) = whole.runs(4)
    found = repeated(workload, [Insertion(run, 1, 2, range(3))])
    assert found.duration[8:].tolist() == [2.0, 6.0] * 2
    other = repeated(workload, [Insertion(run, 1, 1, range(4))])
    assert other.duration[8:].tolist() == [3.0, 6.5], "the median of 1, 2, 9 and 4"


def test_ranks_that_would_make_other_numbers_of_calls_are_refused():
    step = next(step for step in (Step(seed, 5) for seed in range(99)) if step.calls)
    start = simulate(step.workload, switch_network(2), plan, engine="analytic").start
    first = programs(step.workload, start)[0]
    run = next(run for run in first.runs(5) if (run.period, len(run)) == (step.size, 5))
    with pytest.raises(WorkloadError, match="would make different numbers of calls"):
        repeated(step.workload, [Insertion(run, 2, 1, range(1, 4))])


class Launches:
    """A rank's ops in the order in which they start, some of which a host op launches."""

    def __init__(self, builder, rank, chance, start):
        self.builder, self.rank, self.chance, self.start = builder, rank, chance, start
        self.hosts, self.rows = [], []
        for number in range(chance.randint(1, 9)):
            self.add(number, is_launched=chance.random() < 0.7)

    def op(self, what, lane, name, at):
        self.start.append(at)
        return self.builder.op(what, rank=self.rank, lane=lane, name=name, duration=1.0)

    def add(self, number, *, is_launched):
        at = 10.0 * number
        if is_launched or self.chance.random() < 0.3:
            self.hosts.append(self.op(What.HOST, self.chance.choice("tu"), "launch", at))
        op = self.op(What.COMPUTE, "s", f"kernel {number}", at + 1.0)
        if not is_launched:
            self.rows.append((op, len(self.hosts)))
            return
        by = self.chance.choice(self.hosts)
        self.rows.append((op, self.hosts.index(by) + 1))
        if self.chance.random() < 0.3:
            delay = self.op(What.COPY, "s", LAUNCH_DELAY, at + 0.5)
            self.builder.edge(by, delay)
            by = delay
        self.builder.edge(by, op)


@tries(60)
@given(st.integers(0, 2**32 - 1))
def test_launches_are_in_the_order_of_the_host_that_launches_them(seed):
    """Whatever thread that is; what no host of the rank launches comes where it starts."""
    chance, start = random.Random(seed), []
    builder = WorkloadBuilder(job_ranks=2)
    wanted = [Launches(builder, rank, chance, start) for rank in range(2)]
    found = programs(builder.build(), np.array(start))
    for whole, of_rank in zip(found, wanted, strict=True):
        rows = sorted(of_rank.rows, key=lambda row: row[1])
        assert whole.rank == of_rank.rank
        assert whole.hosts.tolist() == of_rank.hosts
        assert whole.ops.tolist() == [op for op, _ in rows]
        assert whole.position.tolist() == [position for _, position in rows]


def test_ops_look_alike_by_name_or_by_kind_group_and_size():
    builder = WorkloadBuilder(job_ranks=2)
    groups = builder.group((0, 1), "dp"), builder.group((0, 1), "tp")
    rows = [("all_reduce", 0, 1.0), ("all_reduce", 0, 2.0), ("all_reduce", 1, 1.0)]
    rows += [("all_gather", 0, 1.0), ("all_reduce", 0, 1.0), ("all_reduce", 0, np.nan)]
    for number, (kind, group, size) in enumerate(rows):
        call = builder.call(CallRow(kind, groups[group], number, size))
        for rank in range(2):
            builder.op(
                What.COLLECTIVE, rank=rank, lane="s", name=f"c{number}", duration=0.0, call=call
            )
    for name in ("gemm", "norm", "gemm"):
        builder.op(What.COMPUTE, rank=0, lane="s", name=name, duration=1.0)
    workload = builder.build()
    looks = {}
    for whole in programs(workload, np.arange(float(len(workload)))):
        looks |= dict(zip(whole.ops.tolist(), whole.looks.tolist(), strict=True))
    calls = [looks[2 * number] for number in range(len(rows))]
    assert calls[0] == calls[4]
    assert len(set(calls)) == len(rows) - 1
    assert [looks[2 * n] for n in range(len(rows))] == [looks[2 * n + 1] for n in range(len(rows))]
    kernels = [looks[op] for op in range(2 * len(rows), len(workload))]
    assert kernels[0] == kernels[2] != kernels[1]
    assert not set(kernels) & set(calls)
