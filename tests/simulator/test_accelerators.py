"""One data sheet and one matcher per accelerator: every spelling, every device that traces name."""

import gzip
import re

import pytest

from helpers.places import SHARED
from simulator.accelerators import (
    GENERATIONS,
    Accelerator,
    accelerator,
    accelerators,
    kernel_machines,
    model,
    models,
    multiprocessor_count,
    named,
    same_accelerator,
    sheets,
)
from simulator.support.errors import ClusterError, WorkloadError
from simulator.support.names import letters_of
from topologies import catalog, load_cluster

SPELLINGS = {
    "A100-SXM4-80GB": [
        "NVIDIA A100-SXM4-80GB",
        "nvidia_a100_sxm_80gb",
        "a100_sxm",
        "A100 SXM 80 GB",
    ],
    "A100-SXM4-40GB": ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-PG509-200", "a100-sxm4-40gb"],
    "A100-PCIe-80GB": ["NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"],
    "H100-SXM5-80GB": ["NVIDIA H100 80GB HBM3", "h100_sxm", "H100 SXM", "h100-sxm5"],
    "H100-PCIe-80GB": ["NVIDIA H100 PCIe", "h100_pcie"],
    "H100-NVL-94GB": ["NVIDIA H100 NVL"],
    "H100-SXM5-96GB-500W": ["H100-SXM5-96GB"],
    "H200-SXM-141GB": ["NVIDIA H200", "h200_sxm", "nvidia_h200", "H200 141GB"],
    "GH200-96GB": ["NVIDIA GH200 480GB", "nvidia_gh200", "gh200"],
    "B200-SXM-180GB": ["NVIDIA B200", "b200_sxm"],
    "B300-SXM-288GB": ["NVIDIA B300 SXM6 AC", "B300"],
    "GB200": ["NVIDIA GB200", "GB200-NVL72"],
    "L40S": ["NVIDIA L40S", "l40s"],
    "V100-SXM2-32GB": ["Tesla V100-SXM2-32GB", "V100"],
    "V100-SXM2-16GB": ["Tesla V100-SXM2-16GB"],
    "MI250X GCD": ["AMD Instinct MI250X / MI250", "AMD Instinct MI250X", "gfx90a:sramecc+:xnack-"],
    "MI300X": ["AMD Instinct MI300X", "AMD Instinct MI300X OAM", "MI300X 192GB", "mi300x"],
    "MI355X": ["AMD Instinct MI355X", "gfx950"],
    "RTX PRO 6000 Blackwell Server Edition": [
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "rtx_pro_6000_server",
        "RTX PRO 6000",
    ],
    "TPU v5e": ["TPU v5 lite", "tpu_v5e", "TPU v5 Lite"],
    "TPU v5p": ["TPU v5", "tpu_v5p"],
    "TPU v6e": ["TPU v6 lite", "tpu_v6e"],
    "TPU7x": ["TPU v7x"],
}


@pytest.mark.parametrize(
    ("text", "name"), [(text, name) for name, texts in SPELLINGS.items() for text in texts]
)
def test_every_spelling_is_of_one_accelerator(text, name):
    assert accelerator(text).name == name
    assert same_accelerator(text, name)
    assert same_accelerator(name, text)


@pytest.mark.parametrize("name", accelerators())
def test_a_sheet_is_found_by_its_name_and_its_table_and_says_its_sources(name):
    chip, sheet = accelerators()[name], sheets()[name]
    assert named(name) == (chip,)
    assert chip.generation in {one for order in GENERATIONS.values() for one in order}
    if chip.kernel_table:
        assert accelerator(chip.kernel_table) == chip
        assert kernel_machines()[chip.kernel_table].name == name
    numbers = {"memory_bandwidth", *(f"peak.{dtype}" for dtype in sheet.get("peak", ()))}
    numbers |= {"capability", "memory", "multiprocessors", "sustained"} & sheet.keys()
    assert numbers <= sheet["sources"].keys()


