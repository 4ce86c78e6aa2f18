"""The notebooks do what they show: each is executed, and gives what stands in it.

Figures are drawn, not compared. ``UPDATE_DOCUMENTS=1`` writes what cells give now into the
notebooks: look at the difference before you commit it.
"""

import ast
import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.places import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
UPDATE = os.environ.get("UPDATE_DOCUMENTS") == "1"
LARGEST = 150_000
"""Bytes of a notebook with its figures: these are light, so that a difference can be looked at."""

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def shown(notebook: Any) -> Iterator[tuple[int, list[str]]]:
    """What every cell of code gives: its text and its tables; of a figure that it is there."""
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        told = []
        for output in cell.outputs:
            assert output.output_type != "error", f"cell {number}: {output.get('evalue')}"
            if output.output_type == "stream":
                told.append(output.text)
            elif "image/png" in output.data:
                told.append("a figure")
            else:
                told += [output.data[kind] for kind in sorted(output.data)]
        yield number, told


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotebookClient]:
    """One process for all notebooks: what they import takes longer than what they ask."""
    client = NotebookClient(
        nbformat.v4.new_notebook(),
        timeout=200,
        kernel_name="python3",
        resources={"metadata": {"path": tmp_path_factory.mktemp("notebooks")}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("COLUMNS", "100")
        with client.setup_kernel():
            yield client


@pytest.mark.timeout(240)
@every_notebook
def test_a_notebook_gives_what_stands_in_it(path: Path, client: NotebookClient) -> None:
    kept, notebook = read(path), read(path)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))  # names of the one before
    client.nb = notebook
    client.execute(reset_kc=False, cleanup_kc=False)
    del notebook.cells[0]
    if UPDATE:
        code = (cell for cell in notebook.cells if cell.cell_type == "code")
        for number, cell in enumerate(code, start=1):
            cell.execution_count = number
            cell.metadata.pop("execution", None)
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = number
        if list(shown(notebook)) != list(shown(kept)):
            nbformat.write(notebook, path)
        return
    assert dict(shown(notebook)) == dict(shown(kept))


@every_notebook
def test_a_notebook_is_light_and_complete(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert path.stat().st_size < LARGEST
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    for cell in code:
        ast.parse(cell.source)
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                assert base64.b64decode(output.data["image/png"]).startswith(b"\x89PNG")
    assert notebook.cells[0].source.startswith("# ")


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3
