"""Write ``docs/floor-plan.md``, the map of the code: ``python docs/floor_plan.py``.

The page has the first paragraph of the docstring of each package, and of each module at the top
of one of the five. The text around the tables is written here.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "floor-plan.md"
COMMAND = "python docs/floor_plan.py"
PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")

HEAD = """\
# Floor plan

<!-- Written by `python docs/floor_plan.py` from the docstrings of packages and modules. -->

Five packages and the public API, `twofold`. Imports point one way: `experiments → topologies | collectives | traces →
simulator`; the three in the middle do not import each other. The folders inside a package are layered, too:
the contracts are in `pyproject.toml`, and `make check` enforces them.

```text
twofold/        the public API: import twofold as tf; names are loaded when first used
simulator/      the model and the clock
topologies/     functions that return a topology; the catalogue of clusters
collectives/    functions that return a schedule; what communication libraries choose
traces/         files of other tools to a workload, and back; generated steps
experiments/    questions, what-ifs, studies, reports, pages, the command line
tests/          mirrors the packages; helpers/; acceptance/ for the whole program
benchmarks/     speed and accuracy against stated targets
docs/           these pages
```

Numbers that are data stand in files, each with its source:

| file or folder | what |
|---|---|
| `simulator/accelerators.yaml` | accelerators: peaks, memory, bandwidth, and how they are spelt |
| `topologies/catalog/` | clusters of the catalogue: bandwidths, efficiencies, latencies of a hop |
| `topologies/prices.yaml` | usual prices and power of parts |
| `simulator/serving/engines.yaml` | defaults and constants of serving engines |
| `traces/models/` | model cards |
| `traces/core/comm_kernels.yaml` | kernels that communicate, by their names |
| `traces/generate/kernel_times/data/`, `traces/generate/kernel_times/shapes.py` | tables of measured kernels; the roofline of kernels without a table |
| `traces/generate/framework.py` | host times and overlap of frameworks |
| `collectives/libraries/nccl_constants.py` | constants of NCCL by version and generation: what its protocols add to a hop |
| `traces/live/`, `traces/samples/` | recordings, and steps measured on other networks |
| `experiments/priors/`, `experiments/validation/` | measured errors; published what-ifs |
| `simulator/support/limits.py` | limits on files and memory |
| `experiments/studies/samples/` | studies that ship |
| `benchmarks/` | published measurements that `make validate` compares with |
"""  # noqa: E501


def floor_plan() -> str:
    """Return the page as it should be."""
    return HEAD + "".join(section(package) for package in PACKAGES)


def section(package: str) -> str:
    """Return the heading and the table of one of the five packages."""
    rows = "".join(f"| `{name}` | {text} |\n" for name, text in rooms(ROOT / package))
    return f"\n## {package}\n\n{summary(ROOT / package)}\n\n| name | what |\n|---|---|\n{rows}"


def rooms(package: Path) -> Iterator[tuple[str, str]]:
    """Yield the folders of a package that hold modules, then the modules at its top."""
    for init in sorted(package.rglob("*/__init__.py"), key=lambda path: path.parts):
        yield f"{init.parent.relative_to(package).as_posix()}/", summary(init.parent)
    for module in sorted(package.glob("*.py")):
        if not module.name.startswith("__"):
            yield module.name, summary(module)


def summary(path: Path) -> str:
    """Return the first paragraph of the docstring of a module or of a package's folder.

    Raises
    ------
    ValueError
        If there is no docstring.
    """
    module = path / "__init__.py" if path.is_dir() else path
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{module.relative_to(ROOT)}: say in a docstring what is in it")
    sentence = " ".join(docstring.split("\n\n", 1)[0].split())
    return sentence.replace("``", "`").replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(floor_plan(), encoding="utf-8")
