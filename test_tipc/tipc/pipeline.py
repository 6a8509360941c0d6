"""Training, evaluation, export, prediction: a stage runs where the stages that it needs succeeded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from test_tipc.tipc import commands
from test_tipc.tipc.places import Place, places_of
from test_tipc.tipc.running import Session
from test_tipc.tipc.text import Text, TipcError

OUTPUT = Path("test_tipc/output")


class Branch(NamedTuple):
    """One training, and what follows it.

    Attributes:
        name: name of its files.
        trainer: the training command.
        place: devices that it trains on.
        amp: words that choose the precision of the training.
        use_gpu: words that choose the device of training and evaluation, where the text has an option for it.
    """

    name: str
    trainer: commands.Trainer
    place: Place
    amp: list[str]
    use_gpu: list[str]


def run_pipeline(text: Text, mode: str, gpu: str | None = None) -> int:
    """Runs all stages of a mode and returns the exit code.

    Args:
        text: what to run.
        mode: one of MODES, except benchmark_train.
        gpu: the GPU of whole_infer; None: all GPUs.

    Raises:
        TipcError: the text is wrong, or no part of it can run on this machine.
    """
    _check(text, mode)
    session = Session.open(text, OUTPUT / text.model_name / mode)
    if mode == "whole_infer":
        _infer_given_models(session, gpu)
    else:
        _train_and_infer(session, mode)
    if not session.num_run:
        raise TipcError(
            f"{text.path}: nothing was run: all of it is skipped on this machine; "
            "gpu_list:-1 and --use_gpu:False ask for the CPU"
        )
    failed = f", {len(session.failures)} failed" if session.failures else ""
    print(f"{session.num_run} commands{failed}: {session.status}")
    return session.exit_code


def branches(text: Text) -> Iterator[Branch]:
    """The trainings of a text: every entry of gpu_list with every precision and trainer."""
    trainers = commands.trainers(text)
    for number, place in enumerate(places_of(text["gpu_list"])):
        use_gpu = commands.use_gpu_words(text, number)
        for auto_cast in text["auto_cast"].choices:
            amp = commands.amp_words(text["auto_cast"], auto_cast)
            for trainer in trainers:
                name = f"{trainer.name}_gpus_{place.name}_autocast_{auto_cast}_nodes_{place.num_nodes}"
                yield Branch(name, trainer, place, amp, use_gpu)


def train(session: Session, mode: str, branch: Branch) -> Path | None:
    """Trains and returns the weights; None where the training failed, or the weights are on another machine.

    Args:
        session: runs the command.
        mode: decides how much is trained.
        branch: the training.
    """
    place, folder = branch.place, session.folder / branch.name
    words = commands.train_words(session.text, mode, branch.trainer.words, folder)
    command = [*place.launcher(f"{folder}_workers"), *words, *branch.amp, *branch.use_gpu]
    environment = {} if place.launched else place.environment
    before = _checkpoints(session.text, folder)
    if not session.run(command, session.folder / f"{branch.name}.log", environment):
        return None
    if place.node:
        session.skip(f"what follows {branch.name}", f"its weights are on the first machine, {place.ips[0]}")
        return None
    written = (path for path, time in _checkpoints(session.text, folder).items() if before.get(path) != time)
    weights = max(written, default=None)
    if weights is None:
        session.fail(f"Run failed - {session.text.model_name} - {branch.name}: wrote no weights to {folder}")
    return weights


def _check(text: Text, mode: str) -> None:
    """Makes all commands of a mode once, so that a wrong command is an error before any of them runs.

    Raises:
        TipcError: a command cannot be made, or the weights of whole_infer are missing.
    """
    if mode == "whole_infer":
        exports = []
        for model, export in commands.infer_models(text):
            if not model.exists():
                place = text["infer_model"].place
                raise TipcError(f"{place}: {model}: no such file; run prepare.sh, or put it there")
            exports += [export] if export else []
    else:
        exports = [branch.trainer.export for branch in branches(text)]
        commands.eval_words(text, mode, OUTPUT, OUTPUT)
    for export in exports:
        commands.export_words(text, export, OUTPUT, OUTPUT)
    any_gpus = 1
    list(commands.predictions(text, OUTPUT, any_gpus, ""))


def _train_and_infer(session: Session, mode: str) -> None:
    for branch in branches(session.text):
        obstacle = branch.place.obstacle(session.machine.num_gpus)
        if obstacle:
            session.skip(branch.name, obstacle)
            continue
        failures = len(session.failures)
        weights = train(session, mode, branch)
        if weights is not None:
            _use_weights(session, mode, branch, weights)
        elif len(session.failures) > failures:
            session.drop(f"evaluation, export and prediction of {branch.name}", "its training failed")


def _use_weights(session: Session, mode: str, branch: Branch, weights: Path) -> None:
    """Evaluates, exports and predicts after a training. The export does not need the evaluation."""
    name, environment = branch.name, branch.place.environment
    folder = session.folder / name
    evaluation = commands.eval_words(session.text, mode, weights, folder)
    if evaluation:
        session.run([*evaluation, *branch.use_gpu], session.folder / f"{name}_eval.log", environment)
    export = commands.export_words(session.text, branch.trainer.export, weights, folder)
    if not export:
        return
    if session.run(export, session.folder / f"{name}_export.log", environment):
        _predict(session, folder, name, {} if branch.place.on_cpu else environment)
    else:
        session.drop(f"prediction of {name}", "its export failed")


def _infer_given_models(session: Session, gpu: str | None) -> None:
    environment = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    for number, (model, export) in enumerate(commands.infer_models(session.text)):
        name, folder = f"model_{number}", model
        if export is not None:
            folder = session.folder / name
            words = commands.export_words(session.text, export, model, folder)
            if not session.run(words, session.folder / f"export_{number}.log", environment):
                session.drop(f"prediction of {model}", "its export failed")
                continue
        _predict(session, folder, name, environment)


def _predict(session: Session, folder: Path, name: str, environment: dict[str, str]) -> None:
    num_gpus = session.machine.num_gpus
    for prediction in commands.predictions(session.text, folder, num_gpus, f"python_infer_{name}"):
        if prediction.skipped:
            session.skip(prediction.name, prediction.skipped)
        else:
            session.run(prediction.words, session.folder / f"{prediction.name}.log", environment)


def _checkpoints(text: Text, folder: Path) -> dict[Path, int]:
    """When the weights that the text names, or else the weights of all epochs, were written."""
    line = text["train_model_name"]
    pattern = line.value if line.given else "*_epoch_*.pdparams"
    return {path: path.stat().st_mtime_ns for path in folder.glob(pattern)}
