"""docs/notebooks: every cell runs, in order, in an empty folder."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
PROGRAM = "paddlevideo-fast "


def cells_of(notebook, kind):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def run_cell(source, names):
    """Runs the lines that begin with `!` in a shell, and the others as Python."""
    commands = [line[1:] for line in source.splitlines() if line.startswith("!")]
    for command in commands:
        own = command.replace(PROGRAM, f"{sys.executable} -m paddlevideo_fast ")
        done = subprocess.run(own, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    if not commands:
        exec(compile(source, "<cell>", "exec"), names)


@pytest.mark.slow
@pytest.mark.annex
@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf().get_axes()))
    plt.switch_backend("agg")
    names = vars(ModuleType("notebook"))
    for source in cells_of(notebook, "code"):
        run_cell(source, names)
    assert len(shown) == sum("plt.show()" in source for source in cells_of(notebook, "code"))
    assert all(shown)
    assert "of 40 clips are named rightly" in capsys.readouterr().out


def test_notebooks_are_kept_without_outputs_and_their_links_lead_somewhere():
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
        for text in cells_of(notebook, "markdown"):
            for link in text.split("](")[1:]:
                assert (NOTEBOOKS / link.partition(")")[0]).is_file(), link
