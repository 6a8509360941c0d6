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
import copy
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
from typing import Any

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

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """A change of one node of a module: `text` is the changed module, without comments."""

    module: Path
    line_no: int
    old: str
    new: str
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line_no}: {self.old!r} -> {self.new!r}"


def _changed(node: ast.AST) -> ast.AST | None:
    """Returns a changed copy of a node, or None where nothing of it is changed."""
    new: Any = copy.deepcopy(node)
    if isinstance(new, (ast.BinOp, ast.BoolOp)) and type(new.op) in _SWAPS:
        new.op = _SWAPS[type(new.op)]()
    elif isinstance(new, ast.Compare) and len(new.ops) == 1:
        new.ops = [_SWAPS[type(new.ops[0])]()]
    elif isinstance(new, ast.Constant) and type(new.value) in (bool, int, float):
        new.value = not new.value if isinstance(new.value, bool) else new.value + 1
    elif isinstance(new, (ast.If, ast.IfExp, ast.While)):
        new.test = ast.UnaryOp(ast.Not(), new.test)
    elif isinstance(new, ast.AugAssign) or (isinstance(new, ast.Expr) and not _is_text_or_yield(new.value)):
        return ast.copy_location(ast.Pass(), new)
    else:
        return None
    return new


def _is_text_or_yield(node: ast.expr) -> bool:
    return isinstance(node, (ast.Constant, ast.Yield))


def _code_nodes(node: ast.AST) -> Iterator[tuple[list[Any] | dict[str, Any], Any]]:
    """Yields the place of each node below `node` that computes, as a container and the key in it.

    Annotations, decorators and log lines are left out.
    """
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        in_list = isinstance(value, list)
        places = [(value, at) for at in range(len(value))] if in_list else [(vars(node), name)]
        for container, key in places:
            child = container[key]
            source = ast.unparse(child) if isinstance(child, ast.Expr) else ""
            if isinstance(child, ast.AST) and not re.match(r"_?(?:log|logger)\.|warn_once\(", source):
                yield container, key
                yield from _code_nodes(child)


def mutations(module: Path) -> list[Mutation]:
    """Returns all changes of a module's nodes.

    Args:
        module: its path, relative to the root of the tree.
    """
    tree, changes = ast.parse((ROOT / module).read_text()), []
    for container, key in list(_code_nodes(tree)):
        node = container[key]
        if (new := _changed(node)) is not None:
            container[key] = new
            text = ast.unparse(ast.fix_missing_locations(tree))
            container[key] = node
            before, after = (ast.unparse(each).split("\n")[0] for each in (node, new))
            changes.append(Mutation(module, node.lineno, before, after, text))
    return sorted(changes, key=lambda one: one.line_no)


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
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    quick = ("-q", "-m", "not slow", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *quick, *options, *files]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_SEC
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
        self._write(mutation.module, mutation.text)
        try:
            noticed = (run_tests(self._tree(), names, "-x") for names in own_tests(mutation.module))
            return mutation, next(filter(None, noticed), "")
        finally:
            self._write(mutation.module, (ROOT / mutation.module).read_text())

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


def _sample(draw: random.Random, drawn_from: Sequence[Mutation], count: int) -> list[Mutation]:
    """Draws mutations of different lines."""
    lines = sorted({one.line_no for one in drawn_from})
    drawn = sorted(draw.sample(lines, min(count, len(lines))))
    return [draw.choice([one for one in drawn_from if one.line_no == line_no]) for line_no in drawn]


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
