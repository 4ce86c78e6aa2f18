"""Laws of the serving loop: queueing theory, conservation, order, memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from simulator.serving.loop import LEAST_LOAD, SERVED, STUCK, close, serve_requests, serving_loop
from simulator.serving.schedulers import FREE, LATE, SCHEDULERS, Columns, Rules
from simulator.serving.state import Client, Fleet, Host, Pool, gap_quantile, run_state
from simulator.serving.surface import (
    Batch,
    IterationSurface,
    grid_value,
    iteration_time,
    with_drafts,
)

NO_HOST = Host(0.0, 0.0, 1.0, 0.0, 0.0)
OPEN = Client(0, 1, 1, 0)


def constant_surface(step: float = 1.0, per_token: float = 0.0) -> IterationSurface:
    """Make iterations of ``step`` s, and ``per_token`` for each token, whatever is in them."""
    tokens = step + per_token * np.arange(8193.0)
    zero = np.full((5, 40), 1e-300)
    none = np.zeros(0)
    return IterationSurface(
        tokens, tokens, np.zeros(2049), zero, zero, zero.copy(), zero.copy(), none, none
    )


def rules(scheduler: str, **changes: int) -> Rules:
    usual = {
        "tokens": 8192,
        "sequences": 256,
        "chunked": 1,
        "reserve": 1,
        "block": 16,
        "blocks": 10**6,
        "drafts": 0,
        "accepted": 1.0,
        "unit": 0,
        "merges": 0,
        "padded": 0,
        "pads_chunks": 0,
        "host_units": 0,
        "patience": 0.0,
    }
    return Rules(SCHEDULERS[scheduler], **(usual | changes))


def columns(arrival: list[float], prompt: list[int], output: list[int]) -> Columns:
    return Columns(
        np.array(arrival, dtype=float),
        np.array(prompt, dtype=np.int64),
        np.array(output, dtype=np.int64),
        np.full(len(arrival), -1),
    )


def run(requests: Columns, by: Rules, surface: IterationSurface, client: Client = OPEN, loop=None):
    pool = Pool(1, 1, by, surface, NO_HOST, 1)
    fleet = Fleet(pool, pool._replace(workers=0), LEAST_LOAD)
    state = run_state(requests, fleet, client)
    loop = loop or serving_loop(fleet, waits=False)
    reason = loop(state, fleet.surfaces, np.inf, 2**40)
    assert reason in (SERVED, STUCK)
    close(state)
    return state


def test_waiting_at_batch_one_is_that_of_m_d_1():
    """Pollaczek and Khinchin: mean waiting rho s / (2 (1 - rho)) for Poisson arrivals."""
    count, load = 200_000, 0.7
    arrival = np.cumsum(np.random.default_rng(1).exponential(1 / load, count))
    ones = np.ones(count, dtype=np.int64)
    by = rules("vllm", sequences=1)
    served = run(Columns(arrival, ones, ones, -ones), by, constant_surface()).states
    waiting = served["scheduled"] - served["arrived"]
    assert waiting.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.03)


def test_waiting_at_batch_one_is_that_of_m_g_1():
    """Service of 1 to 9 iterations: mean waiting lambda E[s^2] / (2 (1 - rho))."""
    count, rate = 200_000, 0.12
    generator = np.random.default_rng(2)
    arrival = np.cumsum(generator.exponential(1 / rate, count))
    output = generator.integers(1, 10, count)
    requests = Columns(arrival, np.ones(count, dtype=np.int64), output, np.full(count, -1))
    served = run(requests, rules("vllm", sequences=1), constant_surface()).states
    waiting = (served["scheduled"] - served["arrived"]).mean()
    second, first = float(np.mean(output**2.0)), float(output.mean())
    assert waiting == pytest.approx(rate * second / (2 * (1 - rate * first)), rel=0.05)


@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_the_loop_of_one_worker_gives_the_bits_of_the_whole(scheduler):
    generator = np.random.default_rng(7)
    arrival, (prompt, output) = generator.uniform(0, 9, 30), generator.integers(1, 99, (2, 30))
    requests = columns(sorted(arrival), prompt.tolist(), output.tolist())
    by = rules(scheduler, tokens=128, sequences=6, blocks=24, reserve=1 + (scheduler == "static"))
    alone = run(requests, by, constant_surface(per_token=0.01))
    whole = run(requests, by, constant_surface(per_token=0.01), loop=serve_requests)
    assert (alone.sums, alone.states.tobytes()) == (whole.sums, whole.states.tobytes())
    assert alone.log.tobytes() == whole.log.tobytes()


loads = st.lists(
    st.tuples(st.floats(0, 3), st.integers(1, 200), st.integers(1, 30)), min_size=1, max_size=25
)
schedulers = st.sampled_from(sorted(SCHEDULERS))


@given(loads, schedulers, st.integers(16, 60), st.sampled_from([1.0, 2.5]))
def test_tokens_memory_and_time_are_conserved(load, scheduler, blocks, accepted):
    """All tokens are made once, blocks never exceed memory and are free again, time goes on."""
    gaps, prompt, output = zip(*load, strict=True)
    requests = columns(np.cumsum(gaps).tolist(), list(prompt), list(output))
    reserve = 2 if scheduler == "static" else 1
    by = rules(scheduler, tokens=256, sequences=8, blocks=blocks, reserve=reserve)
    by = by._replace(drafts=3 * (accepted > 1), accepted=accepted)
    state = run(requests, by, constant_surface(per_token=0.01))
    served, totals = state.states, state.sums[0]
    assert totals["stuck"] == 0
    assert (state.states["generated"] == requests.output).all()
    assert totals["decoded_tokens"] == requests.output.sum()
    assert state.counters[0, FREE] == blocks
    assert totals["peak_blocks"] <= blocks
    # Engines count a decode with its drafts as one token of the budget.
    assert accepted > 1 or state.log["tokens"].max() <= by.tokens
    assert (state.states["blocks"] == 0).all()
    assert (served["scheduled"] >= served["arrived"] - 1e-9).all()
    assert (served["first"] > served["scheduled"]).all()
    assert (served["last"] >= served["first"]).all()
    # Work conservation: the device works whenever anything is there, and only then.
    assert totals["end"] == pytest.approx(served["last"].max())
    there, until = 0.0, 0.0
    for arrived, last in zip(served["arrived"], served["last"], strict=True):
        there += max(0.0, last - max(until, arrived))
        until = max(until, last)
    assert totals["decode_time"] + totals["prefill_time"] == pytest.approx(there)


@given(loads, st.sampled_from(["vllm", "sglang", "trtllm", "orca", "sarathi"]))
def test_requests_are_first_scheduled_in_the_order_of_arrival(load, scheduler):
    gaps, prompt, output = zip(*load, strict=True)
    requests = columns(np.cumsum(gaps).tolist(), list(prompt), list(output))
    served = run(requests, rules(scheduler, sequences=4), constant_surface()).states
    assert (np.diff(served["scheduled"]) >= -1e-12).all()


@given(st.integers(1, 40), st.integers(1, 12), schedulers)
def test_littles_law_holds_in_a_closed_loop(concurrency, rounds, scheduler):
    """Requests in the system are at most the concurrency: throughput x time in it."""
    count = concurrency * rounds
    requests = columns([0.0] * count, [10] * count, [5] * count)
    state = run(requests, rules(scheduler), constant_surface(), Client(concurrency, 1, 1, 0))
    inside = (state.states["last"] - state.states["arrived"]).sum() / state.sums["end"][0]
    assert inside <= concurrency + 1e-9
    arrived, last = np.sort(state.states["arrived"]), np.sort(state.states["last"])
    assert arrived.tolist() == [0.0] * concurrency + last[: count - concurrency].tolist()


def test_the_latest_is_preempted_and_computed_anew():
    """Two requests that grow into 5 blocks of 4: the second goes and comes back, and loses none."""
    requests = columns([0.0, 0.0], [8, 8], [8, 8])
    by = rules("vllm", block=4, blocks=6, reserve=0)
    state = run(requests, by, constant_surface())
    assert state.sums["preemptions"][0] >= 1
    assert state.states["last"][0] < state.states["last"][1]
    assert (state.states["generated"] == 8).all()


def test_prefill_first_makes_decodes_stand_still():
    """SGLang reads a prompt before it goes on with decodes; vLLM does both at once."""
    requests = columns([0.0, 2.5], [4, 4], [6, 1])
    last = {
        name: run(requests, rules(name), constant_surface()).states["last"][0]
        for name in ("sglang", "vllm")
    }
    assert last == {"sglang": 7.0, "vllm": 6.0}


def test_drafts_divide_the_number_of_iterations():
    requests = columns([0.0], [4], [101])
    plain = run(requests, rules("vllm"), constant_surface()).sums["iterations"][0]
    by = rules("vllm", drafts=3)._replace(accepted=2.5)
    drafted = run(requests, by, constant_surface()).sums["iterations"][0]
    assert (plain, drafted) == (101, 41)


def test_an_interval_is_of_tokens_or_of_iterations():
    """With 2 tokens a decode 9 have been made in the fifth iteration, 10 in the sixth."""
    by = rules("vllm", drafts=3)._replace(accepted=2.0)
    seen = [
        run(columns([0.0], [4], [101]), by, constant_surface(), Client(0, 10, 1, iterations))
        for iterations in (0, 1)
    ]
    assert [state.states["first"][0] for state in seen] == [6.0, 10.0]


def test_an_engine_looks_for_requests_every_so_many_decodes_and_after_prompts():
    """Of four in iterations of 1 s: at once if idle, after a prompt, and after ten decodes."""
    asked = columns([0.0, 0.5, 2.5, 200.25], [4] * 4, [100, 100, 50, 5])
    state = run(asked, rules("sglang"), constant_surface(), Client(0, 1, 10, 0))
    assert state.states["scheduled"].tolist() == [0.0, 1.0, 12.0, 200.25]


def test_what_never_fits_is_reported_not_awaited():
    state = run(columns([0.0], [1000], [10]), rules("vllm", blocks=10), constant_surface())
    assert state.sums["stuck"][0] == 1


def test_a_surface_is_linear_between_its_points_and_goes_on_beyond():
    table = np.array([[row * column for column in (1, 2**0.5, 2, 2**1.5)] for row in (1, 2**0.5)])
    assert grid_value(np.ascontiguousarray(table), 1.2, 1.7) == pytest.approx(1.2 * 1.7, rel=1e-3)
    assert grid_value(np.ascontiguousarray(table), 1.0, 8.0) == pytest.approx(8.0)


def test_beyond_a_table_of_zeros_there_is_nothing():
    """Layers without windows have no time in the table of those that have."""
    assert grid_value(np.zeros((3, 4)), 1.0, 1e6) == 0.0


def test_padding_is_of_batches_without_prompts():
    surface = constant_surface()._replace(tokens=np.full(65, 2.0), eager=np.full(65, 1.0))
    assert iteration_time(surface, Batch(1, 3, 30.0, 0, 0.0, 0.0)) == pytest.approx(2.0)
    assert iteration_time(surface, Batch(1, 0, 0.0, 1, 5.0, 12.5)) == pytest.approx(1.0)


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_a_pass_with_drafts_takes_the_passes_of_the_model_that_drafts_besides(drafts):
    chance = np.random.default_rng(drafts)
    own, draft = (
        IterationSurface(
            *chance.random((3, 13)),
            *chance.random((4, 3, 5)),
            np.zeros(0),
            np.zeros(0),
            exchanged=chance.random(13),
        )
        for _ in range(2)
    )
    both = with_drafts(own, draft, drafts)
    # Each decode computes its own token and those of its drafts; each draft is a token of a pass.
    decodes = [-(-tokens // (1 + drafts)) for tokens in range(13)]
    for name in ("tokens", "sequences", "exchanged"):
        expected = getattr(own, name) + drafts * getattr(draft, name)[decodes]
        assert getattr(both, name) == pytest.approx(expected)
    assert both.eager == pytest.approx(own.eager + draft.eager + (drafts - 1) * draft.tokens[1])
    for name, passes in (("decodes", drafts), ("beside", drafts), ("chunks", 1), ("windowed", 1)):
        expected = getattr(own, name) + passes * getattr(draft, name)
        assert getattr(both, name) == pytest.approx(expected)


def test_times_between_tokens_are_counted_with_the_pauses():
    """A decode waits for a prompt under SGLang: one gap of 2 s among gaps of 1 s."""
    requests = columns([0.0, 2.5], [4, 4], [6, 1])
    gaps = run(requests, rules("sglang"), constant_surface()).gaps
    assert gaps.sum() == 5
    assert gap_quantile(gaps, 0.5) == pytest.approx(1.0, rel=0.016)
    assert gap_quantile(gaps, 0.99) == pytest.approx(2.0, rel=0.016)
    assert gap_quantile(gaps, None) == pytest.approx(6 / 5, rel=0.016)


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.integers(1, 200), st.integers(1, 40), st.integers(-1, 2)),
        min_size=2,
        max_size=30,
    ),
    st.sampled_from(("vllm", "sglang", "sarathi")),
    st.sampled_from((20, 400)),
)
def test_the_most_urgent_goes_first_and_its_peers_by_arrival(load, scheduler, blocks):
    """Nothing is lost; of two of a priority the earlier is scheduled first, and who waits longer
    than a more urgent one did so behind it.
    """
    load = sorted(load)
    arrival, prompt, output, priority = (list(column) for column in zip(*load, strict=True))
    requests = columns(arrival, prompt, output)._replace(priority=np.array(priority))
    by = rules(scheduler, sequences=4, blocks=blocks)
    state = run(requests, by, constant_surface(1.0, 0.01))
    served = state.states
    assert (served["generated"] == output).all()
    assert (state.counters[:, FREE] == blocks).all()
    for urgency in set(priority):
        alike = served["scheduled"][np.array(priority) == urgency]
        assert (np.diff(alike) >= 0).all()
    for early, late in zip(*np.triu_indices(len(load), 1), strict=True):
        # Both there when the first of them is scheduled: then the more urgent is not the later.
        here = served["arrived"][late] < served["scheduled"][early]
        if here and priority[late] < priority[early]:
            assert served["scheduled"][late] <= served["scheduled"][early]


def test_the_least_urgent_is_preempted():
    """Blocks for one to the end: the urgent, which came later, keeps its own."""
    load = columns([0.0, 0.1], [64, 64], [64, 64])._replace(priority=np.array([1, 0]))
    state = run(load, rules("vllm", blocks=10), constant_surface())
    assert state.sums["preemptions"][0] >= 1
    assert state.states["last"][1] < state.states["last"][0]
    usual = run(load._replace(priority=None), rules("vllm", blocks=10), constant_surface())
    assert usual.states["last"][0] < usual.states["last"][1]


@given(loads, schedulers, st.floats(0.5, 20))
@tries(20)
def test_those_who_missed_their_slo_wait_for_others_and_are_served_all_the_same(
    load, scheduler, patience
):
    gaps, prompt, output = zip(*load, strict=True)
    requests = columns(np.cumsum(gaps).tolist(), list(prompt), list(output))
    state = run(requests, rules(scheduler, sequences=2, patience=patience), constant_surface())
    assert (state.states["generated"] == requests.output).all()
    waited = state.states["scheduled"] - state.states["arrived"]
    late = state.states["priority"] >= LATE
    assert (waited[late] > patience).all()
    # Who was in time at every look is scheduled in the order of arrival.
    assert (np.diff(state.states["scheduled"][~late]) >= -1e-12).all()


def test_a_burst_costs_those_behind_it_less():
    """Twenty at once, one a time, 5 s each; then one every 6 s: all of those are in time."""
    requests = columns([0.0] * 20 + [6.0 * k for k in range(1, 31)], [1] * 50, [5] * 50)
    waits = {}
    for patience in (0.0, 10.0):
        state = run(requests, rules("vllm", sequences=1, patience=patience), constant_surface())
        waits[patience] = state.states["scheduled"] - state.states["arrived"]
    assert (waits[0.0][20:] <= 10.0).sum() < 10
    assert (waits[10.0][20:] <= 10.0).all()
    assert waits[10.0].max() > waits[0.0].max(), "who waits for others waits longer"


@given(st.floats(0, 3), st.floats(0, 0.5), st.integers(1, 8), st.integers(1, 10))
def test_no_iteration_is_shorter_than_its_responses_take_the_host(least, response, count, every):
    """``count`` alike requests at once: each iteration of theirs takes the longer of both."""
    ones = np.full(count, 4)
    requests = Columns(np.zeros(count), ones, ones + 6, np.full(count, -1))
    host = NO_HOST._replace(least=least, response=response)
    pool = Pool(1, 1, rules("vllm"), constant_surface(), host, 1)
    fleet = Fleet(pool, pool._replace(workers=0), LEAST_LOAD)
    state = run_state(requests, fleet, Client(0, every, 1, 0))
    assert serving_loop(fleet, waits=False)(state, fleet.surfaces, np.inf, 2**40) == SERVED
    longest = max(1.0, least + response * count / every)
    assert state.sums["end"][0] == pytest.approx(10 * longest)
    assert state.sums["host_time"][0] == pytest.approx((longest - 1) * count * (10 - every))
