"""The host: synchronising calls, blocking copies, threads that wake one another."""

from pathlib import Path

import pytest

from helpers.link_tapes import Tape, replay

EXACT = pytest.approx


def synchronized(name: str, *, returns: float = 210) -> Tape:
    tape = Tape()
    tape.launch(0, 7, 5, 200, "work")
    tape.call(name, 20, returns - 20)
    tape.launch(returns + 40, 7, returns + 45, 50, "next")
    return tape


@pytest.mark.parametrize(
    "name",
    [
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "hipDeviceSynchronize",
        "hipStreamSynchronize",
        "hipEventSynchronize",
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuEventSynchronize",
    ],
)
def test_the_host_waits_for_the_device(tmp_path: Path, name: str) -> None:
    path = synchronized(name).write(tmp_path)
    assert replay(path).step == EXACT(305)
    assert replay(path, compute=2).step == EXACT(5 + 100 + 5 + 40 + 5 + 25)
    assert replay(path, compute=0.5).step == EXACT(5 + 400 + 5 + 40 + 5 + 100)
    assert replay(path, host=2).step == EXACT(2.5 + 200 + 2.5 + 20 + 2.5 + 50)


def test_a_query_does_not_block(tmp_path: Path) -> None:
    tape = synchronized("cudaEventQuery")
    tape.sync("Event Sync", 20, 190, stream=7, device=0, correlation=2)
    assert replay(tape.write(tmp_path), compute=2).step == EXACT(255 + 25)


def test_a_record_tells_which_stream_was_waited_for(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 100, "waited for")
    tape.launch(10, 20, 15, 188, "beside")
    sync = tape.call("cudaStreamSynchronize", 20, 185)
    tape.sync("Stream Sync", 20, 185, stream=7, device=0, correlation=sync)
    tape.launch(250, 7, 255, 10, "next")
    edges = replay(tape.write(tmp_path)).edges()
    assert ("waited for", "cudaStreamSynchronize") in edges
    assert ("beside", "cudaStreamSynchronize") not in edges


def test_an_event_is_waited_for_only_up_to_where_it_was_recorded(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 100, "before")
    record = tape.call("cudaEventRecord", 5)
    tape.launch(10, 7, 105, 300, "behind")
    sync = tape.call("cudaEventSynchronize", 20, 90)
    told = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": record}
    tape.sync("Event Sync", 20, 90, stream=-1, device=0, correlation=sync, **told)
    tape.launch(150, 20, 155, 10, "next")
    edges = replay(tape.write(tmp_path)).edges()
    assert ("before", "cudaEventSynchronize") in edges
    assert ("behind", "cudaEventSynchronize") not in edges


@pytest.mark.parametrize("blocked", [True, False])
def test_item_makes_the_host_wait_for_the_device(tmp_path: Path, blocked: bool) -> None:
    """Even where the copy was over before the call, slower compute would have made it wait."""
    work = 200 if blocked else 10
    done = 207 if blocked else 32
    tape = Tape()
    tape.launch(0, 7, 5, work, "work")
    tape.launch(20, 7, max(5 + work, 25), 1, "Memcpy DtoH (Device -> Pinned)")
    tape.call("cudaStreamSynchronize", 24 if blocked else 30, done - (24 if blocked else 30))
    tape.launch(done + 40, 7, done + 45, 50, "next")
    path = tape.write(tmp_path)
    assert replay(path).starts("next") == EXACT([done + 45])
    slow = replay(path, compute=0.05)
    assert slow.starts("next")[0] == EXACT(5 + 20 * work + 1 + 45, abs=5)


def test_a_pageable_copy_that_outlasts_its_call_does_not_block(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 200, "work")
    tape.launch(10, 7, 205, 3, "Memcpy HtoD (Pageable -> Device)")
    tape.launch(60, 7, 209, 50, "next")
    edges = replay(tape.write(tmp_path)).edges()
    assert ("Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync") not in edges


