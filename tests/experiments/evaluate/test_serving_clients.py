"""Clients of an instance and its autoscaler, held to their rules in plain Python."""

import math
from types import SimpleNamespace as Of

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.evaluate.serving_clients import (
    Closed,
    busy_share,
    check_lengths,
    columns_of,
    is_deterministic,
    prefixes_of,
    requests_of,
    table_of,
    token_rate,
    tokens_of,
)
from experiments.evaluate.serving_scaling import (
    DRAINS,
    SERVES,
    STOPPED,
    Autoscaler,
    Outage,
    Scaling,
    switches,
)
from helpers.tries import tries
from simulator.serving.schedulers import COMES, DOWN, KEPT, RUNS, WAITS
from simulator.support.errors import WorkloadError
from traces.generate.model import load_model
from traces.requests.table import Hashes, Requests

TABLE = Requests(np.array([0.0, 1.5, 2.0]), np.array([100, 200, 50]), np.array([10, 20, 5]), "mine")


def test_loads_are_tables_closed_loops_or_drawn():
    fixed, drawn = Closed(4, 100, 7), Closed(4, 100, 7, spread=0.8, requests=12)
    assert [is_deterministic(load) for load in (TABLE, fixed, drawn, lambda _: TABLE)] == [
        True,
        True,
        False,
        False,
    ]
    assert [tokens_of(load) for load in (TABLE, fixed, drawn)] == [35, 280, 84]
    assert tokens_of(Closed(4, 100, 7, table=TABLE)) == tokens_of(lambda _: TABLE) == 35
    assert table_of(fixed) is None
    assert table_of(lambda seed: TABLE if seed == 0 else None) is TABLE
    for client, least, count in ((fixed, 100, 40), (drawn, 80, 12)):
        columns = requests_of(client, 3)
        assert len(columns.arrival) == count
        assert not columns.arrival.any()
        assert (columns.prompt >= least).all()
        assert (columns.prompt <= 100).all()
        assert set(columns.session) == {-1}
    random = np.random.default_rng(3)  # prompts first, then outputs
    prompt = random.integers(80, 101, 12)
    output = random.integers(5, 8, 12)
    columns = requests_of(drawn, 3)
    assert (columns.prompt.tolist(), columns.output.tolist()) == (prompt.tolist(), output.tolist())
    at_once = requests_of(Closed(4, 1, 1, table=TABLE), 0)
    assert at_once.arrival.tolist() == [0.0] * 3
    assert at_once.prompt is TABLE.prompt
    assert columns_of(TABLE).session.tolist() == [-1] * 3


def test_a_request_may_be_as_long_as_the_model_takes():
    model = load_model("llama-3.1-8b")
    for longest, is_allowed in ((220, True), (219, False), (None, True)):
        limited = model.model_copy(update={"longest": longest})
        if is_allowed:
            check_lengths(limited, TABLE)
        else:
            with pytest.raises(
                WorkloadError, match="mine: request 1 has 200 tokens and asks for 20"
            ):
                check_lengths(limited, TABLE)


