"""Makes what a mode needs before it runs, where that is possible: annotation lists, a video, weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from paddlevideo_fast.cli import build_parser, quiet_import
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.errors import UsageError
from test_tipc.tipc import commands
from test_tipc.tipc.pipeline import OUTPUT, branches, train
from test_tipc.tipc.running import Session
from test_tipc.tipc.text import Line, Text, TipcError

_DATA = Path("test_tipc/data")
# folder -> arguments of data/make_motion_dataset.py that fill it; configs/quickstart reads the last two
_GENERATED: dict[Path, list[str]] = {
    _DATA / "motion": ["--train", "64", "--valid", "16"],
    Path("data/motion"): [],
    Path("data/motion_small"): ["--train", "3000"],
}
_MAIN = "tools/main.py"


def prepare(text: Text, mode: str) -> int:
    """Makes what is missing and returns the exit code.

    Raises:
        TipcError: something is missing and cannot be made.
        ConfigError: the config of a command is wrong.
    """
    session = Session.open(text, OUTPUT / text.model_name / f"prepare_{mode}")
    weights = [model for model, _ in commands.infer_models(text)] if mode == "whole_infer" else []
    missing_weights = [model for model in weights if not model.exists()]
    lists_of = "lite_train_lite_infer" if missing_weights else mode
    for path, needed_by in _needed_files(text, mode, lists_of):
        if not path.exists() and not _generate(session, path, needed_by):
            return session.exit_code
    for model in missing_weights:
        if not _train_weights(session, model):
            return session.exit_code
    print(f"ready for {mode}: {text.path}")
    return 0


def _needed_files(text: Text, mode: str, lists_of: str) -> Iterator[tuple[Path, Line]]:
    """Files and the lines that need them. `lists_of` is the mode whose training and evaluation are run."""
    if lists_of != "whole_infer":
        for trainer in commands.trainers(text):
            words = commands.train_words(text, lists_of, trainer.words, OUTPUT)
            yield from _lists(trainer.line, words, ("train", "valid"))
    if mode not in ("whole_infer", "benchmark_train"):
        yield from _lists(text["eval"], commands.eval_words(text, mode, Path("x"), OUTPUT), ("test",))
    if mode != "benchmark_train" and text["input_file"].given:
        yield Path(text["input_file"].value), text["input_file"]


def _lists(line: Line, words: list[str], splits: tuple[str, ...]) -> Iterator[tuple[Path, Line]]:
    """The annotation lists that a command of tools/main.py reads; its flags and its config are checked."""
    if not words or words[0] != _MAIN:
        return
    try:
        args = build_parser().parse_args(words[1:])
    except UsageError:
        raise TipcError(
            f"{line.place}: {_MAIN} does not take these arguments: {' '.join(words[1:])}"
        ) from None
    with quiet_import():
        datasets = load_config(args.config, args.override)["DATASET"]
    for split in splits:
        if split in datasets:
            yield Path(datasets[split]["file_path"]), line


def _generate(session: Session, path: Path, needed_by: Line) -> bool:
    """Makes the data set that has `path`; returns whether that succeeded.

    Raises:
        TipcError: no data set that can be made has `path`, or the folder is there without it.
    """
    folder: Path | None = next((made for made in _GENERATED if made in (path, *path.parents)), None)
    if folder is None:
        raise TipcError(
            f"{needed_by.place}: {path}: no such file; put your data there, or change the text. "
            f"Only {', '.join(map(str, _GENERATED))} can be generated"
        )
    words = ["data/make_motion_dataset.py", "--output", str(folder), *_GENERATED[folder]]
    if not session.run(words, session.folder / f"{folder.name}.log"):
        return False
    if not path.exists():
        raise TipcError(f"{needed_by.place}: {path}: is not part of the generated {folder}")
    return True


def _train_weights(session: Session, model: Path) -> bool:
    """Trains as lite_train does and writes the weights to `model`; returns whether that succeeded.

    Raises:
        TipcError: the user has to provide the weights, or nothing can be trained here.
    """
    line = session.text["infer_model"]
    if _DATA not in model.parents:
        raise TipcError(f"{line.place}: {model}: no such file; put the weights there, or name others")
    num_gpus = session.machine.num_gpus
    branch = next((branch for branch in branches(session.text) if not branch.place.obstacle(num_gpus)), None)
    if branch is None:
        raise TipcError(f"{line.place}: {model}: no entry of gpu_list can train it on this machine")
    weights = train(session, "lite_train_lite_infer", branch)
    if weights is None:
        return False
    model.parent.mkdir(parents=True, exist_ok=True)
    unfinished = model.with_suffix(".part")
    shutil.copyfile(weights, unfinished)
    unfinished.replace(model)
    return True