def test_a_copy_from_pageable_memory_blocks(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 200, "work")
    copy = tape.call("cudaMemcpyAsync", 10, 200)
    tape.kernel(copy, 7, 205, 3, "Memcpy DtoH (Device -> Pageable)")
    tape.launch(240, 7, 245, 50, "next")
    assert replay(tape.write(tmp_path)).step == EXACT(295)
    assert replay(tape.write(tmp_path), compute=2).step == EXACT(295 - 100 - 25)


def test_a_copy_to_pinned_memory_does_not(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 200, "work")
    tape.launch(10, 7, 205, 3, "Memcpy DtoH (Device -> Pinned)")
    tape.launch(240, 7, 245, 50, "next")
    assert replay(tape.write(tmp_path), compute=2).step == EXACT(245 + 25)


def autograd(tmp_path: Path) -> Path:
    """Forward on the main thread, backward on autograd's while the main thread sleeps."""
    tape = Tape()
    for number in range(10):
        tape.host("aten::mm", 50 * number, 40)
        tape.launch(50 * number + 10, 7, 50 * number + 15, 5, "forward")
    for number in range(20):
        tape.host("autograd::mm", 520 + 50 * number, 40, thread=2)
        tape.launch(530 + 50 * number, 7, 535 + 50 * number, 5, "backward", thread=2)
    for number in range(5):
        tape.host("optimizer", 1540 + 50 * number, 40)
        tape.launch(1550 + 50 * number, 7, 1555 + 50 * number, 5, "step")
    return tape.write(tmp_path)


def test_autograd_takes_over_and_hands_back(tmp_path: Path) -> None:
    path = autograd(tmp_path)
    base = replay(path)
    assert base.step == EXACT(base.measured) == EXACT(1780)
    assert replay(path, host=2).step == EXACT(890, rel=0.01)
    assert replay(path, host=2).starts("backward")[0] == EXACT(267.5, abs=2)
    assert replay(path, host=0.5).starts("step")[0] == EXACT(3110, abs=5)


def test_a_record_after_the_call_is_not_waited_for(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 100, "before")
    sync = tape.call("cudaEventSynchronize", 20, 90)
    tape.launch(115, 7, 105, 3, "stamped early")
    record = tape.call("cudaEventRecord", 118)
    told = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": record}
    tape.sync("Event Sync", 20, 90, stream=-1, device=0, correlation=sync, **told)
    edges = replay(tape.write(tmp_path)).edges()
    assert ("before", "cudaEventSynchronize") in edges
    assert ("stamped early", "cudaEventSynchronize") not in edges


def gloo(folder: Path, *, late_close: float = 0.0, early: float = 0.0) -> Path:
    """Two calls queued to one worker; the caller sleeps until each is done."""
    tape = Tape(0, 2)
    fields = {"Input Dims": [[1024]], "Input type": ["float"]}
    for number in range(2):
        tape.host("aten::mm", 100 * number, 90)
        tape.host("c10d::allreduce_", 90 + 100 * number, 10, **fields)
    for number in range(2):
        begin = 120 + 500 * number - early
        tape.note("gloo:all_reduce", begin, 500 + late_close * number, thread=9, **fields)
    tape.host("aten::add", 1130 - early, 50)
    return tape.write(folder)


def test_gloo_works_off_its_queue_and_wakes_its_caller(tmp_path: Path) -> None:
    path = gloo(tmp_path)
    found = replay(path)
    assert found.step == EXACT(1180)
    assert found.edges()["gloo:all_reduce", "gloo:all_reduce"] == EXACT(0)
    assert replay(path, network=2).starts("wait for gloo:all_reduce")[-1] == EXACT(620, abs=2)


def test_work_that_closes_late_is_over_when_its_caller_resumes(tmp_path: Path) -> None:
    assert replay(gloo(tmp_path, late_close=300)).step == EXACT(1180, abs=1)


def test_work_that_begins_before_its_call_is_survived(tmp_path: Path) -> None:
    assert replay(gloo(tmp_path, early=200)).step == EXACT(980, rel=0.3)


