"""Whether wrong questions are said: ``python -m benchmarks.questions``.

Recordings of ``traces`` and, where they are, of ``../shared/traces`` are asked about as they were
made, and with one thing wrong: the number of nodes, the cluster's network or accelerator, or a file
of another run. An answer says so if it is refused, or if a doubt above it names the nodes, the
cluster or the files. Printed are the wrong questions of which nothing is said (misses) and the
right ones that are doubted (false alarms).
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from experiments.baseline import Settings, baseline
from experiments.documents.step import trust
from simulator.support.errors import TwofoldError

ROOT = Path(__file__).parents[1]
LIVE, SAMPLES = ROOT / "traces" / "live", ROOT / "traces" / "samples"
SHARED = ROOT.parent / "shared" / "traces"
_NAMED = "--nodes", "--cluster", "ranks host by host", "files of one run", "a node has"
"""Parts of remedies that name the question."""


@dataclass(frozen=True, slots=True)
class Question:
    """A recording with its cluster and nodes; ``wrong`` is what is, "" if nothing.

    ``files`` are by rank, of several recordings where they do not belong together.
    """

    wrong: str
    files: tuple[Path, ...]
    cluster: str | Path
    nodes: int | None = None

    def __str__(self) -> str:
        """Name the files, cluster and nodes."""
        nodes = "" if self.nodes is None else f" --nodes {self.nodes}"
        names = " + ".join(f"{file.parent.name}/{file.name}" for file in self.files)
        return f"{names} -c {Path(self.cluster).stem}{nodes}"

    def said(self) -> list[str]:
        """Return the doubts about the question that stand above its answer."""
        with tempfile.TemporaryDirectory() as folder:
            (trace, *more) = self.files
            if more:
                trace = Path(folder)
                for number, file in enumerate(self.files):
                    (trace / f"rank{number}{''.join(file.suffixes)}").symlink_to(file.resolve())
            try:
                doubts = trust(baseline(trace, self.cluster, Settings(nodes=self.nodes))).doubts
            except TwofoldError as error:
                return [str(error)]
        return [str(doubt) for doubt in doubts if any(part in doubt.remedy for part in _NAMED)]


def questions() -> Iterator[Question]:
    """Yield right questions and wrong ones, each made of a right one by a single change."""
    yield from _of_nodes()
    yield from _of_files()
    yield from _of_clusters()


def _rank(recording: str, rank: int) -> Path:
    return LIVE / recording / f"rank{rank}.json.gz"


def _of_nodes() -> Iterator[Question]:
    sample = (SAMPLES / "gpu-dp2-tp4",)
    yield Question("", sample, "dgx-a100", 2)
    for nodes in (None, 4, 8):
        yield Question("nodes", sample, "dgx-a100", nodes)
    megatron = (SHARED / "megatron-tp8-a100",)
    yield Question("", megatron, "dgx-a100")
    for nodes in (2, 4, 8):
        yield Question("nodes", megatron, "dgx-a100", nodes)
    jax = (SHARED / "nsys-jax",)
    yield Question("", jax, "dgx-a100")
    for nodes in (2, 4):
        yield Question("nodes", jax, "dgx-a100", nodes)
    for name, cluster in (
        ("mi300x_8gpu_resnet_ddp_rank0", "mi300x-8"),
        ("a100_2gpu_resnet_ddp_rank0", "dgx-a100"),
    ):
        trace = (SHARED / "kineto" / f"{name}.json.gz",)
        yield Question("", trace, cluster)
        yield Question("nodes", trace, cluster, 2)


def _of_files() -> Iterator[Question]:
    for recording in ("moe-4", "zero3-sleep-4", "ddp-sleep-4", "1f1b-4"):
        yield Question("", (LIVE / recording,), LIVE / f"{recording}.yaml")
    for name in ("ranks/1f1b-8", "ranks/two-groups-4", "reno/zero3-sleep-2", "reno/interleaved-2"):
        yield Question("", (LIVE / name,), LIVE / f"{name}.yaml")
    moe, net = LIVE / "moe-4.yaml", LIVE / "net250.yaml"
    yield Question("", (LIVE / "ddp-2",), net)
    # the same program in another run, another program, a rank twice, a rank of another job
    whole = tuple(_rank("moe-4", rank) for rank in range(3))
    yield Question("files", (*whole, _rank("reno/moe-4", 3)), moe)
    yield Question("files", (*whole, _rank("zero3-sleep-4", 3)), moe)
    yield Question("files", (*whole, _rank("moe-4", 2)), moe)
    yield Question("files", (_rank("ddp-2", 0), _rank("zero3-2", 1)), net)
    yield Question("files", (_rank("ddp-2", 0), _rank("sizes/ddp-2", 1)), net)
    yield Question("files", (_rank("moe-2", 0), _rank("moe-wide-2", 1)), LIVE / "moe-2.yaml")
    gpipe = (_rank("gpipe-2", 0), _rank("1f1b-2", 1))
    yield Question("files", gpipe, LIVE / "gpipe-2.yaml")
    again = (_rank("interleaved-2", 0), _rank("reno/interleaved-2", 1))
    yield Question("files", again, LIVE / "interleaved-2.yaml")
    megatron = [SHARED / "megatron-tp8-a100" / f"kineto_{rank}.json.gz" for rank in range(8)]
    yield Question("files", (*megatron[:7], megatron[0]), "dgx-a100")


def _of_clusters() -> Iterator[Question]:
    kineto, cards = SHARED / "kineto", LIVE / "gpu" / "cards"
    graphs = SHARED / "graphs"
    told: Sequence[tuple[Path, str | Path, tuple[str | Path, ...]]] = (
        (cards / "h100-trains-wide.json.gz", cards / "h100.yaml", (cards / "h200.yaml", "hgx-h20")),
        (cards / "h200-prefills.json.gz", cards / "h200.yaml", ("hgx-h100",)),
        (LIVE / "gpu" / "trains.json.gz", LIVE / "gpu" / "gpu.yaml", ("mi300x-8", "dgx-a100")),
        (LIVE / "gpu" / "named" / "named-trained.json.gz", "hgx-h100", ("hgx-b200",)),
        (SHARED / "megatron-tp8-a100", "dgx-a100", ("hgx-h100", "mi300x-8")),
        (kineto / "a100_1gpu_alexnet.json.gz", "dgx-a100", ("dgx-v100",)),
        (kineto / "mi250_1gpu_minitoy.json.gz", "mi250x-frontier", ("mi300x-8",)),
        (kineto / "v100_1gpu_resnet50_old_schema.json.gz", "dgx-v100", ("hgx-h100",)),
        (graphs / "qwen3_30b_decode_mi300_tp.json.gz", "mi300x-8", ("hgx-b300", "mi355x-8")),
        (graphs / "qwen3_30b_decode_b300_tp.json.gz", "hgx-b300", ("mi300x-8",)),
        (SHARED / "xla" / "tpu_v6e_4chip.xplane.pb.gz", "tpu-v6e", ("tpu-v5e", "hgx-h100")),
        (SHARED / "nsys" / "h100_2gpu_fastvideo.sqlite.gz", "hgx-h100", ("dgx-a100",)),
        (LIVE / "moe-2", LIVE / "moe-2.yaml", (LIVE / "net250.yaml", "dgx-a100")),
        (LIVE / "tp-wide-2", LIVE / "tp-wide-2.yaml", (LIVE / "net250.yaml",)),
        (LIVE / "tp-latency-2", LIVE / "netlat1g.yaml", (LIVE / "net250.yaml",)),
        (LIVE / "zero3-2", LIVE / "net250.yaml", (LIVE / "moe-2.yaml", "hgx-h100")),
    )
    for trace, own, others in told:
        yield Question("", (trace,), own)
        for cluster in others:
            yield Question("cluster", (trace,), cluster)


def main() -> None:
    """Print the questions of which something else is said than is so."""
    console = Console()
    asked = {"": 0, "nodes": 0, "files": 0, "cluster": 0}
    wrongly = dict.fromkeys(asked, 0)
    for question in questions():
        if not all(file.exists() for file in question.files):
            continue
        said = question.said()
        asked[question.wrong] += 1
        if bool(said) != bool(question.wrong):
            wrongly[question.wrong] += 1
            what = f"missed ({question.wrong})" if question.wrong else "false alarm"
            console.print(f"{what}: {question}", *said, sep="\n   ", markup=False, highlight=False)
    for wrong, count in asked.items():
        what = f"wrong {wrong}, nothing said" if wrong else "right, but doubted"
        console.print(f"{what}: {wrongly[wrong]} of {count}")


if __name__ == "__main__":
    typer.run(main)