@tries(40)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=1, max_size=5),
            st.integers(1, 16),
            st.integers(-1, 2),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_prefixes_are_of_full_blocks_and_those_of_other_adapters_are_others(rows):
    ids = [hashes for hashes, _, _ in rows]
    offset = np.cumsum([0, *map(len, ids)])
    prompt = np.array([16 * (len(hashes) - 1) + part for hashes, part, _ in rows])
    table = Hashes(16, offset, np.concatenate([np.array(each) for each in ids]))
    adapter = np.array([number for *_, number in rows])
    full = [hashes[: length // 16] for hashes, length in zip(ids, prompt.tolist(), strict=True)]
    for by in (None, adapter):
        prefixes = prefixes_of(prompt, table, by)
        assert prefixes.offset.tolist() == np.cumsum([0, *map(len, full)]).tolist()
        keys = [
            (each, None if by is None else by[number])
            for number, hashes in enumerate(full)
            for each in hashes
        ]
        units = prefixes.units.tolist() if hasattr(prefixes, "units") else list(prefixes[1])
        for a in range(len(keys)):
            for b in range(a):
                assert (units[a] == units[b]) == (keys[a] == keys[b])


def test_rates_are_over_all_runs_and_busy_time_over_all_instances_held():
    names = "decoded_tokens", "end", "decode_time", "prefill_time"
    runs = [
        Of(totals=dict(zip(names, row, strict=True)), held=held)
        for row, held in (((30, 2.0, 1.0, 0.5), 2.0), ((10, 6.0, 2.0, 1.0), 1.0))
    ]
    assert token_rate(runs) == 40 / 8
    assert busy_share(runs) == pytest.approx(4.5 / (2 * 2 + 6))


def test_outages_switch_an_instance_off_and_on():
    rows = switches((Outage(3, 1.0, 2.0), Outage(0, 0.0, math.inf)))
    assert rows == [(3, 1, 1.0), (3, 0, 2.0), (0, 1, 0.0), (0, 0, math.inf)]


INSTANCES = 4


class Scaler:
    """The rules once more: what each instance does, by load, every so often."""

    def __init__(self, rules):
        self.rules, self.wanted, self.held = rules, [], 0.0
        self.does = ["serves"] * rules.least + ["off"] * (INSTANCES - rules.least)
        self.ready, self.looked, self.since = {}, rules.every, 0.0

    def act(self, now, loads):
        self.held += (now - self.since) * sum(each != "off" for each in self.does)
        self.held += (now - self.since) * len(self.ready)
        self.since = now
        for instance in [each for each, ready in self.ready.items() if ready <= now]:
            self.does[instance] = "serves"
            del self.ready[instance]
        for instance in range(INSTANCES):
            if self.does[instance] == "drains" and loads[instance] == 0:
                self.does[instance] = "off"
        if now < self.looked:
            return
        self.looked = now + self.rules.every
        serving = [each for each in range(INSTANCES) if self.does[each] == "serves"]
        have = len(serving) + len(self.ready)
        ratio = sum(loads) / have / self.rules.requests
        want = have if abs(ratio - 1) <= 0.1 else math.ceil(have * ratio)
        want = min(max(want, self.rules.least), INSTANCES)
        self.wanted = [each for each in self.wanted if each[0] > now - self.rules.keep]
        self.wanted.append((now, want))
        want = max(want, min(have, max(each for _, each in self.wanted)))
        draining = [each for each in range(INSTANCES) if self.does[each] == "drains"]
        for instance in draining[: max(0, want - have)]:
            self.does[instance] = "serves"
            have += 1
        off = [e for e in range(INSTANCES) if self.does[e] == "off" and e not in self.ready]
        for instance in off[: max(0, want - have)]:
            self.ready[instance] = now + self.rules.start
        for instance in sorted(serving, key=lambda each: loads[each])[: max(0, have - want)]:
            self.does[instance] = "drains"


@tries(200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([4.0, 15.0, 80.0]),
            st.lists(
                st.sampled_from([0, 1, 4, 10, 11, 21]), min_size=INSTANCES, max_size=INSTANCES
            ),
        ),
        min_size=3,
        max_size=12,
    ),
    st.integers(1, 3),
    st.sampled_from([1.0, 4.0, 10.0, 20.0]),
)
def test_an_autoscaler_starts_and_drains_instances_as_its_rules_say(rows, least, requests):
    rules = Scaling(least, requests, start=20.0, every=15.0, keep=60.0)
    width = 2
    counters = np.zeros((INSTANCES * width, 32), dtype=np.int64)
    state = Of(
        counters=counters, sums={"coming": np.array([0])}, states=[0],
        instances={"ends": np.array([np.inf])}, caches=Of(nodes=np.zeros((0, 1))),
    )  # fmt: skip
    scaler, plain, now = Autoscaler(rules, state, width), Scaler(rules), 0.0
    counters[:, KEPT] = 5
    states = {"serves": SERVES, "off": STOPPED, "drains": DRAINS}
    for wait, loads in rows:
        now += wait
        for instance, load in enumerate(loads):
            worker = instance * width
            counters[worker, RUNS], counters[worker, WAITS] = (
                load // 2,
                load - load // 2 - load // 3,
            )
            counters[worker + 1, COMES] = load // 3
        assert scaler.act(now)
        plain.act(now, loads)
        expected = [states[each] for each in plain.does for _ in range(width)]
        assert counters[:, DOWN].tolist() == expected
        assert scaler.held_time == pytest.approx(plain.held)
        assert scaler.next == min([plain.looked, *plain.ready.values()])
    stopped = [each == "off" and at >= least for at, each in enumerate(plain.does)]
    assert all(counters[at * width, KEPT] in (0, 5) for at, is_off in enumerate(stopped) if is_off)
    state.sums["coming"][0] = 1
    assert scaler.act(now) == bool(plain.ready)
    state.instances["ends"][0] = 3.0
    assert scaler.act(now)