@pytest.mark.parametrize("name", ["cudaMemcpy", "hipMemcpyWithStream", "cuMemcpyDtoH_v2"])
def test_a_copy_that_blocks_by_its_name_is_waited_for(tmp_path: Path, name: str) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 200, "work")
    copy = tape.call(name, 10, 200)
    tape.kernel(copy, 7, 205, 3, "Memcpy DtoH (Device -> Pinned)")
    tape.launch(240, 7, 245, 50, "next")
    assert replay(tape.write(tmp_path), compute=2).step == EXACT(295 - 100 - 25)


def polled(*, every: float = 20, until: float = 230, query: str = "cudaEventQuery") -> Tape:
    """A kernel that ends at 205, asked for until it has."""
    tape = Tape()
    tape.launch(0, 7, 5, 200, "work")
    at = 20.0
    while at < until:
        tape.call(query, at, 2)
        at += every
    tape.launch(until + 40, 7, until + 45, 50, "next")
    return tape


@pytest.mark.parametrize("query", ["cudaEventQuery", "hipEventQuery", "cudaStreamQuery"])
def test_a_loop_of_queries_waits(tmp_path: Path, query: str) -> None:
    path = polled(query=query).write(tmp_path)
    found = replay(path)
    assert found.step == EXACT(325)
    assert ("work", query) in found.edges()
    assert replay(path, compute=2).step == EXACT(325 - 100 - 25, abs=1)


def test_a_loop_that_ends_while_nothing_does_is_host_time(tmp_path: Path) -> None:
    for until in (150, 400):
        path = polled(until=until).write(tmp_path)
        assert ("work", "cudaEventQuery") not in replay(path).edges()


def test_a_few_queries_of_an_allocator_are_host_time(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 204.5, "work")
    for number in range(10):
        tape.call("cudaEventQuery", 200 + number, 1)
    tape.launch(240, 7, 245, 50, "next")
    assert ("work", "cudaEventQuery") not in replay(tape.write(tmp_path)).edges()


def spinning(
    lengths: list[float],
    *,
    kernel: str = "count_tokens",
    react: float | list[float] = 4,
    idle: float = 0.0,
) -> Tape:
    """A thread that goes on ``react`` us after each kernel, or as much later as ``idle``."""
    tape = Tape()
    now = 0.0
    reacts = react if isinstance(react, list) else [react] * len(lengths)
    for length, after in zip(lengths, reacts, strict=True):
        tape.launch(now, 7, now + 5, length, kernel)
        now += 5 + length + after + idle
        tape.host("aten::empty", now, 5)
        now += 10
        tape.launch(now, 7, now + 5, 50, "dispatch")
        now += 100
    return tape


SPINS = [400.0, 250.0, 700.0, 320.0, 510.0]


def test_a_host_that_goes_on_as_a_kernel_ends_again_and_again_spins_for_it(tmp_path: Path) -> None:
    """DeepEP reads mapped memory until the kernel has written how many tokens arrive."""
    path = spinning(SPINS).write(tmp_path)
    found = replay(path)
    assert ("count_tokens", "spin") in found.edges()
    assert found.step == EXACT(found.measured)
    rest = found.step - sum(SPINS)
    assert replay(path, compute=2).step == EXACT(sum(SPINS) / 2 + rest, abs=26)
    assert replay(path, host=2).step == EXACT(sum(SPINS) + rest / 2, abs=51)


@pytest.mark.parametrize("length", [400.0, 60.0])
def test_a_spin_for_notify_dispatch_needs_no_second_one(tmp_path: Path, length: float) -> None:
    kernel = "void dpsk::ep::internode::notify_dispatch<false, 4>(int const*, int*)"
    edges = replay(spinning([length], kernel=kernel).write(tmp_path)).edges()
    assert (kernel, "spin") in edges
    cached = kernel.replace("notify", "cached_notify")
    assert not {
        target for _, target in replay(spinning([400.0], kernel=cached).write(tmp_path)).edges()
    } & {"spin"}


