"""Trains with output in S3 many times, undisturbed, killed and with faults, and compares what is there.

`make test-store`. A run that is killed goes on on an empty machine: in another folder, with an empty cache.
Each run must end with exit code 0, with all its files in the store and the weights of a run on a local
disk, bit for bit. A run counts as killed if it was running then, and as one with faults if it met some.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.runs import TINY  # noqa: E402
from tests.support.stores import Store, s3_store  # noqa: E402

WEIGHTS = "tiny_epoch_00002.pdparams"
_FILES = {
    *(f"tiny_epoch_0000{epoch}{ending}" for epoch in (1, 2) for ending in (".pdparams", ".pdopt", ".json")),
    *("tiny_best.pdparams", "metrics.jsonl", "train.log", "config.yaml"),
}
_FAULTS = ("error", "throttled", "close", "reset", "cut", "understated")
_EVERY = 3  # of so many requests one goes wrong
_NUM_STEPS = 12


class Trial:
    """Starts runs and looks at what they leave.

    Args:
        folder: for everything; the data set is in `data`.
        store: S3.

    Attributes:
        told: what happened, in words → how often.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store
        self.random = random.Random(1)
        self.told: Counter = Counter()
        options = ("--train=24", "--valid=8", "--size=32", "--frames=8", "--classes=left,right,up,down")
        self._tool("data/make_motion_dataset.py", "--output", folder / "data", "--workers=1", *options)
        (folder / "tiny.yaml").write_text(TINY.format(data=folder / "data", output=folder / "local"))
        assert self.train("reference", []).wait() == 0, self.log("reference")
        self.expected = (folder / "local" / WEIGHTS).read_bytes()

    def _tool(self, script: str, *arguments: object) -> None:
        words = [sys.executable, str(ROOT / script), *map(str, arguments)]
        subprocess.run(words, check=True, env=self._environment("tool"), stdout=subprocess.DEVNULL)

    def _environment(self, machine: str) -> dict[str, str]:
        home = {"XDG_CACHE_HOME": str(self.folder / "homes" / machine), "PYTHONPATH": str(ROOT)}
        return {**os.environ, **self.store.environment, **home, "OMP_NUM_THREADS": "1"}

    def train(self, machine: str, options: Sequence[str]) -> subprocess.Popen:
        """Starts a training on a machine, which is a folder and a cache of its own."""
        folder = self.folder / "machines" / machine
        folder.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, str(ROOT / "tools/main.py"), "-c", str(self.folder / "tiny.yaml"), *options]
        with open(folder / "output.txt", "ab") as output:
            environment = self._environment(machine)
            return subprocess.Popen(
                words,
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, machine: str) -> str:
        """The last lines of what a machine printed."""
        text = (self.folder / "machines" / machine / "output.txt").read_text(errors="replace")
        return "\n".join(text.splitlines()[-6:])

    def problems(self, name: str, code: int) -> list[str]:
        """What is wrong with a run that has ended, in words."""
        url = f"{self.store.url}runs/{name}/"
        found = []
        if code:
            found.append(f"exit code {code}")
        missing = _FILES - set(self.store.names(url))
        if missing:
            found.append(f"lost {', '.join(sorted(missing))}")
        else:
            if self.store.get(url + WEIGHTS) != self.expected:
                found.append("other weights")
            lines = self.store.get(url + "metrics.jsonl").decode().splitlines()
            steps = [record["step"] for record in map(json.loads, lines) if record["kind"] == "train"]
            if steps != list(range(1, _NUM_STEPS + 1)):
                found.append(f"steps {steps}")
        return found

    def undisturbed(self, name: str) -> list[str]:
        return self.problems(name, self.train(name, self._to_store(name)).wait())

    def faulty(self, name: str) -> list[str]:
        """Every third request for the run's objects fails, in one way after the other, and is sent again."""
        faults = self.random.sample(_FAULTS, len(_FAULTS))
        self.store.fault(faults, f"*runs/{name}/*", every=_EVERY, after=self.random.randrange(_EVERY))
        found = self.undisturbed(name)
        num_faults = sum(bool(one["fault"]) for one in self.store.requests if f"runs/{name}/" in one["path"])
        self.told["requests that went wrong"] += num_faults
        return found if num_faults else [*found, "met no fault"]

    def killed(self, name: str) -> list[str]:
        """SIGKILL at any moment after the first checkpoint, then the same command on an empty machine."""
        for attempt in range(5):
            run = f"{name}-{attempt}"
            options = self._to_store(run)
            process = self.train(f"{run}-first", options)
            url = f"{self.store.url}runs/{run}/"
            while process.poll() is None and "tiny_epoch_00001.json" not in self.store.names(url):
                time.sleep(0.02)
            time.sleep(self.random.uniform(0, 0.8))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            was_running = process.wait() == -signal.SIGKILL
            self.told["killed while they ran" if was_running else "had ended before, tried again"] += 1
            if was_running:
                code = self.train(f"{run}-second", [*options, "-o", "resume=auto"]).wait()
                return self.problems(run, code)
        return ["each run had ended before it was killed"]

    def _to_store(self, name: str) -> list[str]:
        return ["-o", f"output_dir={self.store.url}runs/{name}"]


def main() -> None:
    """Runs the trial; exit code 1 where a run ended, lost a file, or trained other weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=50, help="with output in S3: a fifth killed, a fifth with faults"
    )
    parser.add_argument("--at-once", type=int, default=2)
    args = parser.parse_args()
    disturbed = args.runs // 5
    kinds = {"undisturbed": args.runs - 2 * disturbed, "killed": disturbed, "faulty": disturbed}
    failures = 0
    with tempfile.TemporaryDirectory() as folder, s3_store() as store:
        trial = Trial(Path(folder), store)
        with ThreadPoolExecutor(args.at_once) as threads:
            for kind, number in kinds.items():
                names = [f"{kind}{n}" for n in range(number)]
                problems = dict(zip(names, threads.map(getattr(trial, kind), names)))
                wrong = {name: found for name, found in problems.items() if found}
                failures += len(wrong)
                told = "".join(f"; {times} {what}" for what, times in trial.told.items())
                print(f"{kind}: {number - len(wrong)} of {number} right{told}", flush=True)
                trial.told.clear()
                for name, found in wrong.items():
                    print(f"  {name}: {'; '.join(found)}", flush=True)
                    for machine in sorted((Path(folder) / "machines").glob(f"{name}*")):
                        print(f"    {machine.name}: {trial.log(machine.name)}", flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
