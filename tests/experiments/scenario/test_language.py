"""The language of what-ifs: how words are read, and what is refused with which hint."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.baseline import Settings, baseline
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import matches, ranks_of, words_of
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import WhatIfError
from simulator.workload import What
from topologies import load_cluster


@pytest.fixture(scope="module")
def base(pytestconfig):
    sample = pytestconfig.rootpath / "traces/samples/gpu-dp2-tp4"
    return baseline(sample, "dgx-a100", Settings(nodes=2))


@pytest.mark.parametrize(
    ("name", "pattern", "fits"),
    [
        ("Gemm", "gemm", True),
        ("a_gemm_b", "gemm", False),
        ("a_gemm_b", "*GEMM*", True),
        ("f[clone]", "f[clone]", True),
        ("f[clone]", "f[c*", True),
        ("fc", "f[clone]", False),
        ("ab", "a?", True),
    ],
)
def test_brackets_in_a_name_are_brackets(name, pattern, fits):
    assert matches(name, pattern) == fits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is nothing to change"),
        ("compute x0.5 and", "there is nothing to change"),
        ("compute", "say what to do with 'compute'"),
        ("compute 0.5", "'0.5' is not a factor such as x0.5"),
        ("compute x0", "factor 0 is not a number from"),
        ("compute xinf", "'xinf' is not a factor"),
        ("overlap full and overlap none", "overlap is set twice, and only the last would count"),
        ("pcie.bandwidth = 9 GB/s and pcie.bandwidth = 8 GB/s", "pcie.bandwidth is set twice"),
        ("compute x0", "factor 0 is not a number from .*; 'drop' in its place takes no time"),
        ("compute x-1", "'x-1' is not a factor"),
        ("compute dorp", "did you mean 'drop'?"),
        ("scale_up.bandwith x2", r"did you mean 'scale_up\.bandwidth'?"),
        ("rank 3 scale_up.bandwidth x2", "leave 'rank' out"),
        ("rank x compute x2", "'x' is not a list of ranks"),
        ("rank 3-1 compute x2", "'3-1' is not a list of ranks"),
        ("rank 3", "name a rank and what to change, such as 'rank 3 compute x1.2'"),
        ("scale_up.bandwidth = 5", "'5' has no unit"),
        ("scale_up.bandwidth = 0 GB/s", "is not positive"),
        ("scale_up.size = two", "'two' is not a number of ranks"),
        ("compute = 5", "'compute' is not a resource of the cluster"),
        ("scale_up.bandwidth =", "'=' is not a factor"),
        ("imbalance 2", "only all_to_all has an imbalance"),
        ("scale_up.bandwidth drop", "cannot be dropped"),
        ("all_reduce x0.5", "say 'bytes' or 'time' of 'all_reduce'"),
        ("all_reduc@tp bytes x0.5", "'all_reduc' is not a kind of call; did you mean 'all_reduce'"),
        ("nccl bytes x0.5", "'nccl' is not a kind of call"),
        ("algorithm all_reduce=rign", "no algorithm 'rign'"),
        ("algorithm", "is not a rule"),
        ("overlap off", "overlap is one of none, full, not 'off'"),
        ("stragglers injected", "stragglers are 'removed'"),
        ("fuse", "name the kernels to fuse"),
        ("fuse a b x2", "name the kernels to fuse"),
        ("void gemm x2", "'void gemm' is not one name"),
        ("fus gemm x2", "did you mean 'fuse'"),
        ("rank 1 overlap none", "leave 'rank' out"),
        ("all_reduce imbalance 2", "only all_to_all has an imbalance"),
        ("all_to_all imbalance 0.5", "must be 1 or more"),
        ("all_to_all imbalance nowhere.csv", "no such file"),
        ("rank 1 all_to_all imbalance 2", "leave 'rank' out"),
    ],
)
def test_what_is_written_wrong_is_refused_with_the_way_to_all_forms(text, message):
    with pytest.raises(WhatIfError, match=message) as caught:
        parse_change(text)
    assert str(caught.value).endswith("; 'twofold what-if --help' lists all forms")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gemm x0.5", r"no op is called 'gemm'; '\*gemm\*' would be 576 kernels on 8 ranks"),
        ("compte x0.5", "did you mean 'compute'"),
        ("softmax_warp_forwrad x0.5", "did you mean 'softmax_warp_forward'"),
        ("nccl* x0.5", "names calls; write, for example, 'all_reduce time x0.5'"),
        ("rank 9 compute x2", "rank 9 is not in the trace, which has 8 ranks, 0 to 7"),
        ("all_gather drop", r"no call matches 'all_gather'; the step has 48 all_reduce of tp"),
        ("all_reduce@pp time x2", "no call matches 'all_reduce@pp'"),
        ("all_to_all imbalance 2", "no call matches 'all_to_all'; the step has"),
        ("algorithm all_reduce[1TB..]=ring", "no call matches 'all_reduce"),
        ("gaps x0.5", "there are no gaps"),
        ("launch drop and launch x2", "no launch takes time"),
        ("fuse *flash_fwd*", "is 48 kernels on 8 ranks, no two of which follow each other"),
        ("fuse Memcpy*", "'Memcpy.' is no kernels, no two of which"),
        ("scale_up.size x0.3", "is 2.4, not a whole number"),
    ],
)
def test_what_touches_nothing_is_refused(base, text, message):
    with pytest.raises(WhatIfError, match=message) as caught:
        parse_change(text).apply(base.scenario)
    assert str(caught.value).startswith(f"what-if {text!r}: ")


@given(st.text(alphabet="compute x05.drop\"'@=[]- and", max_size=30))
def test_any_text_is_a_change_or_refused(text):
    with suppress(WhatIfError):
        assert parse_change(text).parts


@pytest.mark.parametrize(
    ("text", "is_network"),
    [
        ("cluster hgx-h100", True),
        ("topology scale_out=rail:1x2", True),
        ("routing ecmp", True),
        ("transport sockets", True),
        ("p2p PIX", True),
        ("NCCL_NVLS_ENABLE = 0", True),
        ("scale_up.bandwidth = 900 GB/s", False),
        ("accelerator hgx-h100", False),
        ("all_reduce bytes x0.5", False),
        ("all_to_all@ep imbalance 2", False),
        ("algorithm all_reduce=ring", False),
        ("rank 0-3 gemm* x0.5", False),
        ("replicas@dp x4 outermost", False),
        ("fuse 'a b' x0.5", False),
        ("layers 4 -> 8", False),
        ("one call per rank", False),
    ],
)
def test_a_what_if_is_of_another_network_or_not_and_no_word_can_be_missing(text, is_network):
    """Corrections that were measured on this network hold for another one no more."""
    assert parse_change(text).is_network == is_network
    words = text.split()
    for left_out in range(len(words)):
        with suppress(WhatIfError):
            parse_change(" ".join(words[:left_out] + words[left_out + 1 :]))


def test_words_and_ranks_are_read_as_written():
    words = words_of("""fuse "a b" 'and' and x2""")
    assert [word.text for word in words] == ["fuse", "a b", "and", "and", "x2"]
    assert [word.quoted for word in words] == [False, True, True, False, False]
    assert ranks_of(words_of("0-2,8,1")[0]) == (0, 1, 2, 8)


def test_an_imbalance_moves_as_many_bytes_unevenly():
    builder = WorkloadBuilder(job_ranks=4)
    group = builder.group((0, 1, 2, 3), "ep")
    for size in (4e6, float("nan")):
        call = builder.call(CallRow("all_to_all", group, 0, size, transfer=1e-6))
        for rank in range(4):
            builder.op(
                What.COLLECTIVE, rank=rank, lane=f"{size}", name="a2a", duration=0.0, call=call
            )
    even = Scenario(builder.build(), load_cluster("hgx-h100"))
    changed = parse_change("all_to_all@ep imbalance 2").apply(even)
    first = changed.scenario.workload.call_view(0)
    assert first.size == 8e6
    assert first.shares.bytes(first.size).sum() == pytest.approx(4 * 4e6)
    assert changed.scenario.workload.call_view(1).shares is None
    assert "1 of unknown size unchanged" in changed.note
    assert changed.scenario.run().makespan > even.run().makespan
    back = parse_change("all_to_all imbalance 1").apply(changed.scenario).scenario
    assert back.workload.call_view(0).size == pytest.approx(4e6)
    assert back.run().makespan == pytest.approx(even.run().makespan)
