"""Two settings of a step as people write them: read where the words say one thing, else refused.

>>> from pathlib import Path
>>> words = {
...     "model": "mpt-7b FSDP, micro-batch 18, accumulation 1, recompute full",
...     "hardware": "A100-40GB 1600 Gbps",
...     "knob": "nodes",
...     "setting_a": "32 GPUs",
...     "setting_b": "128 GPUs",
... }
>>> (a, b), assumed = sides_in_words(Cells(Path("ratios.csv"), 2, words))
>>> a["cluster"], a["gpus"], b["gpus"], b["recompute"], assumed
('dgx-a100-40gb', '32', '128', 'full', ('sequences as long as the model reads: 2,048',))
"""

import re
from collections.abc import Callable, Mapping

from experiments.validation.tables import Cells
from simulator.support.errors import TraceError
from topologies import load_cluster
from traces.generate.model import load_model, model_names

Columns = dict[str, str]

_OF_RUN: tuple[tuple[str, Mapping[str, str]], ...] = (
    (r"micro[- ]?batch(?:es)?(?: of)? (\d+)", {"micro_batch": "1"}),
    (r"micro_num (\d+)", {"accumulation": "1"}),
    (r"(?:gradient )?accumulation (\d+)", {"accumulation": "1"}),
    (r"packed (\d+) ?x ?(\d+)", {"micro_batch": "1", "sequence": "2"}),
    (r"(?:seq|sequence)(?: length)?[ =](\d+)", {"sequence": "1"}),
    (r"batch(?: size)? (\d+)", {"micro_batch": "1"}),
    (r"recompute (none|selective|full)", {"recompute": "1"}),
    (r"(selective|full) (?:ac|activation checkpointing)", {"recompute": "1"}),
    (r"zero-?([0-3])", {"zero": "1"}),
    (r"(bf16|fp16)", {"precision": "1"}),
    (r"tp[ =]?(\d+)", {"tp": "1"}),
    (r"pp[ =]?(\d+)", {"pp": "1"}),
    (r"(\d+) gpus?", {"gpus": "1"}),
)
"""Patterns of the run, and the columns that their groups fill."""
_SHARDING = {"fsdp": "3", "hsdp": "3", "ddp": "0"}
"""Names for the sharding of weights over replicas, with the stage of ZeRO."""
_SERVED = r"\b(vllm|sglang|tensorrt-llm|decode|prefill|inference)\b"
_RATE = r"(\d+(?:\.\d+)?) ?g(?:b(?:ps|it/s))?\b"
_IGNORED_WORDS = r"\b(infiniband|ib|nvlink|roce|gpus?|nodes?|x|bfloat16)\b"
"""Words of hardware that are true of such machines anyway."""
_ACCELERATORS = {
    "a100-40gb": "dgx-a100-40gb",
    "a100-80gb": "dgx-a100",
    "a100": "dgx-a100",
    "h100": "hgx-h100",
    "h200": "hgx-h200",
    "h800": "hgx-h800",
    "h20": "hgx-h20",
    "b200": "hgx-b200",
    "b300": "hgx-b300",
    "v100": "dgx-v100",
    "mi300x": "mi300x-8",
    "mi325x": "mi325x-8",
    "mi355x": "mi355x-8",
}
"""Cluster of whole nodes in the catalogue, by an accelerator given alone."""
_PCIE = {"dgx-a100": "a100-pcie-8", "dgx-a100-40gb": "a100-pcie-8", "hgx-h100": "h100-pcie-8"}
"""The same accelerators without NVLink."""
_LETTERS = re.compile(r"[^a-z0-9]+")


