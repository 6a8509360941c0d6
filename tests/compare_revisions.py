"""Proves that a refactor computes the same: runs this tree and another revision side by side.

    python tests/compare_revisions.py REV [SCENARIO ...]        or        make compare REV=...

Both trees make the motion data set, train, resume and evaluate through `tools/main.py`, each in processes
of its own. Clips, losses, learning rates, parameters, optimizer states and metrics must be equal to the last
bit; times are left out. Exit codes: 0, everything is equal; 1, something differs; 2, a run failed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import reprlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

TIMES = ("batch_cost", "reader_cost", "ips", "eta_sec", "sec", "efficiency")
SHOWN = ("grad_norm",)  # of records; an earlier revision may not have it
QUIET = ("use_visualdl=false", "report=false", "log_interval=1", "num_threads=1")
Facts = dict[str, Any]


class RunFailed(Exception):
    """A command of one of the two trees ended with an error."""


class Tree:
    """A checkout whose commands run in a working folder.

    Args:
        root: the checkout.
        work: folder for data and outputs.
    """

    def __init__(self, root: Path, work: Path) -> None:
        self.root = root
        self.work = work
        self.data = work / "motion"
        work.mkdir(parents=True)

    def run(self, *command: str) -> None:
        """Runs `python command` at the root of the checkout.

        Raises:
            RunFailed: with the end of its output.
        """
        environment = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            lines = "\n".join(done.stdout.splitlines()[-30:])
            raise RunFailed(f"{self.root}: {' '.join(command)}: exit code {done.returncode}\n{lines}")

    def main(
        self, config: str, output: str, *overrides: str, flags: Sequence[str] = (), ranks: int = 1
    ) -> Path:
        """Trains on the motion data, or evaluates with the flag `--test`; returns the output folder."""
        folder = self.work / output
        places = [
            f"DATASET.{split}.{key}={self.data}{end}"
            for split in ("train", "valid", "test")
            for key, end in (
                ("data_prefix", ""),
                ("file_path", "/train.list" if split == "train" else "/valid.list"),
            )
        ]
        options = [
            word for each in (*places, *QUIET, f"output_dir={folder}", *overrides) for word in ("-o", each)
        ]
        start = ["tools/launch.py", "--nproc_per_node", str(ranks)] if ranks > 1 else []
        if start:
            start += ["--log_dir", str(self.work / f"{output}-ranks")]
        self.run(*start, "tools/main.py", "-c", f"configs/quickstart/{config}", *options, *flags)
        return folder


def make_data(tree: Tree) -> Facts:
    """The motion data set, file by file."""
    tree.run("data/make_motion_dataset.py", "--output", str(tree.data), "--train", "96", "--valid", "24")
    files = sorted(path for path in tree.data.rglob("*") if path.suffix in (".mp4", ".list", ".txt"))
    return {str(path.relative_to(tree.data)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def quick_start(tree: Tree) -> Facts:
    """TSM of the quick start, two epochs with validation."""
    return facts_of(tree.main("tsm_motion.yaml", "tsm", "epochs=2", "OPTIMIZER.learning_rate.max_epoch=2"))


def resumed(tree: Tree) -> Facts:
    """The same run, started again from a checkpoint in the middle of its second epoch."""
    overrides = ("epochs=2", "OPTIMIZER.learning_rate.max_epoch=2", "save_every_steps=5", "EMA.decay=0.9")
    overrides += ("keep_last=null",)
    whole = facts_of(tree.main("tsm_motion.yaml", "resumed", *overrides))
    for path in (tree.work / "resumed").glob("TSM_motion_epoch_00002.*"):
        path.unlink()
    again = facts_of(tree.main("tsm_motion.yaml", "resumed", *overrides, "resume=auto"))
    if whole != again:
        raise RunFailed(f"{tree.root}: a resumed run differs from a whole one")
    return again


def multigrid(tree: Tree) -> Facts:
    """SlowFast in the multigrid schedule: long and short cycles, split batch norms, precise batch norm."""
    shorter = ("epochs=4", "OPTIMIZER.learning_rate.max_epoch=4", "OPTIMIZER.learning_rate.steps=[0,3]")
    tiny = (
        "MODEL.backbone.width_per_group=4",
        "MODEL.head.width_per_group=4",
        "max_iters=4",
        "DATASET.num_workers=2",
    )
    return facts_of(tree.main("slowfast_motion_multigrid.yaml", "multigrid", *shorter, *tiny))


def precision(tree: Tree) -> Facts:
    """TSM in bfloat16, in batches that are accumulated."""
    few = ("epochs=1", "OPTIMIZER.learning_rate.max_epoch=1", "max_iters=3", "accumulate_steps=2")
    return facts_of(tree.main("tsm_motion.yaml", "bfloat16", *few, flags=["--amp"]))


def two_ranks(tree: Tree) -> Facts:
    """TSM on two processes with synchronised batch norms."""
    few = ("epochs=1", "OPTIMIZER.learning_rate.max_epoch=1", "max_iters=4", "DISTRIBUTED.sync_bn=true")
    return facts_of(tree.main("tsm_motion.yaml", "ranks", *few, ranks=2))


def three_ranks(tree: Tree) -> Facts:
    """TSM on three processes, in batches that are accumulated."""
    few = ("epochs=1", "OPTIMIZER.learning_rate.max_epoch=1", "max_iters=3", "accumulate_steps=2")
    return facts_of(tree.main("tsm_motion.yaml", "three", *few, "DATASET.batch_size=4", ranks=3))


def evaluation(tree: Tree) -> Facts:
    """`--test` of the weights that the quick start has kept as its best."""
    weights = tree.work / "tsm" / "TSM_motion_best.pdparams"
    folder = tree.main("tsm_motion.yaml", "test", flags=["--test", "-w", str(weights)]) / "test"
    tables = sorted(folder.glob("*.csv"))
    facts: Facts = {path.name: path.read_text().replace(str(tree.data), "data") for path in tables}
    metrics = json.loads((folder / "metrics.json").read_text())
    return {**facts, "metrics": {name: value for name, value in metrics.items() if name != "weights"}}


SCENARIOS: dict[str, Callable[[Tree], Facts]] = {
    "make_data": make_data,
    "quick_start": quick_start,
    "resumed": resumed,
    "multigrid": multigrid,
    "precision": precision,
    "two_ranks": two_ranks,
    "three_ranks": three_ranks,
    "evaluation": evaluation,
}
NEEDS = {"evaluation": ("make_data", "quick_start")}


def facts_of(folder: Path) -> Facts:
    """What a run computed: its records without times, and the tensors of its checkpoints by their digest."""
    from paddlevideo_fast.engine import CheckpointStore, load_checkpoint

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    facts: Facts = {
        f"{record['kind']} {record['epoch']} {record['step']}": {
            key: value for key, value in record.items() if key not in TIMES
        }
        for record in lines
    }
    name = next(folder.glob("*_best.pdparams")).name[: -len("_best.pdparams")]
    for *_, prefix in CheckpointStore(folder, name).complete():
        checkpoint = load_checkpoint(prefix)
        for part in ("weights", "optimizer", "tensors"):
            facts[f"{Path(prefix).name} {part}"] = digests(getattr(checkpoint, part))
    return facts


def digests(values: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Name to the digest of each array, or to the value where it is none; nested mappings are flattened."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(digests(value, f"{path}{name}/"))
            continue
        array = np.asarray(value)
        found[path + str(name)] = (
            f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"
        )
    return found


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """The values that differ, each with its place."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before and key not in SHOWN)]:
            yield from differences(before.get(key), after.get(key), f"{place}/{key}")
    elif before != after and not (before != before and after != after):
        yield f"{place}: {reprlib.repr(before)} before, {reprlib.repr(after)} now"