@pytest.mark.parametrize(
    "kernel", ["count_tokens", "void deep_ep::internode::notify_dispatch<false, 8>(int*)"]
)
def test_a_kernel_goes_on_when_it_has_written_what_the_host_waits_for(
    tmp_path: Path, kernel: str
) -> None:
    """DeepEP's clears buffers for 20 to 70 us behind the counts: the host is long gone by then."""
    early = 55.0
    path = spinning(SPINS, kernel=kernel, react=-early).write(tmp_path)
    found = replay(path)
    assert (kernel, "spin") in found.edges()
    assert found.step == EXACT(found.measured)
    held = found.loaded.workload
    of_kernel = [op for op, name in enumerate(held.name) if held.names[name] == kernel]
    assert sum(held.duration[of_kernel]) == EXACT(sum(SPINS) * 1e-6, rel=1e-9) or "void" in kernel
    if kernel == "count_tokens":
        faster = replay(path, compute=2).step
        assert faster == EXACT(found.step - (sum(SPINS) - early * len(SPINS)) / 2, abs=60)
        hosts = replay(path, host=2).step
        assert hosts >= sum(SPINS) - early * len(SPINS)


@pytest.mark.parametrize(("length", "spins"), [(3500.0, True), (1500.0, False)])
def test_a_few_long_silences_that_end_just_before_their_kernels_are_spins(
    tmp_path: Path, length: float, spins: bool
) -> None:
    """As far before as a 25th of their length: within that chance does not end all of them."""
    tape = spinning([length, 0.97 * length, 1.02 * length], react=[-25.0, -68.0, -110.0])
    assert (("count_tokens", "spin") in replay(tape.write(tmp_path)).edges()) == spins


@pytest.mark.parametrize(
    ("lengths", "idle"),
    [(SPINS[:2], 0.0), (SPINS, 60.0), ([40.0, 30.0, 50.0, 60.0], 0.0)],
    ids=["twice only", "long after", "short"],
)
def test_silence_that_may_be_anything_is_no_spin(
    tmp_path: Path, lengths: list[float], idle: float
) -> None:
    edges = replay(spinning(lengths, idle=idle).write(tmp_path)).edges()
    assert "spin" not in {target for _, target in edges}


def test_a_thread_that_is_as_regular_as_its_kernels_waits_for_none(tmp_path: Path) -> None:
    """They end together by chance: the thread goes on as always, the kernels differ a little."""
    tape = Tape()
    for turn, length in enumerate((398.0, 404.0, 401.0, 395.0, 403.0)):
        tape.launch(520 * turn, 7, 520 * turn + 5, length, "gemm")
        tape.host("aten::empty", 520 * turn + 412, 5)
    assert "spin" not in {target for _, target in replay(tape.write(tmp_path)).edges()}


def test_a_thread_that_once_launched_before_the_end_does_not_wait(tmp_path: Path) -> None:
    tape = spinning(SPINS)
    end = 3000.0
    tape.launch(end, 7, end + 5, 400, "count_tokens")
    tape.launch(end + 20, 7, end + 406, 10, "next")
    assert "spin" not in {target for _, target in replay(tape.write(tmp_path)).edges()}


@pytest.mark.parametrize("lasted", [12.0, 130.0])
def test_a_spin_is_told_wherever_in_its_kernel_it_ends(tmp_path: Path, lasted: float) -> None:
    """The kernel writes ``lasted`` us after its begin, and goes on for long: no end tells it."""
    tape, now, free = Tape(), 0.0, 0.0
    for work, length in zip((900.0, 300.0, 1500.0, 600.0, 1200.0), SPINS, strict=True):
        tape.launch(now, 7, max(free, now + 5), work, "gemm")
        start = max(free, now + 5) + work + 1
        tape.launch(now + 10, 7, start, length, "exchange_counts")
        free = start + length
        now = start + lasted + 4
        tape.host("aten::empty", now, 5)
        now += 10
    tape.launch(now, 7, max(free, now + 5), 50, "last")
    edges = replay(tape.write(tmp_path)).edges()
    assert ("exchange_counts", "spin") in edges