def sides_in_words(row: Cells) -> tuple[tuple[Columns, Columns], tuple[str, ...]]:
    """Return the columns of both steps of a row, and the assumptions that its words leave open.

    Raises TraceError if a value is missing, or not understood: the words are quoted.
    """
    common, assumed = _run_of(row)
    sides = []
    for side in ("a", "b"):
        cells = dict(common)
        hardware = _hardware_of(row.text("hardware"), row.text(f"setting_{side}"))
        cells |= {name: value for name, value in hardware.items() if value}
        cells |= _setting_of(row.text(f"setting_{side}"), row.text("knob"), cells)
        sides.append(_with_derived(cells))
    if sides[0] == sides[1]:
        raise TraceError(
            f"knob: {row.text('knob')!r}: the words {row.text('setting_a')!r} and "
            f"{row.text('setting_b')!r} make no difference that is understood"
        )
    return (sides[0], sides[1]), assumed


def _run_of(row: Cells) -> tuple[Columns, tuple[str, ...]]:
    """Read the column ``model``: the model, and the settings of its run."""
    rest = row.text("model").lower()
    if served := re.search(_SERVED, rest):
        raise TraceError(f"model: {served[0]!r} is serving; only training steps are answered")
    cells: Columns = {"source": row.text("source")}
    for pattern, columns in _OF_RUN:
        if match := re.search(rf"\b{pattern}\b", rest):
            cells |= {name: match[int(group)] for name, group in columns.items()}
            rest = rest.replace(match[0], " ", 1)
    way = next((way for way in _SHARDING if re.search(rf"\b{way}\b", rest)), None)
    if way is not None:
        cells["zero"] = cells.get("zero", _SHARDING[way])
        cells["way"] = way
        rest = re.sub(rf"\b{way}\b", " ", rest)
    name = _model_named(rest)
    cells["model"] = name
    assumed = []
    if "sequence" not in cells:
        model = load_model(name)
        longest = model.positions or model.longest
        if longest is None:
            raise TraceError("model: no sequence length is stated")
        cells["sequence"] = str(longest)
        assumed.append(f"sequences as long as the model reads: {longest:,}")
    if "micro_batch" not in cells:
        raise TraceError("model: no micro-batch is stated")
    return cells, tuple(assumed)


def _model_named(words: str) -> str:
    """Return the card whose name is the remaining words."""
    left, names = _LETTERS.sub("", words), model_names()
    matches = [name for name in names if _LETTERS.sub("", name) == left]
    if not matches:  # without the last word of its name
        matches = [name for name in names if _LETTERS.sub("", name.rpartition("-")[0]) == left]
    if len(matches) != 1:
        shown = " ".join(words.replace(",", " ").split())
        raise TraceError(f"model: {shown!r} is not understood: no card has that name")
    return matches[0]


def _hardware_of(words: str, setting: str) -> Columns:
    """Read the column ``hardware``; of two kinds, the one in the setting."""
    rest = _kind_of(words, setting).lower()
    chip = _accelerator_in(rest)
    if not chip:
        raise TraceError(f"hardware: {words!r}: no accelerator of the catalogue's clusters")
    for pattern, missing in _AMBIGUOUS.items():
        if re.search(pattern, rest):
            raise TraceError(f"hardware: {words!r}: {missing} is not stated")
    cells: Columns = {"cluster": _ACCELERATORS[chip], "accelerator": chip}
    rest = rest.replace(chip, " ", 1)
    for name, pattern in (("gbit", _RATE), ("gpus", r"\b(\d+) ?x?(?=\s|$)")):
        if match := re.search(pattern, rest):
            cells[name] = match[1]
            rest = rest.replace(match[0], " ", 1)
    rest = " ".join(re.sub(_IGNORED_WORDS, " ", rest).replace(",", " ").split())
    if rest:
        raise TraceError(f"hardware: {rest!r} is not understood")
    return cells


_AMBIGUOUS = {r"\bpcie\b": "which machine of PCIe cards", r"\d+ to \d+": "how many nodes"}


def _kind_of(words: str, setting: str) -> str:
    """Return the hardware: the only kind, or the one in the setting."""
    kinds = words.split("/")
    if len(kinds) == 1:
        return words
    chip = _accelerator_in(setting)
    named = [kind for kind in kinds if chip and _accelerator_in(kind) == chip]
    if len(named) != 1:
        raise TraceError(f"hardware: {words!r}: {setting!r} does not say which of them")
    return named[0]


