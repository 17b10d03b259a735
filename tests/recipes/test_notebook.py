"""The notebook of the first look runs, offline, and shows its pictures."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "recipes" / "first_look.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_and_shows_its_pictures():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "stored without outputs"
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2
    assert sum("text/html" in output.get("data", {}) for output in shown) >= 4  # audio players
    printed = "".join(output.get("text", "") for output in shown)
    assert "fidelity" in printed
    losses = printed.split("loss ")[1].splitlines()[0].split()
    assert float(losses[-1]) < float(losses[0])
