"""How unevenly ranks or experts are asked, in each of its forms: closed forms, and what is refused.

Refusals name the file, the line and the column.
"""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.imbalance import parse_imbalance, zipf
from simulator.shares import of_bytes
from simulator.support.errors import WorkloadError


def table(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return str(path)


@given(st.integers(1, 9), st.floats(0, 1))
def test_of_a_factor_one_rank_has_so_many_means_and_the_others_share_the_rest(ranks, part):
    factor = 1 + part * (ranks - 1)
    found = parse_imbalance(f" {factor!r} ")
    assert (found.factor, found.varies, str(found)) == (factor, False, repr(factor))
    shares = found.popularity(ranks, 3 * ranks, layer=4)
    assert shares[0] == pytest.approx(factor / ranks)
    rest = (1 - factor / ranks) / (ranks - 1) if ranks > 1 else 0.0
    assert shares[1:] == pytest.approx(np.full(ranks - 1, rest))
    size, spread = found.of_ranks(ranks)
    assert size is None
    assert spread == of_bytes(np.tile(shares, (ranks, 1)))[1]


@given(st.integers(1, 6), st.integers(1, 3), st.floats(0, 3), st.integers(0, 9))
def test_under_zipf_s_law_the_kth_is_asked_in_proportion_to_a_power_of_k(
    ranks, each, exponent, layer
):
    found, experts = parse_imbalance(f"Zipf:{exponent!r}"), ranks * each
    assert found.varies
    weights = [1 / k**exponent for k in range(1, experts + 1)]
    wanted = [weight / sum(weights) for weight in weights]
    assert zipf(experts, exponent) == pytest.approx(wanted)
    of_experts = found.of_experts(experts, layer)
    assert sorted(of_experts, reverse=True) == pytest.approx(wanted)
    of_ranks = found.popularity(ranks, experts, layer)
    assert of_ranks == pytest.approx(
        [sum(of_experts[k * each : (k + 1) * each]) for k in range(ranks)]
    )
    assert found.popularity(ranks, experts, layer).tolist() == of_ranks.tolist()
    assert found.of_ranks(experts)[1] == of_bytes(np.tile(wanted, (experts, 1)))[1]


def test_layers_differ_in_who_is_popular_under_zipf_s_law():
    found = parse_imbalance("zipf:1")
    drawn = {tuple(found.of_experts(32, layer)) for layer in range(8)}
    assert len(drawn) == 8


def test_a_matrix_is_bytes_of_each_pair(tmp_path):
    found = parse_imbalance(table(tmp_path, "# senders in rows\n1, 2\n\n3, 0\n"))
    assert found.matrix.tolist() == [[1, 2], [3, 0]]
    assert not found.varies
    size, shares = found.of_ranks(2)
    assert (size, shares) == of_bytes(np.array([[1.0, 2.0], [3.0, 0.0]]))
    with pytest.raises(WorkloadError, match="a matrix of 2 ranks, but 3 take part"):
        found.of_ranks(3)
    with pytest.raises(WorkloadError, match="is for ranks, not for experts"):
        found.of_experts(2, 0)


HISTOGRAM = "Tokens,Expert,layer\n6,0,1\n2,3,1\n5,1,7\n"


def test_a_histogram_is_tokens_of_each_expert_of_a_layer(tmp_path):
    path = table(tmp_path, HISTOGRAM)
    found = parse_imbalance(path)
    assert found.varies
    assert found.tokens(1).tolist() == [6, 0, 0, 2]
    assert found.tokens(7).tolist() == [0, 5, 0, 0]
    assert found.of_experts(5, 1).tolist() == [0.75, 0, 0, 0.25, 0]
    assert found.popularity(2, 4, 1).tolist() == [0.75, 0.25]
    with pytest.raises(WorkloadError, match="expert 3, but the model has 3 experts"):
        found.of_experts(3, 1)
    with pytest.raises(WorkloadError, match=r"no rows of layer 2, .*it has 1, 7$"):
        found.tokens(2)
    with pytest.raises(WorkloadError, match=r"2 layers: say which, such as .*table.csv:1$"):
        found.of_ranks(2)
    one = parse_imbalance(f"{path}:7")
    assert (one.layer, one.text) == (7, path)
    assert one.of_ranks(2)[1] == of_bytes(np.array([[1.0, 0.0]] * 2))[1]
    assert one.of_ranks(4)[1] == of_bytes(np.array([[0.0, 1.0, 0.0, 0.0]] * 4))[1]
    with pytest.raises(WorkloadError, match="4 experts do not lie evenly on 3 ranks"):
        one.of_ranks(3)
    with pytest.raises(WorkloadError, match="there is no layer 2"):
        parse_imbalance(f"{path}:2")


def test_a_histogram_of_no_layers_is_that_of_all(tmp_path):
    found = parse_imbalance(table(tmp_path, "expert,tokens\n0,3\n1,1\n"))
    assert not found.varies
    assert found.tokens(0).tolist() == found.tokens(9).tolist() == [3, 1]
    assert found.of_ranks(2)[1] == of_bytes(np.array([[0.75, 0.25]] * 2))[1]
    single = parse_imbalance(table(tmp_path, "layer,expert,tokens\n5,0,3\n5,1,1\n"))
    assert single.varies
    assert single.of_ranks(2)[1] == found.of_ranks(2)[1]


def test_what_it_says_is_its_text_and_its_file(tmp_path):
    one, other = (
        parse_imbalance(table(tmp_path, HISTOGRAM.replace("6,0,1", f"{many},0,1")))
        for many in (6, 7)
    )
    assert one.content != other.content
    assert one.content[0] == other.content[0] == str(tmp_path / "table.csv")
    assert [row[0] for row in one.content[1:]] == [1, 7]
    assert one.content == parse_imbalance(table(tmp_path, HISTOGRAM)).content
    flat = parse_imbalance(table(tmp_path, "expert,tokens\n0,3\n"))
    assert flat.content[1:] == ((None, np.array([3.0]).tobytes()),)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("0.99", "the busiest rank over the mean must be 1 or more"),
        ("zipf:-0.1", "needs an exponent of 0 or more"),
        ("zipf:much", "needs an exponent of 0 or more"),
        ("nowhere.csv", "no such file"),
        ("nowhere.csv:3", "no such file"),
    ],
)
def test_a_form_that_cannot_be_is_refused(said, why):
    with pytest.raises(WorkloadError, match=why):
        parse_imbalance(said)


