"""The compiled loop gives what its rules give in plain Python, request by request."""

from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import serving_model
from helpers.tries import tries
from simulator.serving.loop import ROUTERS, SEND, SERVED, STUCK, close, deliver, serving_loop
from simulator.serving.schedulers import KEPT, SCHEDULERS, Columns, Rules
from simulator.serving.state import Client, Fleet, Host, Pool, Prefixes, gap_quantile, run_state
from simulator.serving.surface import Batch, IterationSurface, iteration_time, shared_time
from simulator.support.arrays import offsets

BLOCK, UNIT = 4, 8
INSTANTS = ("arrived", "scheduled", "first", "last", "emitted", "handed", "delivered")


def surface(chance, *, shared):
    """Times of which no two are alike: what is looked up in the wrong place takes another time."""
    lines = [np.cumsum(chance.uniform(0.01, 0.1, 65)) for _ in range(5)]
    tables = [np.cumsum(chance.uniform(0.01, 0.1, (9, 13)), 1).cumsum(0) for _ in range(4)]
    joint = lines[3:] if shared else [np.zeros(0)] * 2
    window = float(chance.choice([0, 6]))
    return IterationSurface(*lines[:3], *tables, *(line / 9 for line in joint), window)


def rules(chance, scheduler, *, several, unit):
    drafts = int(chance.integers(0, 3))
    # vLLM holds blocks as it needs them; the blocks of partly read prompts are held by others.
    kinds = {"vllm": (0, 1), "static": (2,)}
    reserve = int(chance.choice(kinds.get(scheduler, (1, 2))))
    return Rules(
        SCHEDULERS[scheduler],
        tokens=int(chance.choice([16, 24, 64])),
        sequences=int(chance.integers(2, 7)),
        chunked=0 if scheduler == "orca" else int(chance.integers(0, 5) > 0),
        reserve=reserve,
        block=BLOCK,
        blocks=int(chance.integers(22, 40)),
        drafts=drafts,
        accepted=float(chance.choice([1.0, 1.6])) if drafts else 1.0,
        unit=UNIT if unit else 0,
        merges=int(chance.integers(0, 2)),
        padded=int(chance.choice([0, 6, 64])),
        pads_chunks=int(chance.integers(0, 2)),
        host_units=int(chance.choice([0, 2, 5])) if unit else 0,
        patience=float(chance.choice([0.0, 3.0])),
        balance=int(chance.choice([0, 3])) if several and scheduler == "trtllm" else 0,
        waits=int(chance.choice([0, 4])) if not several and scheduler == "trtllm" else 0,
        fills=float(chance.choice([9, 30, 200])),
    )