@pytest.mark.parametrize("name", catalog())
def test_accelerators_of_the_catalogue_have_a_sheet(name):
    table = load_cluster(name).accelerator
    chip = accelerator(table.name)
    assert (chip.name, dict(chip.peaks), chip.generation) == (
        table.name,
        table.peak,
        table.generation,
    )


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("H100", "may be H100-SXM5-80GB, H100-PCIe-80GB or H100-NVL-94GB"),
        ("a100", "may be A100-SXM4-80GB"),
        ("gfx942", "may be MI300X or MI325X"),
        ("H10", "did you mean H100"),
        ("abacus", "is not an accelerator with a data sheet"),
    ],
)
def test_a_name_of_several_or_none_is_refused_with_the_choice(text, choices):
    with pytest.raises(ClusterError, match=choices):
        accelerator(text)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("NVIDIA H100 80GB HBM3", "H200 HBM3"),
        ("NVIDIA H100 80GB HBM3", "H100-PCIe-80GB"),
        ("A100-SXM4-80GB", "B100-SXM4-80GB"),
        ("nvidia_a100_40gb", "A100-SXM4-80GB"),
        ("NVIDIA A10", "A100-SXM4-80GB"),
        ("NVIDIA L4", "L40S"),
        ("TPU v5 lite", "TPU v5p"),
        ("GPU", "GPU"),
    ],
)
def test_board_memory_and_number_tell_accelerators_apart(first, second):
    assert not same_accelerator(first, second)
    assert not same_accelerator(second, first)


def test_a_model_is_without_board_and_memory():
    assert (
        model("NVIDIA H100 80GB HBM3") == model("H100-SXM5-80GB") == model("nvidia_h100") == "H100"
    )
    assert models("gfx942") == {"MI300X", "MI325X"}
    assert models("NVIDIA A10") == {"A10"}
    assert models("ARTEMIS") == frozenset()


def test_three_letters_find_every_name_that_begins_with_them_and_two_find_none():
    names = {name: letters_of(name) for name in accelerators()}
    begins = {letters[:length] for letters in names.values() for length in (1, 2, 3, 4)}
    spelt = {letters_of(other) for name in names for other in (name, *sheets()[name]["names"])}
    words = sorted(begin for begin in begins if begin.isalpha() and begin not in spelt)
    assert {len(word) for word in words} > {2, 3}
    for word in words:
        wanted = [name for name, letters in names.items() if letters.startswith(word)]
        assert [chip.name for chip in named(word)] == (wanted if len(word) >= 3 else []), word


def test_multiprocessors_are_those_of_the_nearest_sheet():
    h100 = Accelerator("H100", {"bf16": 989e12}, 3.35e12)
    assert multiprocessor_count(h100) == 132
    assert multiprocessor_count(Accelerator("H100", {"bf16": 756e12}, 2e12)) == 114
    assert multiprocessor_count(Accelerator("chip", {}, 1e12)) is None
    assert multiprocessor_count(Accelerator("chip", {}, 1e12, multiprocessors=3)) == 3


def test_a_rate_must_be_positive():
    with pytest.raises(WorkloadError, match=r"memory_bandwidth 0\.0 must be positive"):
        Accelerator("x", {}, 0.0)


def devices_named():
    """Names of GPUs in the device properties of profiles that lie beside the project."""
    names = set()
    for file in sorted((SHARED / "traces").rglob("*.json.gz")):
        with gzip.open(file, "rb") as stream:
            text = stream.read(1 << 16).decode("utf-8", "replace")
        _, found, properties = text.partition('"deviceProperties"')
        if found:
            names |= set(re.findall(r'"name": *"([^"]+)"', properties.partition("]")[0]))
    return names


@pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="the recorded traces are not here")
def test_devices_that_recorded_traces_name_have_a_sheet():
    no_product = {"AMD Radeon Graphics", "ARTEMIS"}
    for name in devices_named() - no_product:
        assert named(name), name
