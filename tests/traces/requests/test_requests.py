"""Request tables: readers of every format, refusals by file, line and field, generators."""

import gzip
import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.support.errors import TraceError, WorkloadError
from simulator.support.quantities import CENTURY
from traces.requests.readers import read_logged, read_requests
from traces.requests.table import (
    Hashes,
    Rates,
    Requests,
    generate_requests,
    parse_rate,
    parse_rates,
    parse_spread,
)

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
FILES = {
    "azure.csv": AZURE + "2023-11-16 18:15:50.9951690,396,109\n",
    "vidur.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens\n5,G,374,44\n9.314579,G,396,109\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 374, "output_length": 44}\n'
    '{"timestamp": 4314.579, "input_length": 396, "output_length": 109}\n',
    "simulator.jsonl": '{"arrival_time_ns": 0, "input_toks": 374, "output_toks": 44}\n'
    '{"arrival_time_ns": 4314579000, "input_toks": 396, "output_toks": 109}\n',
    "log.jsonl": '{"queued_ts": 3, "arrival_time": 2, "input_toks": 374, "output_toks": 44}\n'
    '{"queued_ts": 7.314579, "arrival_time": 6, "input_toks": 396, "output_toks": 109}\n',
    "vllm.json": '{"input_lens": [374, 396], "output_lens": [44, 109], '
    '"start_times": [7.0, 11.314579]}',
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_says_the_same(name, tmp_path):
    file = tmp_path / name
    file.write_text(FILES[name])
    table = read_requests(file)
    assert table.arrival == pytest.approx([0.0, 4.314579])
    assert (table.prompt.tolist(), table.output.tolist()) == ([374, 396], [44, 109])


def test_compressed_files_are_read(tmp_path):
    file = tmp_path / "trace.jsonl.gz"
    file.write_bytes(gzip.compress(FILES["mooncake.jsonl"].encode()))
    assert len(read_requests(file)) == 2


def test_dates_are_of_no_time_zone_of_the_reader(tmp_path, monkeypatch):
    """In New York, 2:30 came an hour before 3:00 on 10 March 2024; in UTC, half an hour."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    file = tmp_path / "azure.csv"
    first = AZURE.replace("2023-11-16 18:15:46.6805900", "2024-03-10 01:30:00.0000000")
    file.write_text(first + "2024-03-10 03:00:00+00:00,396,109\n")
    arrival = read_requests(file).arrival
    monkeypatch.undo()
    time.tzset()
    assert arrival.tolist() == [0.0, 5400.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no request"),
        ("a,b\n1,2\n", "its columns are not those of a request trace"),
        (
            AZURE.splitlines()[0] + ",arrived_at,num_prefill_tokens,num_decode_tokens\n"
            "2023-11-16 18:15:46,3,4,0,5,6\n",
            "the columns of Azure and Vidur",
        ),
        (AZURE.replace("374", "many"), "line 2: ContextTokens 'many' is not a count of tokens"),
        (AZURE.replace("374", "-4"), "line 2: ContextTokens '-4' is not a count of tokens"),
        (AZURE.replace("2023-11-16 18:15:46.6805900", "noon"), "TIMESTAMP 'noon' is not a time"),
        (
            AZURE.replace("46.6805900", "46+02:00") + "2023-11-16 18:15:50,396,109\n",
            "line 3: TIMESTAMP: times with and without an offset from UTC",
        ),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,0\n", "line 2: num_decode_tokens 0"),
        ("Timestamp,Request tokens,Response tokens\n0,5,0\n", "no request asks for a token"),
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens\n1,5,1\n0,5,1\n",
            "line 3: it arrives before",
        ),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\nnan,5,1\n", "is not a time"),
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens,priorty\n0,5,1,2\n",
            "did you mean priority",
        ),
        (
            '{"timestamp": 0, "input_length": 1025, "output_length": 1, "hash_ids": [1]}\n',
            "request 0 has 1 hashes of 512 tokens for a prompt of 1025",
        ),
        (
            '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1, 2]}\n',
            "request 0 has 2 hashes of 512 tokens for a prompt of 9",
        ),
        (
            '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": 7}\n',
            "line 1: hash_ids 7 is not a list",
        ),
        ('{"timestamp": 0, "input_length": 1\n', "line 1: not JSON"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n-1,5,1\n", "'-1' is not a time"),
        ('{"input_lens": [], "output_lens": []}', "there is no request"),
        (
            '{"timestamp": 0, "input_length": 9, "output_length": 1}\n'
            '{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n',
            "line 2: hash_ids: the first line has none",
        ),
    ],
)
def test_what_is_wrong_is_said_with_line_and_field(text, said, tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_requests(file)


@given(st.integers(0, 10**6), st.sampled_from(["poisson", "gamma", "even"]))
def test_one_seed_makes_the_same_requests(seed, arrivals):
    first, second = (
        generate_requests(50, Rates(3.0, 3.0, process=arrivals), 100, 20, seed=seed, spread=0.5)
        for _ in range(2)
    )
    assert (first.arrival == second.arrival).all()
    assert (first.prompt == second.prompt).all()
    assert first.prompt.min() >= 50
    assert first.prompt.max() <= 100


def test_the_rate_is_kept_by_every_process():
    for arrivals in ("poisson", "gamma", "even"):
        rates = Rates(8.0, 8.0, process=arrivals, burstiness=0.5)
        table = generate_requests(20_000, rates, 10, 10)
        assert table.rate == pytest.approx(8.0, rel=0.05)


@pytest.mark.parametrize("text", ["4/s to 12/s", "12/s to 4/s even", "20/s to 2/s gamma 0.5"])
def test_a_ramp_has_its_rates_at_both_ends_and_their_mean_between(text):
    rates = parse_rates(text)
    table = generate_requests(40_000, rates, 10, 10)
    assert table.rate == pytest.approx((rates.first + rates.second) / 2, rel=0.05)
    for part, rate in ((table.arrival[:800], rates.first), (table.arrival[-800:], rates.second)):
        assert 799 / np.ptp(part) == pytest.approx(rate, rel=0.25)


def test_bursts_have_their_rate_at_the_end_of_each_period():
    table = generate_requests(30_000, parse_rates("2/s, 20/s for 10 s every 60 s"), 10, 10)
    burst = table.arrival % 60 > 50
    seconds = table.arrival[-1] / 60
    assert burst.sum() / (10 * seconds) == pytest.approx(20, rel=0.05)
    assert (~burst).sum() / (50 * seconds) == pytest.approx(2, rel=0.05)


def test_log_normal_lengths_have_the_nominal_mean_and_their_spread():
    lengths = generate_requests(40_000, 1.0, 1000, 10, spread=parse_spread("2")).prompt
    assert lengths.mean() == pytest.approx(1000, rel=0.02)
    assert np.quantile(lengths, 0.8413) / np.median(lengths) == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize(
    "text", ["8", "8/s to", "2/s, 9/s for 9 s every 5 s", "1/s gamma 0", "1/s even 2"]
)
def test_rates_that_are_none_are_refused(text):
    with pytest.raises(WorkloadError, match="write requests per second"):
        parse_rates(text)


@pytest.mark.parametrize("sent", ['"request_rate": 8.0', '"max_concurrency": 64'])
def test_a_benchmark_without_times_is_read_only_if_all_were_sent_at_once(sent, tmp_path):
    file, lists = tmp_path / "sglang.jsonl", '{"input_lens": [374], "output_lens": [44], '
    file.write_text(lists + '"request_rate": Infinity}\n')
    assert read_requests(file).arrival.tolist() == [0.0]
    file.write_text(lists + sent + "}\n")
    with pytest.raises(TraceError, match="start_times: missing"):
        read_requests(file)


@pytest.mark.parametrize(
    ("rate", "said"), [(0.0, "rate 0 is not"), (float("nan"), "rate nan is not")]
)
def test_a_load_without_a_rate_is_refused(rate, said):
    with pytest.raises(TraceError, match=said):
        generate_requests(10, rate, 10, 10)


def test_times_that_fall_are_refused():
    ones = np.ones(2, dtype=np.int64)
    with pytest.raises(TraceError, match="request 1 arrives before"):
        Requests(np.array([1.0, 0.5]), ones, ones, "mine")
    assert json.dumps(Requests(np.array([0.0, 0.5]), ones, ones, "mine").rate) == "2.0"


LINES = [
    {"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": ["a", "b"]},
    {"timestamp": 500, "input_length": 4, "output_length": 2, "hash_ids": ["a"], "priority": 2},
    {"timestamp": 500, "input_length": 12, "output_length": 3, "hash_ids": ["c", "b", "a"]},
    {"timestamp": 900, "input_length": 1, "output_length": 4, "hash_ids": ["b"], "model": "m"},
    {"timestamp": 950, "input_length": 5, "output_length": 5, "hash_ids": ["b", "a"], "model": ""},
]
LINES[2] |= {"session_id": "s", "model": "n"}
LINES[3] |= {"session_id": "t", "priority": -1}
LINES[4] |= {"session_id": "s", "model": "m"}


def from_lines(lines, folder):
    file = folder / "lines.jsonl"
    file.write_text("".join(json.dumps({**line, "hash_tokens": 4}) + "\n" for line in lines))
    return read_requests(file)


def described(table, start=0.0):
    """Requests as tuples, whose hashes, sessions and models are told by who else has them."""

    def of(column, number):
        return None if column is None else int(column[number])

    ids, offset = table.hashes.ids.tolist(), table.hashes.offset.tolist()
    seen, sessions, told = {}, {}, []
    for number in range(len(table)):
        blocks = ids[offset[number] : offset[number + 1]]
        session, model = of(table.session, number), of(table.model, number)
        told.append(
            (
                round(float(table.arrival[number]) - start, 9),
                *(int(column[number]) for column in (table.prompt, table.output)),
                tuple(seen.setdefault(block, len(seen)) for block in blocks),
                -1 if session in (None, -1) else sessions.setdefault(session, len(sessions)),
                of(table.priority, number) or 0,
                None if model in (None, -1) else table.models[model],
            )
        )
    return told


def test_every_column_is_read_and_equal_names_are_equal_numbers(tmp_path):
    table = from_lines(LINES, tmp_path)
    assert described(table) == [
        (0.0, 9, 1, (0, 1), -1, 0, None),
        (0.5, 4, 2, (0,), -1, 2, None),
        (0.5, 12, 3, (2, 1, 0), 0, 0, "n"),
        (0.9, 1, 4, (1,), 1, -1, "m"),
        (0.95, 5, 5, (1, 0), 0, 0, "m"),
    ]
    assert table.hashes.tokens == 4
    assert table.models_asked == ["n", "m"]
    assert table.rate == pytest.approx(4 / 0.95)
    assert from_lines(LINES[:2], tmp_path).models_asked == []


@given(chosen=st.sets(st.integers(0, 4), min_size=1).map(sorted))
def test_chosen_requests_are_those_of_a_file_of_their_lines(chosen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chosen")
    rows = from_lines(LINES, folder).rows(np.array(chosen))
    alone = from_lines([LINES[number] for number in chosen], folder)
    assert described(rows, float(rows.arrival[0])) == described(alone)


def test_at_a_higher_rate_the_same_requests_come_earlier(tmp_path):
    table = from_lines(LINES, tmp_path)
    faster = table.faster(4.0)
    assert faster.arrival == pytest.approx(table.arrival / 4)
    assert faster.rate == pytest.approx(4 * table.rate)
    assert (faster.prompt == table.prompt).all()


def test_requests_that_come_at_once_have_an_infinite_rate(tmp_path):
    assert from_lines(LINES[1:3], tmp_path).rate == float("inf")
    assert from_lines(LINES[:1], tmp_path).rate == float("inf")


def table_of(**columns):
    arrays = {"arrival": [0.0, 1.0], "prompt": [8, 8], "output": [1, 1], **columns}
    hashes = arrays.pop("hashes", None)
    if hashes is not None:
        counts = [len(row) for row in hashes]
        ids = np.arange(sum(counts), dtype=np.int64)
        hashes = Hashes(4, np.concatenate([[0], np.cumsum(counts)]), ids)
    return Requests(**{name: np.array(each) for name, each in arrays.items()}, source="t",
                    hashes=hashes)  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"prompt": [1, 2**28], "output": [2**28, 1]}, ""),
        ({"prompt": [1, 2**28 + 1]}, "request 1: prompt tokens must be 1 to"),
        ({"output": [0, 1]}, "request 0: output tokens must be 1 to"),
        ({"output": [1]}, "request 2: output tokens"),
        ({"arrival": [0.0, CENTURY]}, ""),
        ({"arrival": [0.0, 1.01 * CENTURY]}, "beyond a century"),
        ({"arrival": [-0.1, 1.0]}, "negative"),
        ({"arrival": [0.0, 0.0]}, ""),
        ({"arrival": [0.5, 0.4]}, "request 1 arrives before"),
        ({"arrival": [], "prompt": [], "output": []}, "there is no request"),
        ({"prompt": [8, 9], "hashes": [[1, 2], [3, 4]]}, ""),
        ({"prompt": [8, 9], "hashes": [[1, 2], [3, 4, 5]]}, ""),
        ({"prompt": [8, 9], "hashes": [[1], [3, 4, 5]]}, "request 0 has 1 hashes of 4 tokens"),
        ({"prompt": [8, 9], "hashes": [[1, 2], [3, 4, 5, 6]]}, "request 1 has 4 hashes"),
        ({"prompt": [8, 8], "output": [1, 4], "hashes": [[1, 2, 3], [3, 4, 5]]}, ""),
        ({"prompt": [8, 8], "output": [1, 4], "hashes": [[1, 2, 3, 4], [3]]}, "request 0 has 4"),
    ],
)
def test_a_table_is_refused_beyond_its_bounds_and_not_at_them(columns, said):
    if not said:
        assert len(table_of(**columns)) == 2
        return
    with pytest.raises(TraceError, match=said):
        table_of(**columns)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10/s", 10.0), ("90/min", 1.5), (" 3 ", 3.0), ("1e9/s", 1e9), ("1e-9", 1e-9)]
    + [(text, None) for text in ("1.1e9", "0.9e-9/s", "5/h", "0", "-1/s", "x/s")],
)
def test_a_rate_is_of_a_second_or_a_minute_within_bounds(text, rate):
    if rate is not None:
        assert parse_rate(text) == pytest.approx(rate)
        return
    with pytest.raises(TraceError, match="write requests per second"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("3/s", Rates(3.0, 3.0)),
        ("3/s even", Rates(3.0, 3.0, process="even")),
        ("3/s to 6/s gamma 0.01", Rates(3.0, 6.0, process="gamma", burstiness=0.01)),
        ("3/s gamma 100", Rates(3.0, 3.0, process="gamma", burstiness=100.0)),
        ("3/s, 6/s for 1 s every 2 s", Rates(3.0, 6.0, 1.0, 2.0)),
        *((text, None) for text in ("3/s gamma 0.009", "3/s gamma 101", "3/s gamma", "3/s even 1")),
        *((f"3/s, 6/s for {each}", None) for each in ("2 s every 2 s", "0 s every 2 s")),
    ],
)
def test_rates_are_read_up_to_their_bounds(text, rates):
    if rates is not None:
        assert parse_rates(text) == rates
        return
    with pytest.raises(WorkloadError, match="write requests per second"):
        parse_rates(text)


@pytest.mark.parametrize(
    ("client", "spread"),
    [("fixed", 1.0), ("inferencex", 0.8), ("100", 100.0), ("0.01", 0.01)]
    + [(client, None) for client in ("101", "0", "-1", "nan", "aiperf")],
)
def test_a_client_is_a_name_or_a_spread_up_to_100(client, spread):
    if spread is not None:
        assert parse_spread(client) == spread
        return
    with pytest.raises(WorkloadError, match="nor a spread"):
        parse_spread(client)


def test_even_arrivals_are_equal_gaps_and_lengths_without_spread_are_equal():
    table = generate_requests(5, parse_rates("4/s even"), 100, 7)
    assert table.arrival == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    assert (set(table.prompt.tolist()), set(table.output.tolist())) == ({100}, {7})
    one = generate_requests(2000, 1.0, 3, 1, spread=0.01)
    assert sorted(set(one.prompt.tolist())) == [1, 2, 3]


def test_a_first_request_comes_at_once_and_gaps_have_their_processs_scatter():
    for process, burstiness in (("poisson", 1.0), ("gamma", 0.25), ("gamma", 4.0)):
        rates = Rates(5.0, 5.0, process=process, burstiness=burstiness)
        table = generate_requests(20_000, rates, 1, 1)
        gaps = np.diff(table.arrival)
        assert table.arrival[0] == 0.0
        # The coefficient of variation of a gamma distribution is one over the root of its shape.
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_an_even_ramp_is_the_integral_of_its_rate():
    """From 2 to 6 per second over as long as 12 requests take at 4: 3 s; then at the last rate."""
    times = Rates(2.0, 6.0).times(np.arange(13.0)[1:])
    assert 2 * times + 2 / 3 * times**2 == pytest.approx(np.arange(1.0, 13.0))
    assert times[-1] == pytest.approx(3.0)
    beyond = Rates(2.0, 6.0).times(np.array([*np.arange(11.0), 18.0]))
    assert beyond[-1] == pytest.approx(3.0 + (18 - 12) / 6)


@pytest.mark.parametrize("value", [0.0, 2e9, float("nan")])
@pytest.mark.parametrize("name", ["count", "rate", "prompt", "output", "burstiness", "spread"])
def test_no_number_of_a_load_is_out_of_bounds(name, value):
    asked = {"count": 5, "rate": 1.0, "prompt": 9, "output": 9, name: value}
    if name == "burstiness":
        asked["rate"] = Rates(1.0, 1.0, burstiness=asked.pop(name))
    with pytest.raises(TraceError, match=" is not 1e-9 to 1e9"):
        generate_requests(**asked)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"input_lens": [4, 2**28]}, ""),
        ({"input_lens": [4, 2**53 + 2]}, "input_lens is not a list of whole numbers"),
        ({"input_lens": [4, 2**53]}, "request 1: prompt tokens"),
        ({"input_lens": [4, True]}, "input_lens is not a list of whole numbers"),
        ({"output_lens": [4, 1.0]}, "output_lens is not a list of whole numbers"),
        ({"output_lens": 4}, "output_lens is not a list of whole numbers"),
        ({"output_lens": [4]}, "differ in length"),
        ({"start_times": [4.0]}, "differ in length"),
        ({"start_times": [4.0, "5"]}, "start_times is not a list of numbers"),
        ({"start_times": [3, 1.5]}, ""),
    ],
)
def test_a_benchmarks_lists_are_numbers_of_equal_length(changed, said, tmp_path):
    lists = {"input_lens": [4, 5], "output_lens": [6, 7], "start_times": [1.5, 3.0], **changed}
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(lists))
    if said:
        with pytest.raises(TraceError, match=said):
            read_requests(file)
        return
    table = read_requests(file)
    assert table.arrival.tolist() == [0.0, 1.5]
    turned = lists["start_times"][0] > lists["start_times"][1]
    assert table.prompt.tolist() == lists["input_lens"][:: -1 if turned else 1]
    assert table.output.tolist() == lists["output_lens"][:: -1 if turned else 1]


LOG = [
    {"request_id": "b", "queued_ts": 12.0, "first_token_ts": 12.5, "last_token_ts": 14.0},
    {"request_id": "a", "queued_ts": 10.0, "first_token_ts": 10.0, "last_token_ts": 10.0},
    {"queued_ts": 13.0, "first_token_ts": None},
]


def test_a_log_is_sorted_by_arrival_and_its_times_count_from_the_first(tmp_path):
    file = tmp_path / "log.jsonl"
    rows = [{**line, "input_toks": n + 1, "output_toks": 2} for n, line in enumerate(LOG)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_logged(file)
    assert log.ids == ("a", "b", "2")
    assert log.requests.arrival.tolist() == [0.0, 2.0, 3.0]
    assert log.requests.prompt.tolist() == [2, 1, 3]
    assert log.first == pytest.approx([0.0, 2.5, np.nan], nan_ok=True)
    assert log.last == pytest.approx([0.0, 4.0, np.nan], nan_ok=True)
    for wrong in ({"first_token_ts": 9.9}, {"last_token_ts": 9.9}, {"last_token_ts": 2 * CENTURY}):
        file.write_text(json.dumps({**rows[1], **wrong}) + "\n")
        with pytest.raises(TraceError, match=r"log\.jsonl, line 1: .* do not ascend from 10 s"):
            read_logged(file)
    file.write_text("".join(json.dumps({**row, "request_id": 7}) + "\n" for row in rows))
    with pytest.raises(TraceError, match="line 2: request_id 7 is that of line 1, too"):
        read_logged(file)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"hash_tokens": 0}, "how many tokens does a hash stand for"),
        ({"hash_tokens": 10**9}, "how many tokens does a hash stand for"),
        ({"hash_ids": [1.5]}, "is not a list of numbers or words"),
        ({"priority": 1.5}, "priority 1.5 is not a whole number"),
        ({"priority": 10**9}, "is not a whole number"),
        ({"input_length": 1.5}, "is not a count of tokens"),
        ({"timestamp": 1001 * CENTURY}, "is not a time"),
    ],
)
def test_a_wrong_cell_of_a_line_is_named_with_its_line(line, said, tmp_path):
    file = tmp_path / "lines.jsonl"
    file.write_text(json.dumps({**LINES[0], "hash_tokens": 4, **line}) + "\n")
    with pytest.raises(TraceError, match=rf"lines\.jsonl, line 1: .*{said}"):
        read_requests(file)


_VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens,num_total_tokens\n0,100,10,{}\n"
_TWIN = '{{"timestamp": 1, "input_length": 9, "output_length": 1, "prompt_tokens": "{}"}}'
_BURST = "Timestamp,Request tokens,Response tokens,Total tokens\n5,472,18,{}\n6,1,0,9\n"
_HASHED = (
    '{{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1], "hash_tokens": 16}}'
    '\n{{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [1]{}}}\n'
)
_BENCHMARK = '{{"input_lens": [9, 9], "output_lens": [5, 6]{}}}'


@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        (_VIDUR, "110", ""),
        (_VIDUR, "", ""),
        (_VIDUR, "111", "line 2: num_total_tokens 111 is not 100 [+] 10"),
        (_TWIN, "9", ""),
        (_TWIN, "8", "line 1: prompt_tokens 8 is not 9"),
        (_BURST, "490", ""),
        (_BURST, "4900", "line 2: Total tokens 4900 is not 472 [+] 18"),
        (_HASHED, "", ""),
        (_HASHED, ', "hash_tokens": 16', ""),
        (_HASHED, ', "hash_tokens": 17', "line 2: hash_tokens: the first line has 16"),
        (_BENCHMARK, ', "completed": 2, "total_output_tokens": 11', ""),
        (_BENCHMARK, ', "completed": 3', "completed 3: output_lens has 2"),
        (_BENCHMARK, ', "total_output_tokens": 12', "total_output_tokens 12: .* has 11"),
        ("[{}]", '{"timestamp": 0}', "line 1: not a table of fields: write one on each line"),
        ("<html>{}</html>\n", "404", "its columns are not those of a request trace"),
    ],
)
def test_a_file_of_requests_does_not_contradict_itself(tmp_path, text, value, said):
    file = tmp_path / "requests"
    file.write_text(text.format(value))
    if not said:
        assert len(read_requests(file))
        return
    with pytest.raises(TraceError, match=said):
        read_requests(file)
