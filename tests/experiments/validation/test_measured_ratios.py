"""What-ifs that others measured: read, predicted, or refused with a reason."""

from pathlib import Path

import pytest

from experiments.questions.validation.ratios import read_ratios, validate_ratios

SHIPPED = Path("experiments/validation/gpu_ratios.csv")
ROW = {
    "source": "github mosaicml/llm-foundry",
    "model": "mpt-125m FSDP, micro-batch 4, accumulation 1, recompute none",
    "hardware": "A100-40GB 1600 Gbps",
    "knob": "nodes",
    "setting_a": "8 GPUs",
    "value_a": "1.0",
    "setting_b": "16 GPUs",
    "value_b": "1.1",
    "unit": "s per step",
    "step_ratio_b_over_a_measured": "",
}


def table(folder, **cells):
    """Write a table of one row."""
    row = ROW | cells
    path = folder / "ratios.csv"
    path.write_text(
        ",".join(row) + "\n" + ",".join(f'"{cell}"' for cell in row.values()) + "\n", "utf-8"
    )
    return path


@pytest.fixture(scope="module")
def shipped(pytestconfig):
    return validate_ratios(pytestconfig.rootpath / SHIPPED)


def test_every_row_is_answered_or_refused_for_what_is_not_known(shipped):
    assert len(shipped.ratios) == 29
    for row in shipped.ratios:
        assert (row.error_pct is None) is bool(row.refused)
        assert (
            not row.refused
            or f"line {row.place.split()[-1]}: the source does not state: " in row.refused
        )


def test_ratios_whose_settings_are_known_are_within_a_twentieth_in_the_median(shipped):
    assert shipped.of_known.median_pct <= 5
    assert shipped.of_known.ratios - shipped.of_known.refused == 15


def test_words_are_read_as_the_columns_that_say_the_same(tmp_path):
    words = validate_ratios(table(tmp_path)).ratios[0]
    columns = {
        "model": "mpt-125m",
        "framework": "composer",
        "cluster": "dgx-a100-40gb",
        "gpus_a": "8",
        "gpus_b": "16",
        "zero": "3",
        "sequence": "2048",
        "micro_batch": "4",
        "settings": "scale_out.bandwidth = 200 Gbit/s",
    }
    same = validate_ratios(table(tmp_path, **columns)).ratios[0]
    assert words.refused == same.refused == ""
    assert words.predicted_ratio == same.predicted_ratio
    assert "2,048" in words.assumed


def test_a_setting_that_changes_nothing_changes_nothing(tmp_path):
    cells = {"cluster": "dgx-a100-40gb", "model": "mpt-125m", "gpus": "16", "zero": "3"}
    cells |= {"sequence": "2048", "micro_batch": "4", "settings_b": "library.pxn = 1"}
    assert validate_ratios(table(tmp_path, **cells)).ratios[0].predicted_ratio == 1


def test_a_network_that_is_ten_times_slower_makes_steps_longer(tmp_path):
    cells = {"cluster": "dgx-a100-40gb", "model": "mpt-125m", "gpus": "16", "zero": "3"}
    cells |= {"sequence": "2048", "micro_batch": "1", "settings_b": "NCCL_IB_DISABLE = 1"}
    assert validate_ratios(table(tmp_path, **cells)).ratios[0].predicted_ratio > 1.5


@pytest.mark.parametrize(
    ("value_a", "value_b", "unit", "ratio"),
    [("100", "50", "tokens/s", 2.0), ("100", "50", "minutes", 0.5), ("40", "20", "MFU %", 2.0)],
)
def test_a_ratio_of_times_follows_from_rates_and_from_times(
    tmp_path, value_a, value_b, unit, ratio
):
    (row,) = read_ratios(table(tmp_path, value_a=value_a, value_b=value_b, unit=unit))
    assert row.measured == ratio


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"model": "mpt-125m FSDP"}, "no micro-batch is stated"),
        ({"model": "mpt-125m FSDP, micro-batch 4, fancy"}, "'mpt-125m fancy' is not understood"),
        ({"model": "Llama-9 7B FSDP, batch 2"}, "no card has that name"),
        ({"model": "mpt-7b vLLM TP2, decode, batch 1"}, "'vllm' is serving"),
        ({"hardware": "2x RTX 4090"}, "no accelerator of the catalogue"),
        ({"hardware": "2 to 8 nodes x 8 H100"}, "how many nodes is not stated"),
        ({"hardware": "8x H100 PCIe"}, "which machine of PCIe cards"),
        ({"hardware": "A100 with a twist"}, "'with a twist' is not understood"),
        ({"setting_b": "sixteen"}, "setting: 'sixteen' is not understood"),
        ({"setting_b": "8 GPUs"}, "make no difference that is understood"),
        ({"setting_a": "IB", "setting_b": "TCP"}, "no number of GPUs is stated"),
        ({"value_a": ""}, "step_ratio_b_over_a_measured: missing"),
        ({"step_ratio_b_over_a_measured": "2"}, "2, but value_a, value_b and unit give 1.1"),
        ({"cluster": "dgx-a100", "model": "gpt-2"}, "global_batch: missing"),
        ({"not_known": "who knows"}, "the source does not state: who knows"),
    ],
)
def test_what_is_not_said_or_not_understood_is_refused_by_name(tmp_path, cells, reason):
    (row,) = validate_ratios(table(tmp_path, **cells)).ratios
    assert row.predicted_ratio is None
    assert reason in row.refused
    assert "ratios.csv, line 2: " in row.refused


@pytest.mark.parametrize(
    ("cells", "columns"),
    [
        (
            {"hardware": "8x A100", "setting_a": "NVLink", "setting_b": "PCIe"},
            ("dgx-a100", "a100-pcie-8"),
        ),
        (
            {
                "hardware": "128 A100 400 Gbps / 96 H100 800 Gbps",
                "setting_a": "A100 400G",
                "setting_b": "H100 800G",
            },
            ("dgx-a100", "hgx-h100"),
        ),
    ],
)
def test_settings_of_hardware_choose_clusters(tmp_path, cells, columns):
    (row,) = read_ratios(table(tmp_path, **cells))
    assert tuple(side.step.cluster for side in row.sides) == columns


def test_degrees_and_accumulation_of_a_setting(tmp_path):
    (row,) = read_ratios(table(tmp_path, hardware="4x H200", setting_a="FSDP=4", setting_b="TP=4"))
    assert [str(side.step.parallelism) for side in row.sides] == ["dp4-zero3", "tp4-sp"]
    (row,) = read_ratios(
        table(
            tmp_path, hardware="8x H100", knob="gradient accumulation", setting_a="4", setting_b="1"
        )
    )
    assert [side.step.run.global_batch for side in row.sides] == [128, 32]