def compare(before: Tree, after: Tree, names: Sequence[str]) -> int:
    """Runs the scenarios in both trees and prints a table; returns how many differ."""
    num_different = 0
    print(f"{'scenario':<14}{'values':>8}  result", flush=True)
    for name in names:
        facts = [SCENARIOS[name](tree) for tree in (before, after)]
        found = list(differences(*facts))
        num_values = sum(len(value) if isinstance(value, Mapping) else 1 for value in facts[0].values())
        print(f"{name:<14}{num_values:>8}  {'equal' if not found else f'{len(found)} differ'}", flush=True)
        print("".join(f"    {line}\n" for line in found[:20]), end="")
        num_different += bool(found)
    return num_different


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A folder with the files of a revision of this repository.

    Raises:
        RunFailed: there is no such revision.
    """
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True)
        if archive.returncode:
            raise RunFailed(f"{revision}: {archive.stderr.decode(errors='replace').strip()}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", metavar="REV", help="what to compare with, such as main~3 or a tag")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"default: {' '.join(SCENARIOS)}")
    parser.add_argument("--keep", type=Path, help="keep data and outputs of both trees in this new folder")
    args = parser.parse_args(argv)
    unknown = set(args.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown scenarios {', '.join(sorted(unknown))}; known: {', '.join(SCENARIOS)}")
    asked = set(args.scenarios or SCENARIOS) | {"make_data"}
    asked |= {needed for name in asked for needed in NEEDS.get(name, ())}
    names: list[str] = [name for name in SCENARIOS if name in asked]
    work = args.keep or Path(tempfile.mkdtemp())
    try:
        with checkout(args.revision) as root:
            different = compare(Tree(root, work / "before"), Tree(ROOT, work / "after"), names)
    except RunFailed as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        if args.keep is None:
            shutil.rmtree(work, ignore_errors=True)
    print("equal to the last bit" if not different else f"{different} of {len(names)} scenarios differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
