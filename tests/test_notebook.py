"""The notebook in examples: it is saved without outputs, and every cell runs that needs no download."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples/first_steps.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
PATIENCE_S = 60


def test_it_is_saved_without_outputs() -> None:
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_only_the_real_model_is_left_out() -> None:
    (left_out,) = [cell for cell in CELLS if "skip-execution" in cell["metadata"].get("tags", ())]
    assert 'model="local"' in "".join(left_out["source"])


def test_its_cells_run_from_top_to_bottom(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}

    nbclient.NotebookClient(notebook, timeout=PATIENCE_S, kernel_name="python3", resources=place).execute()

    shown = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert "<svg" in shown
    assert "\\rCollecting rollouts: 100%|" in shown  # a bar that redraws itself
    assert "4 tasks, difference -0.50" in shown
    assert len((tmp_path / "sft.jsonl").read_text("utf-8").splitlines()) == 6
