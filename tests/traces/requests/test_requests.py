"""Request tables: readers of every format, refusals by file, line and field, generators."""

import gzip
import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.support.errors import TraceError, WorkloadError
from traces.requests.readers import read_requests
from traces.requests.table import generate_requests, parse_rates, parse_spread

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
FILES = {
    "azure.csv": AZURE + "2023-11-16 18:15:50.9951690,396,109\n",
    "vidur.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens\n5,G,374,44\n9.314579,G,396,109\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 374, "output_length": 44}\n'
    '{"timestamp": 4314.579, "input_length": 396, "output_length": 109}\n',
    "simulator.jsonl": '{"arrival_time_ns": 0, "input_toks": 374, "output_toks": 44}\n'
    '{"arrival_time_ns": 4314579000, "input_toks": 396, "output_toks": 109}\n',
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
        ("a,b\n1,2\n", "its columns are of no request trace"),
        (AZURE.replace("374", "many"), "line 2: ContextTokens 'many' is not a count of tokens"),
        (AZURE.replace("374", "-4"), "line 2: ContextTokens '-4' is not a count of tokens"),
        (AZURE.replace("2023-11-16 18:15:46.6805900", "noon"), "TIMESTAMP 'noon' is not a time"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,0\n", "line 2: num_decode_tokens 0"),
        ("Timestamp,Request tokens,Response tokens\n0,5,0\n", "no request asks for a token"),
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens\n1,5,1\n0,5,1\n",
            "line 3: it arrives before",
        ),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\nnan,5,1\n", "is not a time"),
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
        generate_requests(50, 3.0, 100, 20, seed=seed, arrivals=arrivals, spread=0.5)
        for _ in range(2)
    )
    assert (first.arrival == second.arrival).all()
    assert (first.prompt == second.prompt).all()
    assert first.prompt.min() >= 50
    assert first.prompt.max() <= 100


def test_the_rate_is_kept_by_every_process():
    for arrivals in ("poisson", "gamma", "even"):
        table = generate_requests(20_000, 8.0, 10, 10, arrivals=arrivals, burstiness=0.5)
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
    from traces.requests.table import Requests

    ones = np.ones(2, dtype=np.int64)
    with pytest.raises(TraceError, match="request 1 arrives before"):
        Requests(np.array([1.0, 0.5]), ones, ones, "mine")
    assert json.dumps(Requests(np.array([0.0, 0.5]), ones, ones, "mine").rate) == "2.0"
