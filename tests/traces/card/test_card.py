"""Workload cards: what is there is typed, what is blank is known to be, nothing is lost."""

import tracemalloc
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from helpers.work import python_calls
from simulator.support.errors import TraceError
from traces.card.card import (
    LONGEST,
    Section,
    WorkloadCard,
    looks_like_card,
    parse_card,
    read_card,
    write_card,
)

TEXT = """
version: 1
description: >
  A model of no importance.
hf_url:
contributor: somebody
workload:
  model:
    phase: training
    moe: false
    granularity: model_fwd_bwd_pass
    precision: bf16
    model_arch: {num_params: 8030261248, num_params_embedding: 1050673152, num_layers: 32,
                 num_heads: 32, head_dim: 128}
  data: {batch_size: 4, seq_len: 512, dataset: c4}
  hardware:
    network_topo:
      topology: slingshot
      bandwidth_gbps:
        - 200
        - 2400
    xpu_spec: {type: GPU, model: nvidia_a100, total_count: 8, count_per_node: 4}
    driver_version: cuda_12.8
Model-executor:
  framework: {name: torchtitan, compiler_tool_selection: plain_pytorch}
  model_plan_parallelization: {dp_replicate: 1, dp_shard: 2, tp: 4, pp: 1, cp: 1, ep: 1}
  communication_library:
    name: NCCL
    version: 2.27
    env: {NCCL_IB_QPS_PER_CONNECTION: }
  protocol_selection: [rocev2, p2p]
metric_source:
  traces: [json]
  metrics_specific_trace: [ ]
"""
counts = st.none() | st.integers(1, 10**9)
words = st.none() | st.text("abc 1.:#'\"-é", min_size=1).map(str.strip).filter(
    lambda text: text.lower() not in {"", "-", "na", "n/a", "none"}
)
whole = st.integers(-(2**63) + 1, 2**63 - 1)  # what a file may have
extras = st.recursive(
    st.none() | st.booleans() | whole | st.floats(allow_nan=False) | words | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", min_size=1), inner),
    max_leaves=6,
)


