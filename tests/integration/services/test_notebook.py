"""The notebook of the examples: its cells run one after the other, by themselves and, where Jupyter is installed, in a kernel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inferspan.report.session import read_session
from tests.integration.conftest import plain_environment

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
REQUESTS = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The notebook, and the model that it loads."""
    for name in ("notebook.ipynb", "models.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    return tmp_path


def _environment() -> dict[str, str]:
    return {**plain_environment(), "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent / "src"), *filter(None, sys.path)]), "OMP_NUM_THREADS": "1"}


def test_cells_run_one_after_the_other(folder: Path) -> None:
    """Without Jupyter; the session file has the requests of all cells."""
    cells = json.loads((folder / "notebook.ipynb").read_text())["cells"]
    program = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=_environment(), check=True, timeout=300, capture_output=True)
    assert len(read_session(folder / "notebook.otlp.jsonl").requests) == REQUESTS


def test_the_notebook_runs_in_a_kernel(folder: Path) -> None:
    """The cells that end in a handle, a request or a summary show HTML."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    program = (
        "import nbformat, nbclient\n"
        "notebook = nbformat.read('notebook.ipynb', 4)\n"
        "nbclient.NotebookClient(notebook, timeout=240).execute()\n"
        "nbformat.write(notebook, 'run.ipynb')\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=_environment(), check=True, timeout=600)
    cells = json.loads((folder / "run.ipynb").read_text())["cells"]
    shown = ["text/html" in output.get("data", {}) for cell in cells for output in cell.get("outputs", ()) if output["output_type"] != "stream"]
    assert shown[:3] == [True, True, True]
    assert len(read_session(folder / "notebook.otlp.jsonl").requests) == REQUESTS
