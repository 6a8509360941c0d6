"""Changes single lines of the package at random and counts how many changes the tests notice.

    python tests/mutate.py [--seed 1] [--modules 20] [--each 4] [--only MODULE ...]    or    make mutate

A change swaps an operator, a comparison, a constant or a condition, or leaves out a statement. The tests of
its module run on a copy of the tree; see `own_tests`. Exit codes: 0, at least nine of ten changes were
noticed; 1, fewer were; 2, the tests fail unchanged.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "paddlevideo_fast"
SHARE_NOTICED = 0.9
MIN_LINES = 60  # of a module; shorter ones hold few lines to change
# A change may make a loop endless: its tests are stopped, which counts as noticed.
LIMIT_SEC = 600
IGNORED = (".*", "build", "dist", "output", "inference", "*.egg-info", "__pycache__")

# Folders of rooms.
NESTED = ("apps", "extensions", "sources")

# Where the tests of a room lie beside its own folder.
FURTHER = {
    "engine": ("distributed",),
    "assembly": ("distributed",),
    "modeling": ("numerics", "export", "predict", "convert"),
}

_SWAPS: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and",
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """A change of one line: `old`, between two columns, becomes `new`."""

    module: Path
    line_no: int
    columns: tuple[int, int]
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Returns the text of the module with the change."""
        lines = text.splitlines(keepends=True)
        line, (begin, end) = lines[self.line_no - 1].encode(), self.columns
        lines[self.line_no - 1] = (line[:begin] + self.new.encode() + line[end:]).decode()
        return "".join(lines)

    def __str__(self) -> str:
        return f"{self.module}:{self.line_no}: {self.old!r} -> {self.new!r}"


def _between(left: ast.expr, right: ast.expr, text: str, new: str) -> Iterator[tuple[int, int, int, str]]:
    """Yields the place of the operator that stands between two expressions of one line."""
    if left.end_lineno == right.lineno and left.end_col_offset is not None:
        gap = text.splitlines()[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
        found = re.search(r"[-+*/%<>=!]+|\b(?:is not|not in|is|in|and|or)\b", gap)
        if found:
            begin = left.end_col_offset + found.start()
            yield right.lineno, begin, begin + len(found[0]), new


def _changes(node: ast.AST, text: str) -> Iterator[tuple[int, int, int, str]]:
    """Yields the changes of a node, each as line, first and last column, and new text."""
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
        yield from _between(node.left, node.right, text, _SWAPS[type(node.op)])
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(node.left, node.comparators[0], text, _SWAPS[type(node.ops[0])])
    elif isinstance(node, ast.BoolOp):
        yield from _between(node.values[0], node.values[1], text, _SWAPS[type(node.op)])
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        new = str(not node.value if isinstance(node.value, bool) else node.value + 1)
        yield node.lineno, node.col_offset, node.end_col_offset or 0, new
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)) and node.test.lineno == node.test.end_lineno:
        test = ast.get_source_segment(text, node.test)
        yield node.test.lineno, node.test.col_offset, node.test.end_col_offset or 0, f"(not ({test}))"
    elif _can_be_left_out(node):
        yield node.lineno, node.col_offset, node.end_col_offset or 0, "pass"


def _can_be_left_out(node: ast.AST) -> bool:
    """Whether a node is a statement of one line that is no docstring."""
    if isinstance(node, ast.Expr):
        return node.lineno == node.end_lineno and not isinstance(node.value, (ast.Constant, ast.Yield))
    return isinstance(node, ast.AugAssign) and node.lineno == node.end_lineno


def _code_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes below `node` that compute: no annotations, no decorators, no log lines."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or name in ("annotation", "returns", "decorator_list"):
                continue
            source = ast.unparse(child) if isinstance(child, ast.Expr) else ""
            if not re.match(r"_?(?:log|logger)\.|warn_once\(", source):
                yield child
                yield from _code_nodes(child)


def mutations(module: Path) -> list[Mutation]:
    """Returns all changes of a module's lines that still compile.

    Args:
        module: its path, relative to the root of the tree.
    """
    text = (ROOT / module).read_text()
    lines, found = text.splitlines(), []
    for node in _code_nodes(ast.parse(text)):
        for line_no, begin, end, new in _changes(node, text):
            old = lines[line_no - 1].encode()[begin:end].decode()
            mutation = Mutation(module, line_no, (begin, end), old, new)
            try:
                compile(mutation.apply(text), str(module), "exec")
            except SyntaxError:
                continue
            found.append(mutation)
    return sorted(found, key=lambda one: (one.line_no, one.columns))


