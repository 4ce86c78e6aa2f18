"""Jobs that repeat their steps on one network: what is theirs stays, what is shared is shared."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.strategies import SYMMETRIC, networks, plan, switch_network, with_software, workloads
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.edits.jobs import merged, moved
from simulator.engine.repeating import JobInCrowd, RepeatedJob, repeat_together
from simulator.engine.simulate import Costs, simulate
from simulator.support.errors import DeadlockError, WorkloadError
from simulator.topology import Link, topology
from simulator.transfers.crowd import Crowd
from simulator.workload import What

SAME = {"rel": 1e-9, "abs": 1e-11}
B = 1e9
"""Bandwidth of the cable that is shared (B/s)."""


def cable(jobs, latency=0.0):
    """Pairs of ranks at both ends of one cable: rank ``i`` sends to rank ``jobs + i``."""
    links = [Link("left", "right", B, latency)]
    links += [Link(rank, "left", 1e3 * B, 0.0) for rank in range(jobs)]
    links += [Link("right", jobs + rank, 1e3 * B, 0.0) for rank in range(jobs)]
    return topology("one cable", 2 * jobs, links)


def sender(number, jobs, size, compute=0.0):
    """A job that computes and then sends ``size`` bytes over the cable."""
    builder = WorkloadBuilder(job_ranks=2 * jobs)
    ends = number, jobs + number
    call = builder.call(CallRow("send_receive", builder.group(ends), 0, size))
    gemm = builder.op(What.COMPUTE, rank=ends[0], lane="s", name="gemm", duration=compute)
    for rank, what in zip(ends, (What.SEND, What.RECEIVE), strict=True):
        op = builder.op(what, rank=rank, lane="nic", name="message", duration=0.0, call=call)
        if what == What.SEND:
            builder.edge(gemm, op)
    return builder.build()


def steps(jobs, network, count, planner=plan):
    """Let jobs do so many steps each, all beginning at 0."""
    costs = Costs(network, planner)
    asked = [
        RepeatedJob(f"job {number}", job, costs, steps=many)
        for number, (job, many) in enumerate(zip(jobs, count, strict=True))
    ]
    return repeat_together(asked, network)


@pytest.mark.parametrize(("long", "short"), [(5e9, 1e9), (2e9, 2e9), (1.5e9, 1e9)])
def test_two_messages_on_one_cable_get_half_each_until_the_shorter_ends(long, short):
    found = steps([sender(0, 2, long), sender(1, 2, short)], cable(2), (1, 1))
    assert found.jobs[1].length == pytest.approx([2 * short / B])
    assert found.jobs[0].length == pytest.approx([2 * short / B + (long - short) / B])


@pytest.mark.parametrize("jobs", [2, 3, 5])
def test_jobs_that_only_send_take_as_many_times_as_long_as_they_are(jobs):
    found = steps([sender(number, jobs, 1e9) for number in range(jobs)], cable(jobs), [4] * jobs)
    for job in found.jobs:
        assert job.length == pytest.approx([jobs * 1e9 / B] * 4)
        assert job.lost[0].sum() == pytest.approx((jobs - 1) * 1e9 / B)
    assert found.link_bytes[0] == pytest.approx(jobs * 4 * 1e9)


def test_a_short_job_repeats_while_a_long_one_sends():
    """The long one gets half of the cable throughout: 8 GB take 16 s, 1 GB eight times 2 s."""
    found = steps([sender(0, 2, 8e9), sender(1, 2, 1e9)], cable(2), (1, 8))
    assert found.jobs[0].length == pytest.approx([16.0])
    assert found.jobs[1].length == pytest.approx([2.0] * 8)


def test_what_computes_while_the_other_sends_loses_nothing():
    """Two jobs that compute as long as they send, half a step apart, never meet."""
    network = cable(2)
    costs = Costs(network, plan)
    jobs = [
        RepeatedJob("a", sender(0, 2, 1e9, compute=1.0), costs, steps=5),
        RepeatedJob("b", sender(1, 2, 1e9, compute=1.0), costs, begins=1.0, steps=5),
    ]
    found = repeat_together(jobs, network)
    assert [job.length for job in found.jobs] == [pytest.approx([2.0] * 5)] * 2
    in_phase = steps([one.workload for one in jobs], network, (5, 5))
    assert in_phase.jobs[0].length == pytest.approx([3.0] * 5)


@tries(25)
@given(data=st.data())
def test_one_job_repeats_its_step_as_it_is(data):
    network = data.draw(networks(3))
    workload = data.draw(workloads(3))
    alone = simulate(workload, network, with_software)
    assume(alone.makespan > 0)
    found = steps([workload], network, [3], with_software)
    assert found.jobs[0].length == pytest.approx([alone.makespan] * 3, **SAME)
    assert found.jobs[0].length[0] == alone.makespan
    assert found.link_bytes == pytest.approx(3 * alone.link_bytes, rel=1e-12)


def pair_of_jobs(data, ranks=3):
    """Two random jobs on one network, each on ranks of its own."""
    network = data.draw(networks(2 * ranks))
    jobs = [
        moved(data.draw(workloads(ranks)), np.arange(ranks) + ranks * number, 2 * ranks)
        for number in range(2)
    ]
    alone = [simulate(job, network, with_software) for job in jobs]
    assume(min(one.makespan for one in alone) > 0)
    assume(max(one.makespan for one in alone) < 50 * min(one.makespan for one in alone))
    return network, jobs, alone


@tries(25)
@given(data=st.data(), count=st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_bytes_on_every_link_are_those_alone_times_the_steps(data, count):
    network, jobs, alone = pair_of_jobs(data)
    found = steps(jobs, network, count, with_software)
    assert [len(job.length) for job in found.jobs] == list(count)
    moved_alone = sum(one.link_bytes * many for one, many in zip(alone, count, strict=True))
    assert found.link_bytes == pytest.approx(moved_alone, rel=1e-12)


@tries(25)
@given(data=st.data())
def test_one_step_each_is_the_merged_workload(data):
    """Steps that begin together and are done once are one workload of both jobs."""
    network, jobs, _ = pair_of_jobs(data)
    found = steps(jobs, network, (1, 1), with_software)
    whole = simulate(merged(jobs), network, with_software)
    for job, done in zip(jobs, found.jobs, strict=True):
        own = np.isin(whole.workload.rank, job.ranks)
        assert done.length == pytest.approx([whole.end[own].max()], **SAME)


@tries(25)
@given(data=st.data())
def test_jobs_on_disjoint_links_change_nothing(data):
    """As the shared clock rounds: what meets nobody is not even simulated with others."""
    shape = data.draw(st.sampled_from(SYMMETRIC))
    jobs = [moved(data.draw(workloads(3)), np.arange(3) + 3 * number, 6) for number in range(2)]
    network = shape(6)
    alone = [simulate(job, network, with_software) for job in jobs]
    assume(min(one.makespan for one in alone) > 0)
    found = steps(jobs, network, (2, 2), with_software)
    for one, done in zip(alone, found.jobs, strict=True):
        assert done.length == pytest.approx([one.makespan] * 2, **SAME)
        assert sum(lost.sum() for lost in done.lost) == pytest.approx(
            2 * own_loss(one), rel=1e-6, abs=1e-10
        )


def own_loss(alone):
    """What calls of a job lose to each other when it is alone (s)."""
    costs = Costs(alone.topology, with_software)
    job = RepeatedJob("alone", alone.workload, costs, steps=1)
    return repeat_together([job], alone.topology).jobs[0].lost[0].sum()


@given(data=st.data(), mapping=st.permutations(range(6)))
def test_relabelling_ranks_by_a_symmetry_changes_nothing(data, mapping):
    network = data.draw(st.sampled_from(SYMMETRIC))(6)
    jobs = [moved(data.draw(workloads(3)), np.arange(3) + 3 * number, 6) for number in range(2)]
    assume(all(simulate(job, network, with_software).makespan > 0 for job in jobs))
    before = steps(jobs, network, (2, 2), with_software)
    after = steps(
        [moved(job, np.array(mapping), 6) for job in jobs], network, (2, 2), with_software
    )
    for one, other in zip(before.jobs, after.jobs, strict=True):
        assert other.length == pytest.approx(one.length, **SAME)
    assert sorted(after.link_bytes) == pytest.approx(sorted(before.link_bytes), rel=1e-9)


def test_an_idle_third_job_changes_nothing():
    builder = WorkloadBuilder(job_ranks=6)
    builder.op(What.COMPUTE, rank=2, lane="s", name="gemm", duration=0.7)
    two = [sender(0, 3, 2e9, compute=0.3), sender(1, 3, 1e9, compute=0.1)]
    before = steps(two, cable(3), (5, 5))
    after = steps([*two, builder.build()], cable(3), (5, 5, 20))
    for one, other in zip(before.jobs, after.jobs[:2], strict=True):
        assert other.length == pytest.approx(one.length)


def test_a_step_waits_for_the_last_rank_and_keeps_when_ranks_are_ready():
    builder = WorkloadBuilder(job_ranks=2)
    for rank, ready, duration in ((0, 0.0, 1.0), (1, 0.5, 2.0)):
        builder.op(What.COMPUTE, rank=rank, lane="s", name="gemm", duration=duration, ready=ready)
    costs = Costs(switch_network(2), plan)
    job = RepeatedJob("a", builder.build(), costs, begins=0.25, steps=3)
    found = repeat_together([job], switch_network(2), keep=2).jobs[0]
    assert found.length == [2.5] * 3
    assert found.begin == pytest.approx([0.25, 2.75, 5.25])
    assert [times.begin for times in found.kept] == pytest.approx([2.75, 5.25])
    assert found.kept[1].start.tolist() == [0.0, 0.5]


def test_what_cannot_be_repeated_is_refused():
    network = switch_network(4)
    costs = Costs(network, plan)
    builder = WorkloadBuilder(job_ranks=4)
    builder.op(What.HOST, rank=0, lane="main", name="nothing", duration=0.0)
    nothing = RepeatedJob("nothing", builder.build(), costs)
    with pytest.raises(WorkloadError, match="nothing: its step takes no time"):
        repeat_together([nothing], network)
    with pytest.raises(WorkloadError, match="rank 0 is both nothing's and nothing's"):
        repeat_together([nothing, nothing], network)
    with pytest.raises(WorkloadError, match="begins at -1"):
        replace(nothing, begins=-1.0)
    with pytest.raises(WorkloadError, match="write 1 or more"):
        replace(nothing, steps=0)


def test_a_job_that_stands_still_is_named_while_others_go_on():
    builder = WorkloadBuilder(job_ranks=4)
    calls = [builder.call(CallRow("all_reduce", builder.group((0, 1)), n, 1e6)) for n in (0, 1)]
    for rank, order in ((0, calls), (1, calls[::-1])):
        ops = [
            builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
            for call in order
        ]
        builder.edge(*ops)
    network = switch_network(4)
    costs = Costs(network, plan)
    other = WorkloadBuilder(job_ranks=4)
    other.op(What.COMPUTE, rank=3, lane="s", name="gemm", duration=1.0)
    jobs = [RepeatedJob("stuck", builder.build(), costs), RepeatedJob("b", other.build(), costs)]
    with pytest.raises(DeadlockError, match=r"^stuck: nothing can happen"):
        repeat_together(jobs, network)


def test_a_call_that_costs_more_than_modelled_loses_nothing_alone():
    job = sender(0, 1, 1e9)
    found = steps([job.with_calls(factor=np.array([3.0]))], cable(1), (2,))
    assert found.jobs[0].length == pytest.approx([3.0, 3.0])
    assert found.jobs[0].lost[0].tolist() == pytest.approx([0.0])


def test_what_a_job_loses_is_a_mean_over_the_ranks_that_its_ranks_stand_for():
    """Two of four ranks send, beside another job: the others lose nothing."""
    builder = WorkloadBuilder(job_ranks=6)
    call = builder.call(CallRow("send_receive", builder.group((0, 3)), 0, 1e9))
    for rank, what in ((0, What.SEND), (3, What.RECEIVE)):
        builder.op(what, rank=rank, lane="nic", name="message", duration=0.0, call=call)
    builder.op(What.COMPUTE, rank=1, lane="s", name="gemm", duration=0.1)
    costs = Costs(cable(3), plan)
    stands_for = np.array([1.0, 2.0, 0.0, 1.0, 0.0, 0.0])
    jobs = [
        RepeatedJob("a", builder.build(), costs, steps=1, stands_for=stands_for),
        RepeatedJob("b", sender(2, 3, 1e9), costs, steps=1),
    ]
    lost = [job.lost[0].sum() for job in repeat_together(jobs, cable(3)).jobs]
    assert lost == pytest.approx([0.5, 1.0])


def in_a_crowd(jobs, network, count, planner=plan):
    """Lengths of steps of jobs that somebody else drives, the last of which begin together."""
    costs = Costs(network, planner)
    crowd = Crowd(network.bandwidth, network.resource, len(network.resources))
    driven = [
        JobInCrowd(RepeatedJob(f"job {number}", job, costs), network, crowd)
        for number, job in enumerate(jobs)
    ]
    calls = {}
    while any(len(job.lengths) < many for job, many in zip(driven, count, strict=True)):
        first = min(driven, key=lambda job: job.due)
        over = crowd.advance(first.due)
        for number in over:
            job, call = calls.pop(number)
            crowd.forget(number)
            job.finish(call, crowd.time)
        if not over and (begun := first.act()):
            calls[begun[0]] = first, begun[1]
    return [job.lengths for job in driven]


@tries(40)
@given(data=st.data())
def test_a_job_in_a_crowd_takes_the_step_that_it_takes_alone(data):
    network = data.draw(networks(3))
    workload = data.draw(workloads(3))
    alone = simulate(workload, network, with_software)
    assume(alone.makespan > 0)
    (lengths,) = in_a_crowd([workload], network, [3], with_software)
    assert lengths == pytest.approx([alone.makespan] * 3, **SAME)


@tries(40)
@given(data=st.data(), count=st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_jobs_in_a_crowd_take_as_long_as_in_the_compiled_loop(data, count):
    """Two ways through the same model: from call to call in Python, and all in one loop."""
    network, jobs, _ = pair_of_jobs(data)
    lengths = in_a_crowd(jobs, network, count, with_software)
    costs = Costs(network, with_software)
    endless = [RepeatedJob(f"job {number}", job, costs) for number, job in enumerate(jobs)]

    def enough(done):
        return all(len(job.length) >= many for job, many in zip(done, count, strict=True))

    found = repeat_together(endless, network, enough)
    for each, there in zip(lengths, found.jobs, strict=True):
        several = min(len(each), len(there.length))
        assert each[:several] == pytest.approx(there.length[:several], **SAME)


def test_a_message_on_one_link_of_a_ring_delays_the_ring_on_that_link_only():
    """All transfers of a ring are alike until somebody else is on the way of one."""
    hops = [(f"router{a}", f"router{(a + 1) % 4}") for a in range(4)]
    links = [Link(*hop, B, 0.0) for hop in hops]
    for rank, router in enumerate((0, 1, 2, 3, 2, 3)):
        links += [
            Link(rank, f"router{router}", 1e3 * B, 0.0),
            Link(f"router{router}", rank, 1e3 * B, 0.0),
        ]
    network = topology("ring of routers", 6, links)
    builder = WorkloadBuilder(job_ranks=6)
    call = builder.call(CallRow("all_gather", builder.group((0, 1, 2, 3)), 0, 4e9))
    for rank in range(4):
        builder.op(What.COLLECTIVE, rank=rank, lane="s", name="ring", duration=0.0, call=call)
    message = WorkloadBuilder(job_ranks=6)
    sent = message.call(CallRow("send_receive", message.group((4, 5)), 0, 1e9))
    for rank, what in ((4, What.SEND), (5, What.RECEIVE)):
        message.op(what, rank=rank, lane="nic", name="message", duration=0.0, call=sent)
    jobs = [builder.build(), message.build()]
    lengths = in_a_crowd(jobs, network, (1, 1))
    found = steps(jobs, network, (1, 9))
    assert lengths[0] == pytest.approx(found.jobs[0].length, **SAME)
    assert lengths[0][0] > 1.5 * simulate(jobs[0], network, plan).makespan