def case(seed, scheduler, kind):
    """Draw a fleet and its requests: ``kind`` says what it has besides one worker."""
    chance = np.random.default_rng(seed)
    count = int(chance.integers(2, 16))
    arrival = np.cumsum(chance.choice([0.0, 0.3, 1.7], count) * chance.uniform(0.5, 1, count))
    prompt, output = chance.integers(1, 50, count), chance.integers(1, 14, count)
    session, priority = chance.integers(-1, 3, count), chance.integers(0, 3, count)
    # A prompt of a family begins as others of it do, and ends in units of its own.
    common, units = chance.integers(0, 7, count), []
    for number in range(count):
        own = range(100 + 10 * number, 110 + 10 * number)
        family = 10 * max(0, int(session[number])) + np.arange(common[number])
        units.append([*family.tolist(), *own][: prompt[number] // UNIT])
    names = sorted({unit for row in units for unit in row})
    units = [[names.index(unit) for unit in row] for row in units]
    requests = Columns(
        arrival, prompt, output, session, priority if chance.integers(0, 2) else None
    )
    hosts = [
        Host(*chance.uniform(0.01, 0.1, 2), 1.1, 0.0, 0.0, *chance.choice([0.0, 0.5, 2.0], 2))
        for _ in range(2)
    ]
    width = int(chance.integers(1, 3)) if kind in ("ranks", "outages") else 1
    workers = width * int(chance.integers(1, 4)) if kind != "alone" else 1
    by = rules(chance, scheduler, several=width > 1, unit=kind in ("caches", "outages"))
    if kind == "handed on":
        by = by._replace(tokens=64, chunked=1)
    first = Pool(
        workers,
        width,
        by,
        surface(chance, shared=width > 1),
        hosts[0],
        int(chance.integers(2, 4)) if kind == "stages" else 1,
        0.003,
    )
    second = first._replace(workers=0)
    if kind == "handed on":
        second = Pool(2, 1, by, surface(chance, shared=False), hosts[1], 1)
    router = str(chance.choice(sorted(ROUTERS)))
    fleet = Fleet(first, second, ROUTERS[router])
    client = Client(
        int(chance.choice([0, 3])),
        int(chance.integers(1, 4)),
        int(chance.choice([1, 3])) if scheduler == "sglang" else 1,
        int(chance.integers(0, 2)),
    )
    down = []
    if kind == "outages":
        for instance in range(workers // width):
            begin = float(chance.uniform(0, 12))
            down += [(instance, 1, begin), (instance, 0, begin + float(chance.uniform(0.5, 9)))]
    return requests, fleet, client, units if first.rules.unit else None, down


def compiled(requests, fleet, client, units, down):
    """Run the loop; what the first pool hands on is at the second a quarter of a second later."""
    caches = None
    if units is not None:
        flat = np.array([unit for row in units for unit in row], np.int64)
        caches = Prefixes(offsets([len(row) for row in units]), flat)
    state = run_state(requests, fleet, client, caches, down)
    loop = serving_loop(fleet, waits=bool(down))
    coming: list[tuple[float, int]] = []
    while True:
        until = coming[0][0] if coming else np.inf
        reason = loop(state, fleet.surfaces, until, 2**40)
        if reason in (SERVED, STUCK):
            break
        if reason == SEND:
            sent = state.sends[: state.sums["sends"][0]].tolist()
            coming = sorted(coming + [(state.sums["now"][0] + 0.25, request) for request in sent])
            state.sums["sends"][0] = 0
        while coming and coming[0][0] <= state.sums["now"][0]:
            deliver(state, coming.pop(0)[1])
    close(state)
    return state


def check(seed, scheduler, kind):
    requests, fleet, client, units, down = case(seed, scheduler, kind)
    state = compiled(requests, fleet, client, units, down)
    model = serving_model.Fleet(requests, fleet, client, units, 0.25, down).serve()
    served, sums = state.states, state.sums[0]
    assert bool(sums["stuck"]) == model.is_stuck
    for instant in INSTANTS:
        expected = [request.times.get(instant, nan) for request in model.requests]
        assert served[instant] == pytest.approx(expected, rel=1e-9, nan_ok=True), instant
    for name in ("computed", "generated", "found", "blocks", "priority"):
        expected = [getattr(request, name) for request in model.requests]
        assert served[name].tolist() == expected, name
    workers = model.workers
    sent = [request.worker for request in model.requests if request.worker is not None]
    assert served["worker"][: len(sent)].tolist() == [worker.number for worker in sent]
    assert sums["preemptions"] == sum(worker.preemptions for worker in workers)
    assert sums["peak_blocks"] == max(worker.peak for worker in workers)
    assert sums["restarted"] == model.restarted
    assert sums["iterations"] == len(model.log)
    for name in ("computed_tokens", "decoded_tokens", "loaded_tokens"):
        assert sums[name] == getattr(model, name), name
    for name, expected in model.times.items():
        assert sums[name] == pytest.approx(expected), name
    log = state.log[: len(model.log)]
    columns = zip(*(log[name] for name in ("begin", "end", "tokens", "chunks")), strict=True)
    for row, expected in zip(columns, model.log, strict=True):
        assert row == pytest.approx(expected)
    if units is not None:
        assert state.counters[: len(model.first), KEPT].tolist() == [w.kept for w in model.first]
    assert state.gaps.sum() == len(model.gaps)
    if model.gaps:
        assert gap_quantile(state.gaps, None) == pytest.approx(np.mean(model.gaps), rel=0.016)


seeds = st.integers(0, 10**9)


@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
@given(seeds)
@tries(60)
def test_one_worker_serves_by_the_rules_of_its_scheduler(scheduler, seed):
    check(seed, scheduler, "alone")


@pytest.mark.parametrize("kind", ["ranks", "stages", "caches", "outages", "handed on"])
@given(seeds, st.sampled_from(["vllm", "sglang", "trtllm", "sarathi"]))
@tries(90)
def test_a_fleet_serves_by_the_rules_of_its_routers_and_caches(kind, seed, scheduler):
    check(seed, scheduler, kind)


@given(seeds)
@tries(120)
def test_an_iteration_takes_what_the_points_around_it_say(seed):
    """Batches within the tables and beyond them; chunks behind others, windows of any size."""
    chance = np.random.default_rng(seed)
    shared = bool(chance.integers(0, 2))
    times = surface(chance, shared=shared)._replace(window=float(chance.choice([0, 3, 20, 200])))
    decodes, chunks = chance.choice([0, 1, 5, 30], 2).tolist()
    new = chance.integers(1, 40, chunks)
    past = chance.choice([0, 10, 500], chunks) if chunks else new
    batch = Batch(
        int(chance.integers(1, 4)),
        decodes,
        float(chance.integers(1, 300, decodes).sum()),
        chunks or int(not decodes),
        float(new.sum()) if chunks else float(not decodes),
        float((new * (past + new / 2)).sum()) if chunks else 0.5 * (not decodes),
    )
    assert iteration_time(times, batch) == pytest.approx(serving_model.iteration_time(times, batch))
    tokens = float(chance.uniform(0, 100))
    expected = serving_model.shared_time(times, tokens, chunks)
    assert shared_time(times, tokens, chunks) == pytest.approx(expected)