def test_no_rank_receives_more_than_all():
    assert parse_imbalance("4").popularity(4, 4, 0).tolist() == [1, 0, 0, 0]
    assert parse_imbalance("zipf:0").of_experts(4, 0).tolist() == [0.25] * 4
    with pytest.raises(WorkloadError, match="the busiest of 4 ranks receives 4 times the mean at"):
        parse_imbalance("4.001").popularity(4, 4, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# nothing\n\n", ": is empty; write a factor"),
        ("1,2\n3\n", ", line 2: 1 columns of a matrix of 2 rows"),
        ("1,2\n\n3,-1\n", ", line 3, column 2: '-1' is not an amount"),
        ("0,0\n0,0\n", ": every entry is 0"),
        ("expert,count\n0,1\n", ", line 1: no column tokens: it has 'expert, count'"),
        ("#\nid,tokens\n0,1\n", ", line 2: no column expert: it has 'id, tokens'"),
        ("expert,tokens\n0,1\n1\n", ", line 3: 1 of 2 columns"),
        ("expert,tokens\n0.5,1\n", ", line 2: expert: '0.5' is not a whole number of 0 or more"),
        (f"expert,tokens\n{1 << 20},1\n", "is not a whole number of 0 or more"),
        ("layer,expert,tokens\n-1,0,1\n", ", line 2: layer: '-1' is not a whole number"),
        ("expert,tokens\n0,1\n0,1\n", ", line 3: expert 0 appears twice"),
        (
            "layer,expert,tokens\n2,0,1\n1,0,1\n2,0,1\n",
            ", line 4: expert 0 of layer 2 appears twice",
        ),
        ("expert,tokens\n0,x\n", ", line 2: tokens: 'x' is not an amount"),
        ("expert,tokens\n", ": the histogram has no rows; it needs one per expert"),
    ],
)
def test_a_table_that_cannot_be_is_refused_by_its_line(tmp_path, text, why):
    path = table(tmp_path, text)
    with pytest.raises(
        WorkloadError, match=f"^{re.escape(path)}{'.*' * (why[0] not in ':,')}{re.escape(why)}"
    ):
        parse_imbalance(path)


def test_a_layer_that_has_no_tokens_and_a_matrix_of_layers_are_refused(tmp_path):
    found = parse_imbalance(table(tmp_path, "layer,expert,tokens\n0,0,0\n1,0,2\n"))
    with pytest.raises(WorkloadError, match="tokens: layer 0 has none"):
        found.of_experts(1, 0)
    assert (
        parse_imbalance(table(tmp_path, f"expert,tokens\n{(1 << 20) - 1},1\n")).tokens(0)[-1] == 1
    )
    path = table(tmp_path, "1,2\n3,4\n")
    with pytest.raises(WorkloadError, match="a matrix has no layers"):
        parse_imbalance(f"{path}:0")