def _accelerator_in(words: str) -> str:
    lower = words.lower()
    longest_first = sorted(_ACCELERATORS, key=len, reverse=True)
    return next((name for name in longest_first if re.search(rf"\b{name}\b", lower)), "")


def _setting_of(words: str, knob: str, cells: Mapping[str, str]) -> Columns:
    """Read a setting: the columns in which it differs from those of both sides."""
    lower = words.lower().strip()
    for pattern, read in _SETTINGS.items():
        if match := re.fullmatch(pattern, lower):
            return read(match, cells)
    if re.fullmatch(r"\d+", lower) and "accumulation" in knob.lower():
        return {"accumulation": lower}
    if _accelerator_in(lower) and re.fullmatch(
        r"[\d ]*x? *", re.sub(_RATE, "", lower.replace(_accelerator_in(lower), "", 1))
    ):
        return {}  # all of it is in the column hardware
    raise TraceError(f"setting: {words!r} is not understood")


def _degree(match: re.Match[str], _: Mapping[str, str]) -> Columns:
    if match[1] == "tp":
        return {"tp": match[2], "sp": "1", "zero": "0"}
    return {"gpus": match[2], "zero": _SHARDING[match[1]], "way": match[1]}


def _without_nvlink(_: re.Match[str], cells: Mapping[str, str]) -> Columns:
    """Return the catalogue's machine of PCIe cards with the same accelerator."""
    cluster = cells["cluster"]
    if cluster not in _PCIE:
        raise TraceError(f"setting: the catalogue has no machine like {cluster} without NVLink")
    whole = load_cluster(cluster).accelerator.name
    return {"cluster": _PCIE[cluster], "settings": f"accelerator = {whole}"}


_SETTINGS: dict[str, Callable[[re.Match[str], Mapping[str, str]], Columns]] = {
    r"(\d+) gpus?": lambda match, _: {"gpus": match[1]},
    r"(\d+) nodes?": lambda match, cells: {
        "gpus": str(int(match[1]) * load_cluster(cells["cluster"]).ranks_per_node)
    },
    r"(fsdp|ddp|tp)[ =]?(\d+)": _degree,
    r"nvlink|p2p|ib|infiniband|rdma": lambda *_: {},  # such machines have it anyway
    r"pcie|no nvlink": _without_nvlink,
    r"no p2p|nccl_p2p_disable ?= ?1": lambda *_: {"settings": "NCCL_P2P_DISABLE = 1"},
    r"tcp|(tcp )?sockets": lambda *_: {"settings": "NCCL_IB_DISABLE = 1"},
}
"""Spellings of settings, and the columns that they fill."""


def _with_derived(cells: Columns) -> Columns:
    """Add derived columns: the rate of a NIC, the framework, the groups that share shards."""
    if "gpus" not in cells:
        raise TraceError("hardware: no number of GPUs is stated")
    settings = [cells["settings"]] if cells.get("settings") else []
    cluster = load_cluster(cells["cluster"])
    if gbit := cells.pop("gbit", None):
        if cluster.scale_out is None:
            raise TraceError(f"hardware: {cells['cluster']} has no NICs")
        each = float(gbit) / cluster.scale_out.nics_per_node
        settings.insert(0, f"scale_out.bandwidth = {each:g} Gbit/s")
    if settings:
        cells["settings"] = "; ".join(settings)
    way = cells.pop("way", "")
    if way == "hsdp":
        cells["dp_replicate"] = str(max(1, int(cells["gpus"]) // cluster.ranks_per_node))
    if not re.search(r"llm-foundry|mosaic|nemo|maxtext|torchtitan|deepspeed", cells["source"]):
        cells["framework"] = "fsdp2" if way in ("fsdp", "hsdp") else "megatron"
    return cells
