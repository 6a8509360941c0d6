"""Compares predictions of a pipeline with stored ones: the scores of the stored classes, video by video.

Stored results are text, as PaddleVideo prints it: `Current video file: PATH`, then `top-1 class: 5` and
`top-1 score: 0.99`, top-2 and so on as well. 0: all agree. 1: some do not. 2: nothing could be compared.

Example:
    python test_tipc/compare_results.py --gt_file "test_tipc/results/TSM/*.txt"
        --log_file "test_tipc/output/TSM/lite_train_lite_infer/python_infer_norm_train_gpus_-1_*.log"
"""

from __future__ import annotations

import argparse
import glob
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.errors import EXIT_USER_ERROR
from test_tipc.tipc.text import TipcError

# path of a video -> class -> score
Results = dict[str, dict[int, float]]

_PRECISIONS = ("fp32", "fp16", "int8")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see --help. PaddleVideo's flags keep their names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gt_file", required=True, help="stored results: files or patterns; fp32 or fp16 is in their names"
    )
    parser.add_argument(
        "--log_file", required=True, help="logs of tools/predict.py --json: files or patterns"
    )
    parser.add_argument("--atol", type=float, default=1e-3, help="absolute tolerance (default 0.001)")
    parser.add_argument("--rtol", type=float, default=1e-3, help="relative tolerance (default 0.001)")
    parser.add_argument(
        "--write",
        action="store_true",
        help="store the results of the first log in --gt_file, compare nothing",
    )
    return parser.parse_args(argv)


def read_log(path: Path) -> Results:
    """The predictions in a log of `tools/predict.py --json`, between lines of other kinds.

    Raises:
        TipcError: there are none, or a video could not be read.
    """
    lines = re.findall(r"^\{.*$", path.read_text(encoding="utf-8", errors="replace"), re.M)
    try:
        entries = [json.loads(line) for line in lines]
        results = {
            entry["path"]: {top["class_id"]: top["score"] for top in entry["top"]} for entry in entries
        }
    except (ValueError, KeyError, TypeError) as error:
        raise TipcError(f"{path}: is no log of complete predictions: {error!r}") from None
    if not results:
        raise TipcError(f"{path}: has no predictions; the text's inference line needs --json")
    return results


def read_stored(path: Path) -> Results:
    """Reads stored results.

    Raises:
        TipcError: the file has no results.
    """
    results: Results = {}
    number, video = None, ""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        try:
            if name == "Current video file":
                video = value
            elif re.fullmatch(r"top-\d+ class", name):
                number = int(value)
            elif re.fullmatch(r"top-\d+ score", name) and number is not None:
                results.setdefault(video, {})[number] = float(value)
        except ValueError as error:
            raise TipcError(f"{path}: {line.strip()}: {error}") from None
    if not results:
        raise TipcError(f"{path}: has no lines `top-1 class: …` and `top-1 score: …`")
    return results


def stored_text(results: Results) -> str:
    """The text of a file of stored results."""
    lines: list[str] = []
    for video, scores in results.items():
        lines.append(f"Current video file: {video}")
        for place, (number, score) in enumerate(sorted(scores.items(), key=lambda item: -item[1]), 1):
            lines += [f"\ttop-{place} class: {number}", f"\ttop-{place} score: {score:.6f}"]
    return "\n".join(lines) + "\n"


def differences(stored: Results, found: Results, atol: float, rtol: float) -> list[str]:
    """A line for each video that is missing or has a score outside of `atol + rtol * stored`."""
    lines = []
    for video, scores in stored.items():
        if video not in found:
            lines.append(f"{video}: no prediction")
            continue
        for number, score in scores.items():
            got = found[video].get(number)
            if got is None:
                lines.append(f"{video}: class {number}: {score:.6f} stored, not among the predicted classes")
            elif not abs(got - score) <= atol + rtol * abs(score):
                lines.append(f"{video}: class {number}: {score:.6f} stored, {got:.6f} predicted")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Compares, or stores; see the module."""
    args = parse_args(argv)
    try:
        logs = _files(args.log_file)
        if args.write:
            target = Path(args.gt_file)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(stored_text(read_log(logs[0])), encoding="utf-8")
            print(f"results of {logs[0]} written to {target}")
            return 0
        return _compare(_files(args.gt_file), logs, args.atol, args.rtol)
    except (TipcError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_USER_ERROR


def _compare(stored_files: list[Path], logs: list[Path], atol: float, rtol: float) -> int:
    stored: dict[str, tuple[Path, Results]] = {}
    for path in stored_files:
        precision = _precision(path)
        if precision in stored:
            raise TipcError(f"{path}, {stored[precision][0]}: both have results of {precision}; name one")
        stored[precision] = (path, read_stored(path))
    num_compared = num_wrong = 0
    for log in logs:
        if _precision(log) not in stored:
            print(f"Skipped: no stored results of {_precision(log)} for {log}")
            continue
        path, expected = stored[_precision(log)]
        wrong = differences(expected, read_log(log), atol, rtol)
        num_compared += 1
        num_wrong += bool(wrong)
        print(f"{log} and {path} are {'inconsistent' if wrong else 'consistent'}", *wrong, sep="\n  ")
    if not num_compared:
        raise TipcError("nothing was compared: no log has a precision of which there are results")
    return 1 if num_wrong else 0


def _precision(path: Path) -> str:
    """The precision in the name of a file; fp32 where there is none."""
    return next((precision for precision in _PRECISIONS if precision in path.name), _PRECISIONS[0])


def _files(pattern: str) -> list[Path]:
    found = sorted(map(Path, glob.glob(pattern)))
    if not found:
        raise TipcError(f"{pattern}: no such file")
    return found


if __name__ == "__main__":
    sys.exit(main())
