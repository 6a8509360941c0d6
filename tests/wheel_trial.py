"""Runs the commands of an installed wheel, one after the other, in an empty folder.

    python tests/wheel_trial.py COMMAND [NAME ...]        or        make test-wheel

COMMAND is the path of an installed `paddlevideo-fast`; NAMEs choose steps, all by default. Each step takes
what those before it have written. Exit codes: 0, every step ended with 0; 1, one did not.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_NETWORK = (
    "import paddle\nfrom paddle import nn\nfrom paddlevideo_fast.modeling import Backbone\n"
    "from paddlevideo_fast.registry import BACKBONES\n"
    + '''

@BACKBONES.register()
class OneLayer(Backbone):
    """A convolution on each frame."""

    data_format, out_channels = "NCHW", 8

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2D(3, 8, 7, stride=8)

    def forward(self, frames: paddle.Tensor) -> paddle.Tensor:
        return self.layer(frames)
'''
)

_SMALL = ["-o MODEL.backbone.width=8", "-o MODEL.head.in_channels=64"]
_SHORT = ["-o DATASET.num_workers=0", "-o DATASET.batch_size=4", "-o epochs=1", "-o use_visualdl=false"]
_RUN, _BEST = " ".join([*_SMALL, *_SHORT]), "output/tsm_motion/TSM_motion_best.pdparams"
_LIST = "--list data/motion/train.list --data_prefix data/motion --workers 1"
_OWN = "-o MODEL.backbone='{name: OneLayer}' -o MODEL.head.in_channels=8 -o output_dir=output/own"

STEPS: dict[str, str] = {
    "version": "--version",
    "zoo": "zoo tsm_motion",
    "motion": "data motion --train=8 --valid=4 --size=64 --frames=8 --workers=1",
    "check": f"data check {_LIST}",
    "prepare": f"data prepare {_LIST} --output prepared --short_side 64",
    "pack": f"data pack {_LIST} --output packed --short_side 64",
    "extract": "data extract data/motion/train --output frames --level 1 --workers 1",
    "train": f"train -c tsm_motion --validate --max_iters=1 {_RUN}",
    "test": f"test -c tsm_motion -w {_BEST} {_RUN}",
    "export": f"export -c tsm_motion -w {_BEST} --uint8 {' '.join(_SMALL)}",
    "predict": "predict -i data/motion/valid --model_file inference/TSM_motion --json",
    "convert": f"convert tsm_motion --from paddlevideo --src {_BEST} --output_file x.pdparams "
    f"{' '.join(_SMALL)}",
    "doctor": f"doctor -c tsm_motion --steps 2 {_RUN}",
    "plan": "plan -c slowfast_multigrid --clips 1000 --no-measure",
    "init": "init data/motion/train.list --valid_list data/motion/valid.list --output my_set "
    "--recipe tsm_motion",
    "init's": f"train -c my_set/config.yaml --max_iters=1 {_RUN} -o output_dir=output/my_set",
    "plug-in": f"train -c tsn_motion --import ./own.py --max_iters=1 {_OWN} {' '.join(_SHORT)}",
}


def run(program: Sequence[str], name: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Runs a step and returns what it prints on stdout.

    Args:
        program: the words that start `paddlevideo-fast`.
        name: of the step.
        folder: where it runs.
        environment: its variables.

    Raises:
        subprocess.CalledProcessError: it did not end with 0.
    """
    (folder / "own.py").write_text(_NETWORK)
    command = [*program, *shlex.split(STEPS[name])]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or "Traceback" in done.stderr:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def main(argv: Sequence[str]) -> int:
    """Runs the steps and prints the time of each."""
    program = str(Path(argv[0]).absolute())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in argv[1:] or STEPS:
            began_sec = time.monotonic()
            try:
                run([program], name, Path(folder), environment)
                print(f"{name:<9}{time.monotonic() - began_sec:5.1f} s", flush=True)
            except subprocess.CalledProcessError as error:
                failed.append(name)
                print(f"{name:<9} exit code {error.returncode}\n{error.stdout}{error.stderr}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