def test_an_instance_that_has_drained_loses_its_cache():
    rules = Scaling(2, 10.0, start=20.0, every=1.0, keep=0.5)
    counters = np.zeros((4, 32), dtype=np.int64)
    state = Of(
        counters=counters, sums={"coming": np.array([0])}, states=[0],
        instances={"ends": np.array([np.inf])}, caches=Of(nodes=np.zeros((0, 1))),
    )  # fmt: skip
    scaler = Autoscaler(rules._replace(least=1), state, 2)
    counters[:, KEPT] = 7
    counters[2:, DOWN] = DRAINS
    counters[3, RUNS] = 1
    scaler.act(0.5)
    assert counters[:, DOWN].tolist() == [SERVES, SERVES, DRAINS, DRAINS]
    counters[3, RUNS] = 0
    scaler.act(0.75)
    assert counters[:, DOWN].tolist() == [SERVES, SERVES, STOPPED, STOPPED]
    assert counters[:, KEPT].tolist() == [7, 7, 0, 0]


@pytest.mark.parametrize(("load", "serving"), [(10, 1), (11, 1), (12, 2), (9, 1)])
def test_a_load_within_a_tenth_of_the_wanted_changes_nothing(load, serving):
    """One instance serves, and is to have ten requests: eleven are near enough, twelve are not."""
    counters = np.zeros((4, 32), dtype=np.int64)
    state = Of(
        counters=counters, sums={"coming": np.array([0])}, states=[0],
        instances={"ends": np.array([np.inf])}, caches=Of(nodes=np.zeros((0, 1))),
    )  # fmt: skip
    scaler = Autoscaler(Scaling(1, 10.01, start=0.5, every=1.0, keep=0.5), state, 1)
    counters[0, RUNS] = load
    for second in (1.0, 2.0, 3.0, 4.0):
        scaler.act(second)
    held = counters[:, DOWN] == SERVES
    assert held.sum() + len(scaler._starting) == serving


def test_an_instance_that_drains_is_taken_back_only_if_it_is_wanted():
    counters = np.zeros((2, 32), dtype=np.int64)
    state = Of(
        counters=counters, sums={"coming": np.array([0])}, states=[0],
        instances={"ends": np.array([np.inf])}, caches=Of(nodes=np.zeros((0, 1))),
    )  # fmt: skip
    scaler = Autoscaler(Scaling(1, 10.0, start=0.5, every=1.0, keep=0.5), state, 1)
    counters[1, DOWN] = DRAINS
    counters[:, RUNS] = 5
    scaler.act(1.0)
    assert counters[:, DOWN].tolist() == [SERVES, DRAINS]
    counters[0, RUNS] = 12
    scaler.act(2.0)
    assert counters[:, DOWN].tolist() == [SERVES, SERVES]