def own_tests(module: Path) -> list[list[str]]:
    """Returns the tests of a module in the order in which they are tried.

    The files of its folder that import it or bear its name, the other files of its folder, what imports it
    elsewhere, and the folders of `FURTHER`. A room without a folder has the files that import its modules.
    """
    dotted = ".".join(module.with_suffix("").parts)
    parent, _, leaf = dotted.rpartition(".")
    named = re.compile(rf"{re.escape(dotted)}\b|from {re.escape(parent)} import [^\n]*\b{leaf}\b")
    parts = dotted.split(".")[1:]
    room = "/".join(parts[: 2 if parts[0] in NESTED else 1])
    folder = ROOT / "tests" / room
    near, beside, far, further = [], [], [], []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text, name = path.read_text(), str(path.relative_to(ROOT))
        imports = bool(named.search(text)) or path.stem == f"test_{leaf}"
        if path.parent == folder:
            (near if imports else beside).append(name)
        elif imports:
            far.append(name)
        elif not folder.is_dir() and f"{PACKAGE}.{room}".replace("/", ".") in text:
            beside.append(name)
        elif path.parent.name in FURTHER.get(room, ()):
            further.append(name)
    return [near, beside, far, further]


def run_tests(tree: Path, files: Sequence[str], *options: str) -> str:
    """Runs test files in a copy of the tree and returns the first failure, or "" where all pass."""
    if not files:
        return ""
    changed = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        *options,
        *files,
    ]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env={**os.environ, **changed},
            capture_output=True,
            text=True,
            timeout=LIMIT_SEC,
        )
    except subprocess.TimeoutExpired:
        return "endless"
    if done.returncode in (0, 5):  # 5: no test was left
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else (done.stdout + done.stderr)[-2000:]


class Trees:
    """One copy of the tree for each thread that runs tests.

    Args:
        folder: where the copies lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._local = threading.local()
        # Python takes stored bytecode of a file with the same time and size: each change has its own time.
        self._times = itertools.count(1_000_000_000, 10)

    def _tree(self) -> Path:
        if not hasattr(self._local, "tree"):
            self._local.tree = self._folder / str(threading.get_ident())
            shutil.copytree(ROOT, self._local.tree, ignore=shutil.ignore_patterns(*IGNORED), symlinks=True)
        return self._local.tree

    def unchanged(self, modules: Iterable[Path], jobs: int) -> str:
        """Returns the first test of modules that fails without a change, or ""."""
        files = sorted({name for module in modules for names in own_tests(module) for name in names})
        return run_tests(self._tree(), files, "-n", str(jobs))

    def tried(self, mutation: Mutation) -> tuple[Mutation, str]:
        """Returns the mutation and the test that notices it, or ""."""
        text = (ROOT / mutation.module).read_text()
        self._write(mutation.module, mutation.apply(text))
        try:
            noticed = (run_tests(self._tree(), names, "-x") for names in own_tests(mutation.module))
            return mutation, next(filter(None, noticed), "")
        finally:
            self._write(mutation.module, text)

    def _write(self, module: Path, text: str) -> None:
        path, time_sec = self._tree() / module, next(self._times)
        path.write_text(text)
        os.utime(path, (time_sec, time_sec))


def chosen(seed: int, modules: int, each: int, only: Sequence[str]) -> list[Mutation]:
    """Draws mutations: `each` of a number of modules, which are drawn too or named."""
    draw = random.Random(seed)
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / PACKAGE).rglob("*.py"))]
    if only:
        paths = [path for path in paths if str(path) in only]
    else:
        long = [path for path in paths if len((ROOT / path).read_text().splitlines()) >= MIN_LINES]
        paths = sorted(draw.sample(long, min(modules, len(long))))
    return [one for path in paths for one in _sample(draw, mutations(path), each)]


def _sample(draw: random.Random, found: Sequence[Mutation], count: int) -> list[Mutation]:
    """Draws mutations of different lines."""
    lines = sorted({one.line_no for one in found})
    drawn = sorted(draw.sample(lines, min(count, len(lines))))
    return [draw.choice([one for one in found if one.line_no == line_no]) for line_no in drawn]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the mutations, prints each with the test that noticed it, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the draw of modules and lines (default: 1)")
    parser.add_argument("--modules", type=int, default=20, help="how many modules (default: 20)")
    parser.add_argument("--each", type=int, default=4, help="how many lines of each (default: 4)")
    parser.add_argument("--only", nargs="+", default=[], metavar="MODULE", help="paths of modules, not drawn")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at a time (default: 2)")
    parser.add_argument("--list", action="store_true", help="print the drawn mutations and run nothing")
    options = parser.parse_args(argv)
    drawn = chosen(options.seed, options.modules, options.each, options.only)
    if options.list:
        print(*drawn, sep="\n")
        return 0
    survivors = []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        trees = Trees(Path(folder))
        if failed := trees.unchanged({one.module for one in drawn}, options.jobs):
            print(f"a test fails without a change: {failed}")
            return 2
        tried = [pool.submit(trees.tried, one) for one in drawn]
        for number, future in enumerate(concurrent.futures.as_completed(tried), 1):
            mutation, test = future.result()
            print(f"[{number}/{len(drawn)}] {mutation}: {test or 'NOT NOTICED'}", flush=True)
            if not test:
                survivors.append(mutation)
    noticed = len(drawn) - len(survivors)
    print(f"{noticed} of {len(drawn)} changes were noticed", *survivors, sep="\n")
    return 0 if noticed >= SHARE_NOTICED * len(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
