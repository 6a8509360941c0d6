"""The folders that PaddleX looks into while and after it trains.

    output/train_result.json     done_flag, and which files there are
    output/epoch_N/              epoch_N.pdparams, .pdopt, .json, config.yaml, inference/: the last five
    output/best_model/           the same of the best epoch
    output/paddlevideo_fast/     our own run: checkpoints, metrics, report

The checkpoints in two places are one file on the disk, where the disk has hard links.
"""

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paddlevideo_fast.apps.doctor.timing import child_environment
from paddlevideo_fast.apps.paddlex.translate import NUM_KEPT, RUN_FOLDER, Order
from paddlevideo_fast.engine.output import move_aside
from paddlevideo_fast.engine.trainer import Callback, Trainer
from paddlevideo_fast.io.files import atomic_write_text
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

_BEST = "best_model"
_ENDINGS = (".pdparams", ".pdopt", ".pdstates", ".json")


class PaddleXFolders(Callback):
    """Keeps PaddleX's folders up to date with the checkpoints of the run.

    Programs are exported by a process of their own, on the CPU, while training goes on.

    Args:
        order: what PaddleX asks for.
        config: the config that PaddleX handed over.
        model_name: with which the names of our checkpoints start.
        num_kept: folders epoch_N that stay; None: all.
    """

    def __init__(self, order: Order, config: Path, model_name: str, num_kept: int | None) -> None:
        self.order = order
        self.config = config
        self.run_folder = order.output / RUN_FOLDER
        self.model_name = model_name
        self.num_kept = num_kept
        self._exporter = ThreadPoolExecutor(max_workers=1)
        self._export: Future | None = None
        self._best: dict[str, Any] = {}

    def fit_begin(self, trainer: Trainer) -> None:
        self._on_main(trainer, self._begin)

    def epoch_end(self, trainer: Trainer) -> None:
        self._on_main(trainer, self._publish)

    def _on_main(self, trainer: Trainer, work: Callable[[Trainer], None]) -> None:
        """The main process works; the others wait, and end if it fails."""
        is_main = trainer.distribution.is_main
        trainer.distribution.gather_from(lambda: work(trainer) if is_main else None)

    def fit_end(self, trainer: Trainer) -> None:
        if trainer.distribution.is_main:
            self._wait()
            self._write_result(done=True)

    def close(self) -> None:
        self._exporter.shutdown()

    def _begin(self, trainer: Trainer) -> None:
        """Moves aside what an earlier run has left, and the epochs behind the one that a run resumes from."""
        epoch, output = trainer.state.epoch, self.order.output
        old = [folder for folder in self._epochs() if _number(folder) > epoch]
        if epoch == 0:
            old += [path for path in (output / _BEST, output / "train_result.json") if path.exists()]
        target = move_aside(output, old)
        if target is not None:
            logger.info("'%s' held epochs behind epoch %d: moved to '%s'", output, epoch, target)
        self._best = dict(trainer.state.best)
        self._write_result(done=False)

    def _publish(self, trainer: Trainer) -> None:
        epoch, saved = trainer.state.epoch, trainer.last_checkpoint
        has_checkpoint = saved is not None and saved.endswith(f"_epoch_{epoch:05d}")
        is_best = trainer.state.best.get("epoch") == epoch
        if not has_checkpoint and not is_best:
            return
        self._wait()
        prefix = str(self.run_folder / f"{self.model_name}_epoch_{epoch:05d}")
        folders: list[Path] = []
        if has_checkpoint:
            folders.append(self._fill(f"epoch_{epoch}", prefix))
        if is_best:
            best = str(self.run_folder / f"{self.model_name}_best")
            if has_checkpoint and filecmp.cmp(f"{best}.pdparams", f"{prefix}.pdparams", shallow=False):
                best = prefix
            folders.append(self._fill(_BEST, best))
            self._best = dict(trainer.state.best)
        for folder in sorted(self._epochs(), key=_number)[: -self.num_kept] if self.num_kept else ():
            shutil.rmtree(folder)
        self._export = self._exporter.submit(self._export_all, folders)
        self._write_result(done=False)

    def _fill(self, name: str, prefix: str) -> Path:
        """Puts a checkpoint, or weights alone, and PaddleX's config into a folder."""
        folder = self.order.output / name
        folder.mkdir(exist_ok=True)
        for ending in _ENDINGS:
            _link(Path(f"{prefix}{ending}"), folder / f"{name}{ending}")
        config = self.order.output / "config.yaml"
        shutil.copyfile(config if config.is_file() else self.config, folder / "config.yaml")
        return folder

    def _export_all(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            _run_export(self.config, folder / f"{folder.name}.pdparams", folder / "inference", self.order)

    def _wait(self) -> None:
        """Waits for the export that is under way; what fails there is a warning, for training goes on."""
        if self._export is None:
            return
        try:
            self._export.result()
        except (OSError, subprocess.CalledProcessError) as error:
            told = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            logger.warning("a folder inference/ in '%s' cannot be written: %s", self.order.output, told[-1])
        self._export = None

    def _epochs(self) -> list[Path]:
        return [path for path in self.order.output.glob("epoch_*") if re.fullmatch(r"epoch_\d+", path.name)]

    def _write_result(self, done: bool) -> None:
        """Writes train_result.json, in which PaddleX looks for what a training has left."""
        newest = sorted(self._epochs(), key=_number, reverse=True)
        models: dict[str, dict[str, Any]] = {f"last_{place}": {} for place in range(1, NUM_KEPT + 1)}
        models.update((f"last_{place}", self._listed(folder)) for place, folder in enumerate(newest, 1))
        models["best"] = self._listed(self.order.output / _BEST)
        if models["best"]:
            models["best"]["score"] = next((v for k, v in self._best.items() if k != "epoch"), 0.0)
        result = {
            "model_name": self.order.model_name,
            "label_dict": "label_dict.txt" if (self.order.output / "label_dict.txt").is_file() else "",
            "train_log": "train.log",
            "visualdl_log": str(Path(RUN_FOLDER, "vdl")),
            "config": "config.yaml",
            "models": models,
            "done_flag": done,
        }
        atomic_write_text(
            self.order.output / "train_result.json", json.dumps(result, indent=1, ensure_ascii=False)
        )

    def _listed(self, folder: Path) -> dict[str, Any]:
        """The files of a folder, relative to the output folder."""
        files = {
            "pdparams": folder / f"{folder.name}.pdparams",
            "pdopt": folder / f"{folder.name}.pdopt",
            "inference_config": folder / "inference/inference.yml",
            "pdmodel": next(iter(folder.glob("inference/inference.[jp][sd][om]*")), folder / "no program"),
            "pdiparams": folder / "inference/inference.pdiparams",
        }
        return {
            kind: str(path.relative_to(self.order.output)) for kind, path in files.items() if path.is_file()
        }


def _number(folder: Path) -> int:
    return int(folder.name.partition("_")[2])


def _link(source: Path, target: Path) -> None:
    """Makes `target` the same file as `source`, or a copy; removes it where there is no `source`."""
    target.unlink(missing_ok=True)
    if source.is_file():
        try:
            os.link(source, target)
        except OSError:  # a disk without hard links
            shutil.copyfile(source, target)


def _run_export(config: Path, weights: Path, folder: Path, order: Order) -> None:
    """Exports in a process of its own, which takes no GPU memory from the training.

    Raises:
        CalledProcessError: it failed.
    """
    settings = {"pretrained_model": str(weights), "device": "cpu", "pdx_model_name": order.model_name}
    words = [f"--override=Global.{key}={json.dumps(value)}" for key, value in settings.items() if value]
    command = [sys.executable, "-m", __package__, "-c", str(config), "-o", str(folder), *words]
    alone = child_environment(dict.fromkeys(key for key in os.environ if key.startswith("PADDLE_TRAINER")))
    subprocess.run(command, env=alone, check=True, capture_output=True, text=True)
