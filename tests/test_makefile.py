"""`make clean` removes what `make` has made, and nothing of the user's."""

import shutil
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def test_clean_keeps_trained_weights_and_the_users_environment(tmp_path):
    shutil.copy(REPO / "Makefile", tmp_path)
    kept = ["output/tsm/tsm_best.pdparams", "mine/bin/python", "data/motion/train.list", "Makefile"]
    made = [".venv/bin/python", ".venv-lowest/bin/python", "build/lib/x", "dist/x.whl", ".mypy_cache/x"]
    for name in (*kept[:-1], *made):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    for words in ([], [f"VENV={tmp_path / 'mine'}"]):
        subprocess.run(["make", "-C", str(tmp_path), "clean", *words], check=True, capture_output=True)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*kept}