@st.composite
def cards(draw):
    xpu = {"model": draw(words), "total_count": draw(counts), "memory": draw(extras)}
    bandwidths = draw(st.lists(st.none() | st.floats(1e-3, 1e6), max_size=3))
    plan = {kind: draw(counts) for kind in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")}
    return WorkloadCard.model_validate(
        {
            "version": draw(st.none() | st.integers(0, 9)),
            "description": draw(words),
            "workload": {
                "model": {"phase": draw(words), "moe": draw(st.none() | st.booleans())},
                "hardware": {"network_topo": {"bandwidth_gbps": bandwidths}, "xpu_spec": xpu},
            },
            "Model-executor": {"model_plan_parallelization": plan},
            "stranger": draw(extras),
        }
    )


@tries(60)
@given(cards())
def test_a_card_that_is_written_reads_back(card):
    assert parse_card(write_card(card), "card.yaml") == card


def test_values_have_their_types():
    card = parse_card(TEXT, "card.yaml")
    assert card.workload.model.model_arch.num_params == 8030261248
    assert card.executor.communication_library.version == "2.27"
    assert card.executor.protocol_selection == ("rocev2", "p2p")
    assert card.metric_source.metrics_specific_trace == ()
    assert (card.parallelism.dp, card.parallelism.ranks) == (2, 8)
    assert card.hf_url is None
    assert card.notes() == []


def test_bandwidths_are_gigabits():
    told = parse_card(TEXT, "card.yaml").bandwidths()
    assert (told.scale_out, told.scale_up) == (25e9, 300e9)


@pytest.mark.parametrize(
    ("written", "scale_out", "scale_up", "note"),
    [
        ("[2400, 200]", 25e9, 300e9, "the larger is taken as scale-up"),
        ("[200, N/A]", 25e9, None, None),
        ("[N/A, 800]", None, 100e9, None),
        ("[200]", 25e9, None, "assumed to be scale-out"),
        ("200", 25e9, None, "assumed to be scale-out"),
        ("[]", None, None, None),
        ("", None, None, None),
        ("[1, 2, 3]", None, None, "3 values"),
    ],
)
def test_two_bandwidths_are_told_apart(written, scale_out, scale_up, note):
    text = f"workload: {{hardware: {{network_topo: {{bandwidth_gbps: {written}}}}}}}\nversion: 1"
    card = parse_card(text, "card.yaml")
    told = card.bandwidths()
    assert (told.scale_out, told.scale_up) == (scale_out, scale_up)
    assert bool(told.notes) == (note is not None)
    assert note is None or note in told.notes[0]
    assert card.notes() == list(told.notes)


def test_one_bandwidth_on_one_node_is_that_of_the_node():
    hardware = (
        "{network_topo: {bandwidth_gbps: [600]}, xpu_spec: {total_count: 4, count_per_node: 4}}"
    )
    told = parse_card(f"workload: {{hardware: {hardware}}}", "card.yaml").bandwidths()
    assert (told.scale_out, told.scale_up) == (None, 75e9)


@pytest.mark.parametrize("blank", ["", "null", "N/A", "n/a", "None", "'-'", "unknown"])
def test_what_is_left_blank_is_not_known(blank):
    text = (
        f"workload: {{model: {{phase: {blank}}}, hardware: {{xpu_spec: {{total_count: {blank}}}}}}}"
    )
    card = parse_card(text, "card.yaml")
    assert (card.workload.model.phase, card.xpu.total_count) == (None, None)


def test_empty_sections_are_tables():
    card = parse_card("workload:\nModel-executor: \nmetric_source:\n", "card.yaml")
    assert card == WorkloadCard()


def test_strangers_are_kept_and_told():
    card = parse_card(TEXT + "runs: [1, 2]\n", "card.yaml")
    assert card.model_extra == {"runs": [1, 2]}
    other = parse_card("workload: {hardware: {xpu_spec: {memory_gb: 40}}}", "card.yaml")
    assert other.strangers() == ["workload.hardware.xpu_spec.memory_gb"]
    assert "workload.hardware.xpu_spec.memory_gb" in " ".join(other.notes())
    dated = parse_card("workload: {when: 2025-01-31}", "card.yaml")
    assert dated.workload.model_extra == {"when": date(2025, 1, 31)}


def test_another_version_is_told():
    assert "version 5" in parse_card("version: 5\nworkload:", "card.yaml").notes()[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workload: {model: {moe: 3}}", r"workload\.model\.moe: 3: .*boolean"),
        ("workload: {hardware: {xpu_spec: {total_count: four}}}", r"total_count: 'four'"),
        ("workload: {hardware: {xpu_spec: {total_count: 0}}}", r"total_count: 0: .*greater"),
        ("workload: {hardware: {xpu_spec: {total_count: 4.0}}}", r"total_count: 4\.0: .*integer"),
        ("workload: {hardware: {xpu_spec: {total_count: true}}}", r"total_count: True"),
        ("workload: {hardware: {network_topo: {bandwidth_gbps: [fast]}}}", r"gbps\.0: 'fast'"),
        ("workload: {hardware: {network_topo: {bandwidth_gbps: [-1]}}}", r"gbps\.0: -1"),
        ("workload: {hardware: {network_topo: {bandwidth_gbps: [.inf]}}}", r"gbps\.0: inf"),
        ("workload: {hardware: {network_topo: {bandwidth_gbps: [.nan]}}}", r"gbps\.0: nan"),
        ("workload: [1]", r"workload: \[1\]: write a table"),
        ("workload: {model: [1]}", r"workload\.model: \[1\]: write a table"),
        ("Model-executor: {framework: torchtitan}", r"Model-executor\.framework: 'torchtitan'"),
        ("version: one\nworkload:", r"version: 'one'"),
        ("- workload:", "a table, not a list"),
        ("", "a table, not a NoneType"),
        ("workload: {a: 1, a: 2}", "field 'a' is given twice"),
        ("a: &a [1]\nworkload: *a", "aliases are not accepted"),
        ("workload: " + "[" * 40 + "]" * 40, "nested deeper than 32 levels"),
        ("workload: " + "{a: " * 40 + "}" * 40, "nested deeper than 32 levels"),
        ("workload: {a: " + "9" * 50 + "}", "a number of 50 characters"),
        ("workload: {a: " + "1:" * 50 + "1}", "a number of 101 characters"),
        (
            "workload: !!python/object/apply:os.getcwd []",
            "the tag !!python/object/apply:os.getcwd is not accepted",
        ),
        ("workload: [", "not valid YAML"),
        ("workload: 2020-13-45", "month"),
        ("? [a]\n: b", "unhashable"),
        ("1: 2\nworkload:", "keys should be strings"),
        ("workload: \x00", "unacceptable character"),
    ],
)
def test_a_wrong_card_is_one_line_with_file_and_key(text, message):
    with pytest.raises(TraceError, match=message) as caught:
        parse_card(text, "pack/card.yaml")
    assert str(caught.value).startswith("pack/card.yaml: ")
    assert "\n" not in str(caught.value)


