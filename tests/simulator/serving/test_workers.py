"""Laws of several workers: prefix caches, routers, ranks that step together, caches handed on."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from simulator.serving.loop import ROUTERS, SEND, SERVED, STUCK, close, deliver, serve_requests
from simulator.serving.schedulers import FREE, KEPT, PREEMPTIONS, SCHEDULERS, Columns, Rules
from simulator.serving.state import Client, Fleet, Host, Pool, Prefixes, run_state
from simulator.serving.surface import IterationSurface
from simulator.support.arrays import offsets

NO_HOST = Host(0.0, 0.0, 1.0, 0.0, 0.0)
UNIT = 8


def surface(step: float = 1.0, per_token: float = 0.0) -> IterationSurface:
    tokens = step + per_token * np.arange(8193.0)
    zero = np.full((5, 40), 1e-300)
    none = np.zeros(0)
    return IterationSurface(
        tokens, tokens, np.zeros(2049), zero, zero, zero.copy(), zero.copy(), none, none
    )


def pool(workers: int = 1, *, width: int = 1, per_token: float = 0.0, **changes: int) -> Pool:
    usual = {
        **{"scheduler": SCHEDULERS["vllm"], "tokens": 512, "sequences": 8, "chunked": 1},
        **{"reserve": 1, "block": 4, "blocks": 1000, "drafts": 0, "accepted": 1.0},
        **{
            "unit": UNIT,
            "merges": 0,
            "padded": 0,
            "pads_chunks": 0,
            "host_units": 0,
            "patience": 0.0,
        },
    }
    return Pool(workers, width, Rules(**(usual | changes)), surface(1.0, per_token), NO_HOST, 1)


def columns(
    arrival: list[float], prompt: list[int], output: list[int], session: list[int] | None = None
) -> Columns:
    ints = [np.array(each, dtype=np.int64) for each in (prompt, output)]
    sessions = np.array(session or [-1] * len(prompt), dtype=np.int64)
    return Columns(np.array(arrival, dtype=float), *ints, sessions)


def prefixes(names: list[list[int]]) -> Prefixes:
    flat = np.array([name for row in names for name in row], dtype=np.int64)
    return Prefixes(offsets([len(row) for row in names]), flat)


def run(  # noqa: PLR0913 - what a run may have
    requests: Columns,
    first: Pool,
    *,
    second: Pool | None = None,
    router: str = "least-load",
    names: list[list[int]] | None = None,
    delay: float = 0.0,
    down: Sequence[tuple[int, int, float]] = (),
):
    """Serve; what one pool hands on to another is there ``delay`` s later, or in a moment."""
    fleet = Fleet(first, second or first._replace(workers=0), ROUTERS[router])
    state = run_state(
        requests, fleet, Client(0, 1, 1, 0), None if names is None else prefixes(names), down
    )
    coming: list[tuple[float, int]] = []
    while True:
        until = coming[0][0] if coming else np.inf
        reason = serve_requests(state, fleet.surfaces, until, 2**40)
        if reason in (SERVED, STUCK):
            break
        if reason == SEND:
            sent = state.sends[: state.sums["sends"][0]].tolist()
            coming = sorted(coming + [(state.sums["now"][0] + delay, request) for request in sent])
            state.sums["sends"][0] = 0
        while coming and coming[0][0] <= state.sums["now"][0]:
            deliver(state, coming.pop(0)[1])
    close(state)
    return state


families = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.integers(1, 60),
        st.integers(1, 12),
        st.integers(0, 2),
        st.integers(0, 7),
    ),
    min_size=1,
    max_size=25,
)


@given(
    families,
    st.sampled_from(["vllm", "sglang", "trtllm", "sarathi"]),
    st.sampled_from(sorted(ROUTERS)),
    st.integers(1, 3),
    st.integers(18, 60),
    st.integers(1, 3),
)
def test_blocks_and_tokens_are_conserved_with_caches(
    load, scheduler, router, workers, blocks, stages
):
    """Prompts of a family share their first blocks: each block is freed once, each token is made
    once, and what is found in a cache is never a whole prompt."""
    gaps, prompt, output, family, common = zip(*load, strict=True)
    names = [
        [
            1000 * family[i] + k if k < common[i] else 10_000 + 100 * i + k
            for k in range(prompt[i] // UNIT)
        ]
        for i in range(len(load))
    ]
    numbers = {name: number for number, name in enumerate(sorted({n for r in names for n in r}))}
    requests = columns(np.cumsum(gaps).tolist(), list(prompt), list(output), list(family))
    by = pool(
        workers,
        scheduler=SCHEDULERS[scheduler],
        merges=int(scheduler != "vllm"),
        tokens=64,
        blocks=blocks,
        per_token=0.01,
    )._replace(stages=stages)
    state = run(requests, by, router=router, names=[[numbers[n] for n in row] for row in names])
    assert not state.sums["stuck"][0]
    assert (state.states["batch"] == 0).all()
    assert (state.states["generated"] == requests.output).all()
    assert (state.counters[:, FREE] == blocks).all()
    assert (state.states["blocks"] == 0).all()
    assert state.sums["peak_blocks"][0] <= blocks
    assert (state.states["found"] < requests.prompt).all()
    nodes = state.caches.nodes
    assert np.isin(nodes["references"], (-1, 0)).all()
    kept = ((nodes["references"] == 0) * (UNIT // 4) + nodes["loose"]).sum(axis=1)
    assert (state.counters[:, KEPT] == kept).all()
    assert (kept <= blocks).all()
    if not state.sums["preemptions"][0]:
        computed = requests.prompt.sum() + (requests.output - 1).sum()
        assert state.sums["computed_tokens"][0] == computed - state.states["found"].sum()


@given(families)
def test_a_cache_makes_no_first_token_later_at_a_low_rate(load):
    """One request at a time, first come first served: found tokens need not be computed."""
    _, prompt, output, family, _ = zip(*load, strict=True)
    requests = columns([1000.0 * i for i in range(len(load))], list(prompt), list(output))
    names = [[8 * family[i] + k for k in range(prompt[i] // UNIT)] for i in range(len(load))]
    waits = []
    for unit in (0, UNIT):
        state = run(requests, pool(unit=unit, per_token=0.1), names=names)
        waits.append((state.states["first"] - state.states["arrived"]).mean())
    assert waits[1] <= waits[0] + 1e-9


def test_the_beginning_of_a_prompt_lives_longest():
    """vLLM frees blocks last first: of 3 units in a cache of 3, what is new takes the last."""
    requests = columns([0.0, 100.0, 200.0], [24, 4, 24], [1, 1, 1])
    names = [[0, 1, 2], [], [0, 1, 2]]
    state = run(requests, pool(blocks=7), names=names)
    # One block more was free: the second request takes it, and the third finds all but a block.
    assert state.states["found"][2] == 20
    state = run(columns([0.0, 100.0, 200.0], [24, 8, 24], [1, 1, 1]), pool(blocks=7), names=names)
    assert state.states["found"][2] == 16


@pytest.mark.parametrize(
    ("router", "expected"),
    [("round-robin", [0, 1, 0, 1]), ("session", [0, 1, 1, 0]), ("prefix", [0, 1, 1, 0])],
)
def test_routers_send_requests_where_they_should(router, expected):
    """Two conversations, whose second requests come in the other order."""
    requests = columns([0.0, 0.5, 500.0, 500.5], [64] * 4, [4] * 4, [0, 1, 1, 0])
    names = [[0] * 8, [1] * 8, [1] * 8, [0] * 8]
    names = [[8 * row[0] + k for k in range(8)] for row in names]
    state = run(requests, pool(2), router=router, names=names)
    assert state.states["worker"].tolist() == expected


@pytest.mark.parametrize("scheduler", ["vllm", "sglang", "trtllm"])
def test_a_pipeline_of_stages_serves_as_many_batches_at_once(scheduler):
    """Batches of one request of p stages leave every 1/p s once it is full, each 1 s in it."""
    requests = columns([0.0] * 4, [8] * 4, [50] * 4)
    of_one = pool(scheduler=SCHEDULERS[scheduler], tokens=8, sequences=4, unit=0)
    alone = run(columns([0.0], [8], [50]), of_one._replace(stages=4))
    assert alone.states["last"].tolist() == pytest.approx([50.0])
    piped = run(requests, of_one._replace(stages=4))
    assert np.sort(piped.states["first"]) == pytest.approx([1.0, 1.25, 1.5, 1.75])
    assert np.sort(piped.states["last"]) == pytest.approx([50.0, 50.25, 50.5, 50.75])
    assert piped.sums["decode_time"][0] + piped.sums["prefill_time"][0] == pytest.approx(50.0)
    begin, end = (piped.log[name][:200] for name in ("begin", "end"))
    in_flight = [(begin <= now).sum() - (end <= now).sum() for now in begin]
    assert max(in_flight) == 4


def test_ranks_of_an_instance_step_together():
    """The rank with a decode waits in each iteration for the one that reads a prompt."""
    requests = columns([0.0, 1.0], [1, 400], [6, 1])
    alone, together = (
        run(requests, pool(2, width=width, unit=0, per_token=0.01)).states["last"][0]
        for width in (1, 2)
    )
    assert alone == pytest.approx(6 * 1.01)
    assert together == pytest.approx(alone + 399 * 0.01)


def test_ranks_read_prompts_at_once_or_after_so_many_iterations():
    """The third waits for the fifth iteration; with a fourth on the other rank it need not."""
    both = columns([0.0, 0.0, 2.5, 2.5], [1] * 4, [20, 20, 5, 5])
    alone = columns([0.0, 0.0, 2.5], [1] * 3, [20, 20, 5])
    by = pool(2, width=2, unit=0, scheduler=SCHEDULERS["trtllm"], balance=5)
    assert run(alone, by).states["scheduled"].tolist() == [0.0, 0.0, 5.0]
    assert run(both, by).states["scheduled"].tolist() == [0.0, 0.0, 3.0, 3.0]
    free = pool(2, width=2, unit=0, scheduler=SCHEDULERS["trtllm"])
    assert run(alone, free).states["scheduled"].tolist() == [0.0, 0.0, 3.0]


def test_prompts_wait_for_more_of_them_or_for_so_many_iterations():
    """The second waits while the first decodes; two together fill the batch, and do not."""
    by = pool(1, unit=0, scheduler=SCHEDULERS["trtllm"], waits=5, fills=8.0)
    alone = columns([0.0, 2.5], [1, 4], [20, 5])
    assert run(alone, by).states["scheduled"].tolist() == [0.0, 8.0]
    both = columns([0.0, 2.5, 4.5], [1, 4, 3], [20, 5, 5])
    assert run(both, by).states["scheduled"].tolist() == [0.0, 5.0, 5.0]
    idle = columns([0.0, 2.5], [1, 4], [1, 5])
    assert run(idle, by).states["scheduled"].tolist() == [0.0, 2.5]
    free = pool(1, unit=0, scheduler=SCHEDULERS["trtllm"])
    assert run(alone, free).states["scheduled"].tolist() == [0.0, 3.0]


@given(families, st.sampled_from(["vllm", "sglang", "trtllm"]), st.integers(18, 60))
def test_what_one_pool_reads_another_decodes(load, scheduler, blocks):
    """Blocks of both pools are freed once, and no token is seen before its cache has come."""
    gaps, prompt, output, _, _ = zip(*load, strict=True)
    requests = columns(np.cumsum(gaps).tolist(), list(prompt), list(output))
    by = pool(2, scheduler=SCHEDULERS[scheduler], unit=0, blocks=blocks, tokens=64)
    state = run(requests, by, second=by._replace(workers=1), delay=0.25)
    assert not state.sums["stuck"][0]
    assert (state.states["generated"] == requests.output).all()
    assert (state.counters[:, FREE] == blocks).all()
    several = requests.output > 1
    assert (
        state.states["first"][several] >= state.states["scheduled"][several] + 2.25 - 1e-9
    ).all()
    assert (state.states["first"][~several] <= state.states["last"][~several]).all()


def test_what_ranks_do_together_takes_the_tokens_of_all():
    """One rank reads 400 tokens, another none: half of them a rank in the mean; where a graph is
    replayed, padded to all."""
    together = 0.01 * np.arange(8193.0)
    requests = columns([0.0], [400], [1])
    ends = []
    for padded, chunks in ((0, 1), (399, 1), (400, 0), (400, 1)):
        graphs = {"padded": padded, "pads_chunks": chunks}
        by = pool(2, width=2, unit=0, per_token=0.01, **graphs)
        by = by._replace(surface=by.surface._replace(shared=together, shared_eager=together))
        ends.append(run(requests, by).states["last"][0])
    assert ends == pytest.approx([1.0 + 2.0, 1.0 + 2.0, 1.0 + 2.0, 1.0 + 4.0])


def outages(*rows: tuple[float, int, float]) -> list[tuple[int, int, float]]:
    """Make a table of instances that are down from a time to another."""
    return [(who, 1, begin) for begin, who, _ in rows] + [(who, 0, end) for _, who, end in rows]


@pytest.mark.parametrize(("workers", "end"), [(1, 13.0), (2, 3.5)])
def test_what_an_instance_had_begun_begins_anew_elsewhere_or_when_it_is_back(workers, end):
    """Three iterations of 1 s; its instance fails after half of one and is back after 10 s."""
    state = run(columns([0.0], [8], [3]), pool(workers, unit=0), down=outages((0.5, 0, 10.0)))
    assert state.states["last"][0] == pytest.approx(end)
    assert state.sums["restarted"][0] == 1


@given(
    families,
    st.sampled_from(["vllm", "sglang", "trtllm"]),
    st.sampled_from(sorted(ROUTERS)),
    st.integers(1, 3),
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 2), st.floats(0.1, 20)), max_size=3),
)
def test_no_request_and_no_block_is_lost_with_instances_that_fail(
    load, scheduler, router, workers, failures
):
    gaps, prompt, output, family, _ = zip(*load, strict=True)
    names = [[100 * family[i] + k for k in range(prompt[i] // UNIT)] for i in range(len(load))]
    numbers = {name: number for number, name in enumerate(sorted({n for r in names for n in r}))}
    requests = columns(np.cumsum(gaps).tolist(), list(prompt), list(output), list(family))
    first = {who: (begin, who, begin + long) for begin, who, long in failures if who < workers}
    state = run(
        requests,
        pool(workers, scheduler=SCHEDULERS[scheduler], blocks=60),
        router=router,
        names=[[numbers[name] for name in row] for row in names],
        down=outages(*first.values()),
    )
    assert (state.states["generated"] == requests.output).all()
    assert state.sums["decoded_tokens"][0] == requests.output.sum()
    assert (state.states["blocks"] == 0).all()
    assert (state.counters[:, FREE] == 60).all()
    for begin, who, end in first.values():
        ran = state.states["worker"] == who
        assert not ((state.states["last"] > begin) & (state.states["last"] < end) & ran).any()


@given(
    families,
    st.sampled_from(["vllm", "sglang", "trtllm", "sarathi"]),
    st.integers(1, 2),
    st.integers(16, 40),
    st.integers(0, 12),
)
@tries(40)
def test_blocks_and_tokens_are_conserved_with_a_host_tier(
    load, scheduler, workers, blocks, host_units
):
    """Host memory never overflows, no block is lost to it, and what is found is not computed."""
    gaps, prompt, output, family, _ = zip(*load, strict=True)
    names = [[100 * family[i] + k for k in range(prompt[i] // UNIT)] for i in range(len(load))]
    numbers = {name: number for number, name in enumerate(sorted({n for r in names for n in r}))}
    requests = columns(np.cumsum(gaps).tolist(), list(prompt), list(output))
    by = pool(
        workers,
        scheduler=SCHEDULERS[scheduler],
        merges=int(scheduler != "vllm"),
        tokens=64,
        blocks=blocks,
        host_units=host_units,
    )
    state = run(requests, by, names=[[numbers[n] for n in row] for row in names])
    assert (state.states["generated"] == requests.output).all()
    assert (state.counters[:, FREE] == blocks).all()
    nodes = state.caches.nodes
    kept = ((nodes["references"] == 0) * (UNIT // 4) + nodes["loose"]).sum(axis=1)
    assert (state.counters[:, KEPT] == kept).all()
    units = nodes[:, : len(numbers)]
    assert (units["hosted"].sum(axis=1) == nodes["hosted"][:, -1]).all()
    assert (nodes["hosted"][:, -1] <= host_units).all()
    loaded = state.sums["loaded_tokens"][0]
    assert loaded == 0 or host_units
    if not state.sums["preemptions"][0]:
        assert loaded <= state.states["found"].sum()
        computed = requests.prompt.sum() + (requests.output - 1).sum()
        assert state.sums["computed_tokens"][0] == computed - state.states["found"].sum()


def test_a_prefix_that_left_the_device_comes_back_at_the_price_of_its_copy():
    """A, then B, which takes A's blocks, then A again: its last block of 4 tokens is computed.

    Blocks leave from the last of a prompt to the first, so room for 4 of 6 units has the first 4.
    """
    requests = columns([0.0, 100.0, 200.0], [48, 48, 48], [1, 1, 1])
    names = [list(range(6)), list(range(6, 12)), list(range(6))]
    times = {}
    for host_units in (0, 4, 6):
        by = pool(blocks=13, per_token=0.1, host_units=host_units)._replace(copy=0.01)
        state = run(requests, by, names=names)
        times[host_units] = float(state.states["last"][2]) - 200.0
        assert state.sums["loaded_tokens"][0] == {0: 0, 4: 32, 6: 44}[host_units]
    # One iteration of 1 s, 0.1 s a token that is computed, and 0.01 s one that is copied.
    assert times[0] == pytest.approx(1.0 + 48 * 0.1)
    assert times[4] == pytest.approx(1.0 + 32 * 0.01 + 16 * 0.1)
    assert times[6] == pytest.approx(1.0 + 44 * 0.01 + 4 * 0.1)


@pytest.mark.parametrize("scheduler", ["vllm", "sglang"])
def test_prompts_without_names_share_nothing_and_free_all_blocks(scheduler):
    """A cache of prefixes whose prompts nobody hashed is one without prefixes."""
    requests = columns([0.0] * 12, [UNIT * (1 + n) for n in range(12)], [3] * 12)
    first = pool(scheduler=SCHEDULERS[scheduler], blocks=60)
    state = run(requests, first)
    assert state.states["found"].max() == 0
    assert state.counters[0, FREE] == 60
    assert (
        state.states["last"].tolist()
        == run(requests, pool(**{"scheduler": SCHEDULERS[scheduler], "blocks": 60, "unit": 0}))
        .states["last"]
        .tolist()
    )


@given(families, st.sampled_from(["vllm", "sglang", "trtllm"]), st.integers(1, 4))
def test_no_more_adapters_run_at_once_than_there_are_slots(load, scheduler, slots):
    """All are served, in the order of arrival among equals, and each slot is free at the end."""
    arrival, prompt, output, adapter, _ = zip(*load, strict=True)
    requests = columns(sorted(arrival), list(prompt), list(output))
    requests = requests._replace(adapter=np.array(adapter, dtype=np.int64))
    state = run(requests, pool(scheduler=SCHEDULERS[scheduler], unit=0, adapters=slots, blocks=60))
    rows = state.states
    assert state.sums["done"][0] == len(load)
    assert not state.slots["references"].any()
    loads = state.sums["loaded_adapters"][0]
    assert len(set(adapter)) <= loads
    assert loads == len(set(adapter)) or len(set(adapter)) > slots
    for number in set(adapter):
        mine = rows["scheduled"][rows["adapter"] == number]
        assert (np.diff(mine) >= 0).all()
    if not state.counters[0, PREEMPTIONS]:
        for begin in rows["scheduled"]:
            runs = (rows["scheduled"] <= begin) & (rows["last"] > begin)
            assert len(set(rows["adapter"][runs])) <= slots
    assert (rows["lacked"] <= rows["scheduled"] - rows["arrived"] + 1e-9).all()
    assert not rows["lacked"].any() or len(set(adapter)) > slots


@pytest.mark.parametrize("scheduler", ["vllm", "sglang", "trtllm"])
def test_what_waits_for_a_slot_alone_waits_for_it_all_the_time(scheduler):
    """One slot, seats and blocks for all: each of three requests of 4 iterations of 1 s waits for
    those before it, from the iteration at whose start it is first looked at."""
    requests = columns([0.0, 0.0, 0.5], [8, 8, 8], [4, 4, 4])
    requests = requests._replace(adapter=np.arange(3))
    rows = run(requests, pool(scheduler=SCHEDULERS[scheduler], unit=0, adapters=1)).states
    assert rows["scheduled"].tolist() == [0.0, 4.0, 8.0]
    assert rows["lacked"].tolist() == [0.0, 4.0, 7.0]


@tries(20)
@given(families, st.integers(1, 4), st.sampled_from([0.0, 0.3, 2.5]))
def test_no_more_adapters_decode_at_once_than_there_are_slots(load, slots, delay):
    """Both pools keep to their slots; what a request waits for is a part of its way to the other
    pool, which otherwise takes as long as its cache."""
    arrival, prompt, output, adapter, _ = zip(*load, strict=True)
    requests = columns(sorted(arrival), list(prompt), list(output))
    requests = requests._replace(adapter=np.array(adapter, dtype=np.int64))
    first = pool(unit=0, adapters=slots, blocks=400, sequences=40)
    state = run(requests, first, second=first, delay=delay)
    rows = state.states
    assert state.sums["done"][0] == len(load)
    assert not state.slots["references"].any()
    assert state.counters[:, FREE].tolist() == [400, 400]
    moved = rows["delivered"] - rows["handed"]
    several = rows["output"] > 1
    assert np.isfinite(moved[several]).all()
    assert (rows["stalled"][several] <= moved[several] - delay + 1e-9).all()
    assert not rows["stalled"].any() or len(set(adapter)) > slots
    if len(set(adapter)) <= slots:
        alone = run(
            requests._replace(adapter=None), first._replace(load=0.0), second=first, delay=delay
        )
        assert rows["last"].tolist() == alone.states["last"].tolist()
    for begin in rows["delivered"][several]:
        runs = several & (rows["delivered"] <= begin) & (rows["last"] > begin + 1.0)
        assert len(set(rows["adapter"][runs])) <= slots or delay