def worked_after(*, waits: bool, lengths: list[float]) -> Tape:
    """A thread that is silent behind each ``flag``, of ``lengths`` (us) behind work that differs.

    It ``waits`` for the flag and then works for 60 us, or works 1.5 times as long as the flag runs.
    """
    tape, now = Tape(), 0.0
    works = (900.0, 300.0, 1500.0, 600.0, 1200.0, 450.0)
    for turn, (work, length) in enumerate(zip(works, lengths, strict=True)):
        start = now + 5
        if waits:
            tape.launch(now, 7, start, work, "gemm")
            start += work + 1
        tape.launch(now + 10, 7, start + 10 * (not waits), length, "flag")
        done = start + length
        now = done + 60 + turn % 3 if waits else now + 300 + 1.5 * length
    tape.launch(now, 7, now + 5, 50, "last")
    return tape


def test_a_thread_that_works_equally_long_after_each_wait_has_waited(tmp_path: Path) -> None:
    """As a router does that reads its tokens' counts and then decides on the host."""
    path = worked_after(waits=True, lengths=[2.0] * 6).write(tmp_path)
    found = replay(path)
    assert ("flag", "spin") in found.edges()
    assert found.step == EXACT(found.measured)
    work = 4950 + 12.0
    assert replay(path, compute=2).step == EXACT(found.step - work / 2, rel=0.02)
    assert replay(path, host=2).step == EXACT(found.step - 6 * 30, rel=0.02)


def test_longer_kernels_with_more_to_do_on_the_host_are_no_spins(tmp_path: Path) -> None:
    """Larger layers have both; a thread that waits for nothing is as long beside like kernels."""
    tape = worked_after(waits=False, lengths=[120.0, 300.0, 120.0, 300.0, 120.0, 300.0])
    assert "spin" not in {target for _, target in replay(tape.write(tmp_path)).edges()}


def served(*, kernels: int = 10, lasts: float = 150.0, host: float = 100.0) -> Tape:
    """Steps that are launched while the one before runs, whose tokens are then waited for."""
    tape, now, free, copied = Tape(), 0.0, 0.0, 0.0
    for number in range(1, 6):
        begin = now
        for _ in range(kernels):
            start = max(now + 5, free)
            tape.launch(now, 7, start, lasts)
            free, now = start + lasts, now + host
        tape.launch(now, 7, free + 1, 2, "Memcpy DtoH (Device -> Pinned)")
        now += 10
        if number > 1:
            back = max(now + 3, copied + 4)
            tape.call("cudaEventSynchronize", now, back - now)
            now = back
        copied = free = free + 3
        now += 200
        tape.step(number, begin, now - begin)
        now += 5
    return tape


def test_a_server_waits_for_the_step_before_and_no_longer_on_faster_devices(tmp_path: Path) -> None:
    """Devices four times as fast: the host's own time limits the step."""
    path = served().write(tmp_path)
    found = replay(path, repeats=True)
    assert found.step == EXACT(found.measured, rel=0.01)
    assert found.step == EXACT(10 * 150, rel=0.03)
    host = 10 * 100 + 10 + 200 + 5
    assert replay(path, compute=4, repeats=True).step == EXACT(host, rel=0.03)
    assert replay(path, host=4, repeats=True).step == EXACT(found.step, rel=0.01)
    assert replay(path, host=4, compute=4, repeats=True).step == EXACT(found.step / 4, rel=0.05)


LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def starved(name: str, *, batch: float = 5000.0, computes: float = 3000.0) -> Tape:
    """Steps that wait for a batch and then compute."""
    tape, now, arrival = Tape(), 0.0, 2500.0
    for number in range(1, 5):
        begin = now
        arrival = max(arrival + batch if number > 1 else arrival, now + 100)
        tape.note(name, now + 10, arrival - now - 10)
        now = arrival + 40
        tape.launch(now, 7, now + 5, computes)
        tape.call("cudaDeviceSynchronize", now + 20, computes)
        now += computes + 20
        tape.step(number, begin, now - begin)
        now += 10
    return tape


def test_nothing_but_the_loader_shortens_a_step_that_waits_for_it(tmp_path: Path) -> None:
    path = starved(LOADER).write(tmp_path)
    found = replay(path, repeats=True)
    assert found.step == EXACT(5000, rel=0.01)
    assert replay(path, compute=4, host=4, repeats=True).step == EXACT(5000, rel=0.01)
    assert replay(path, compute=0.5, repeats=True).step == EXACT(6000 + 70, rel=0.02)
    for step in ("median", "all"):  # and a step alone begins when it did
        alone = replay(path, step=step)
        assert alone.step == EXACT(alone.measured)


def test_of_a_loader_that_nobody_waits_for_it_is_said_that_its_speed_is_unknown(
    tmp_path: Path,
) -> None:
    ahead = replay(starved(LOADER, batch=10.0).write(tmp_path), step="4").loaded.coverage.notes
    assert any("a data loader kept up" in note for note in ahead)
    waited = replay(starved(LOADER).write(tmp_path), step="4").loaded.coverage.notes
    assert not any("a data loader kept up" in note for note in waited)


def test_a_loader_without_workers_is_host_code(tmp_path: Path) -> None:
    path = starved(LOADER.replace("MultiProcessing", "SingleProcess")).write(tmp_path)
    assert replay(path, host=4, repeats=True).step < 0.75 * replay(path, repeats=True).step


def queued(depth: int, *, kernels: int = 400, room: bool = True) -> Tape:
    """A thread that launches every 6 us kernels of 50 us, and waits while ``depth`` are ahead.

    Without ``room`` it has the same pauses, of no reason, and goes on when as many more are ahead.
    """
    tape, now, ends = Tape(), 0.0, []
    for number in range(kernels):
        lasts = 4.0
        if number >= depth:
            free = ends[number - depth] + 2 if room else now + 40 + 9 * (number % 5)
            lasts = max(4.0, free - now)
        start = max(ends[-1] if ends else 0.0, now + lasts + 2)
        tape.kernel(tape.call("cudaLaunchKernel", now, lasts), 7, start, 50)
        ends.append(start + 50)
        now += lasts + 2
    return tape


def test_a_launch_that_waits_for_room_in_a_full_queue_is_no_host_time(tmp_path: Path) -> None:
    """400 kernels of 50 us; the host would be through all of them in 2.4 ms."""
    found = replay(queued(128).write(tmp_path))
    assert found.step == EXACT(found.measured, rel=1e-3)
    assert replay(queued(128).write(tmp_path), compute=4).step == EXACT(400 * 12.5, rel=0.02)
    assert replay(queued(128).write(tmp_path), host=2).step == EXACT(found.step, rel=1e-3)


def test_long_launches_with_ever_more_ahead_are_host_time(tmp_path: Path) -> None:
    held = replay(queued(128, room=False).write(tmp_path))
    names = {(source, target) for source, target in held.edges() if target == "cudaLaunchKernel"}
    assert not {source for source, _ in names} & {"gemm"}


def test_a_call_that_returns_when_the_device_has_done_all_has_waited(tmp_path: Path) -> None:
    tape = Tape()
    for turn in range(6):
        tape.call("cudaFree", 20 + 8 * turn, 4)
    tape.launch(100, 7, 105, 900, "gemm")
    tape.call("cudaFree", 120, 890)
    tape.launch(1020, 7, 1025, 50, "next")
    path = tape.write(tmp_path)
    assert ("gemm", "cudaFree") in replay(path).edges()
    assert replay(path, compute=2).step < 0.6 * replay(path).step