def test_a_number_of_more_than_64_bits_is_refused_where_it_stands():
    with pytest.raises(TraceError, match=r"line 1, column 47: .* more than 64 bits"):
        parse_card(f"workload: {{hardware: {{xpu_spec: {{total_count: {'9' * 30}}}}}}}", "c")


def test_a_billion_laughs_take_neither_time_nor_memory():
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    tracemalloc.start()

    def refused() -> None:
        with pytest.raises(TraceError, match="aliases"):
            parse_card("workload:\n" + "\n".join(lines), "card.yaml")

    assert python_calls(refused) < 1_000
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("depth", [1, 1_000, 100_000])
def test_depth_is_refused_before_python_gives_up(depth):
    for opened in ("[", "{a: ", "- ", "? "):
        text = "workload:\n  " + opened * depth
        with pytest.raises(TraceError):
            parse_card(text[:LONGEST], "card.yaml")


@tries(100)
@given(st.data())
def test_a_damaged_card_is_a_card_or_one_line(data):
    text = list(TEXT)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place] = data.draw(st.sampled_from("\n\t:{}[]&*!|>'\"%@`-?#, 0x\0é\u2028"))
    refusal = refused(lambda: parse_card("".join(text), "card.yaml"))
    assert refusal == "" or refusal.startswith("card.yaml: ")


@given(st.integers(0, len(TEXT)))
def test_a_card_cut_short_is_a_card_or_one_line(end):
    refusal = refused(lambda: parse_card(TEXT[:end], "card.yaml"))
    assert refusal == "" or refusal.startswith("card.yaml: ")


@tries(40)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_card_or_refused_or_something_else(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("card") / "any.yaml"
    file.write_bytes(b"workload:\n" + data)
    refusal = refused(lambda: read_card(file))
    assert refusal == "" or refusal.startswith(str(file))


def refused(read):
    """The one line of a refusal, or nothing."""
    try:
        read()
    except TraceError as error:
        told = str(error)
    else:
        return ""
    assert "\n" not in told
    return told


def test_what_has_no_section_of_a_card_is_something_else(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("model: {workload: 3}\nbroken: [")
    assert read_card(file) is None
    assert not looks_like_card("a:\n  workload: 1\n")
    assert looks_like_card("# a card\n'workload' : {}\n")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_a_card_that_is_no_utf_8_is_not_taken_for_another_file(tmp_path: Path, encoding):
    file = tmp_path / "card.yaml"
    file.write_bytes("workload: {}\ncontributor: José\n".encode(encoding))
    assert "convert it to UTF-8" in refused(lambda: read_card(file))
    file.write_bytes("workload: {}\ncontributor: José\n".encode("utf-8-sig"))
    assert read_card(file).contributor == "José"


def test_a_card_without_end_is_refused(tmp_path: Path):
    file = tmp_path / "card.yaml"
    file.write_text("workload:\n" + "# nothing\n" * 40_000)
    with pytest.raises(TraceError, match="bytes"):
        read_card(file)
    with pytest.raises(TraceError, match="characters"):
        parse_card("a" * (LONGEST + 1), "card.yaml")


def test_what_is_written_has_every_key_and_no_alias():
    shared = [1, 2]
    text = write_card(WorkloadCard.model_validate({"one": shared, "other": shared}))
    assert "&" not in text
    data = yaml.safe_load(text)

    def check(section: type[Section], found: dict[str, object]) -> None:
        for name, field in section.model_fields.items():
            key = field.alias or name
            assert key in found
            if isinstance(field.default, Section):
                check(type(field.default), found[key])  # type: ignore[arg-type]

    check(WorkloadCard, data)
