"""The pages: twins alike, links and paths there, commands and examples that work.

Marks in a page, each before a fenced block: `<!-- test: ARGUMENTS -->` runs the commands of a bash block with
the arguments added, `<!-- file: PATH -->` writes a block to a file. All of it happens in a small copy of the
repository.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from paddlevideo_fast.apps.data.command import TOOLS
from paddlevideo_fast.cli.commands import COMMANDS
from paddlevideo_fast.cli.config import _VERBS as VERBS
from tools.benchmark import BENCHMARKS, parser_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_TIPC_PAGES = ("README.md", "docs/test_train_inference_python.md", "docs/benchmark_train.md")
PAGES = [
    *(ROOT / name for name in ("README.md", "README_cn.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted(DOCS.rglob("*.md")),
    *((ROOT / "test_tipc" / name) for name in _TIPC_PAGES),
    *((ROOT / "configs" / "recognition" / name) for name in ("README.md", "README_cn.md")),
]
NAMES = sorted(page.name for page in (DOCS / "en").glob("*.md"))
TWINS = [(folder / "README.md", folder / "README_cn.md") for folder in (ROOT, ROOT / "configs/recognition")]
TWINS += [(DOCS / "en" / name, DOCS / "zh-CN" / name) for name in NAMES]
# In the order a reader takes, so that what one command writes is there for the next.
_NAMES = "quick_start custom_dataset prepared_packed faq performance multigrid"
_NAMES += " model_zoo evaluation fine_tuning few_videos inference command_line extending augmentation"
_NAMES += " data_preparation fast_transformers"
RUN_PAGES = ["README.md", *(f"docs/en/{name}.md" for name in _NAMES.split())]
SETS = ("k400", "ucf101", "ssv2")

_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>test|file)(?:: (?P<text>.*?))? -->\n\n)?^```(?P<lang>\w*)\n(?P<code>.*?)^```$",
    re.M | re.S,
)


class Block(NamedTuple):
    lang: str
    code: str
    mark: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(m["lang"], m["code"], m["mark"], m["text"] or "") for m in found]


def prose(page: Path) -> str:
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def as_python(words: list[str]) -> list[str]:
    """The words of a command, of which `paddlevideo-fast` is a module: it need not be installed here."""
    return ["python", "-m", "paddlevideo_fast", *words[1:]] if words[0] == "paddlevideo-fast" else words


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_every_page_has_its_twin():
    assert NAMES
    assert sorted(page.name for page in (DOCS / "zh-CN").rglob("*.md")) == NAMES
    assert len(NAMES) == len(list((DOCS / "en").rglob("*.md")))


def test_the_pages_stay_few_and_short():
    """One page for each task; the reference is generated, and counts as a page only."""
    words = {name: len((DOCS / "en" / name).read_text(encoding="utf-8").split()) for name in NAMES}
    assert len(words) <= 24
    assert sum(number for name, number in words.items() if name != "config_reference.md") <= 55_000


@pytest.mark.parametrize(("one", "other"), TWINS, ids=lambda page: name_of(page))
def test_twins_have_the_same_headings_and_blocks(one, other):
    def levels(page):
        return [len(line.split()[0]) for line in prose(page).splitlines() if re.match(r"#+ ", line)]

    assert levels(one) == levels(other)
    assert blocks(one) == blocks(other)


def anchors(page: Path) -> list[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target} of {name_of(page)}"
        assert not anchor or anchor in anchors(file), f"{target} of {name_of(page)}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_of_the_repository_exist(page):
    text = page.read_text(encoding="utf-8")
    written = {block.text for block in blocks(DOCS / "en" / "custom_dataset.md") if block.mark == "file"}
    roots = "configs|tools|data|paddlevideo_fast|benchmarks|tests"
    found = set(re.findall(rf"(?<![\w/.])(?:{roots})/[\w/]+\.(?:ya?ml|py)\b", text))
    found |= set(re.findall(r"(?<![\w/.])benchmarks/results/\w+\.json\b", text))
    written |= set(re.findall(r"^\+\+\+ b/(.+)$", text, re.M))  # by a patch
    missing = [path for path in found - written if not (ROOT / path).is_file()]
    assert not missing
    known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"`make ([\w-]+)", text)) <= set(known)


# Flags of Paddle's launcher, Slurm, Docker, MLflow, PaddleX and MMAction2; and those of PaddleVideo that the
# pages name as missing here.
_FOREIGN_FLAGS = "--nproc_per_node --gpus --devices --rank --master --host --signal --dependency --shm-size"
_FOREIGN_FLAGS += " --backend-store-uri --install --use_local_repos --cfg-options"
_FOREIGN_FLAGS += " --use_xpu --use_npu --disable_glog"


def test_flags_in_the_text_exist():
    """Each flag that a page names outside of its commands is written in a parser of the repository."""
    sources = [
        path for folder in ("paddlevideo_fast", "benchmarks") for path in (ROOT / folder).rglob("*.py")
    ]
    sources += [ROOT / "tests" / "fuzz_config.py", ROOT / "tools" / "benchmark.py"]
    text = " ".join([*(path.read_text(encoding="utf-8") for path in sources), _FOREIGN_FLAGS])
    for name in BENCHMARKS:
        parser = parser_of(name, importlib.import_module(f"benchmarks.{name}"))
        text += " ".join(["", *parser._option_string_actions])
    known = {flag.replace("-", "_") for flag in re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)}
    for page in sorted((DOCS / "en").glob("*.md")):
        for code in re.findall(r"`([^`\n]+)`", prose(page)):
            used = {flag.replace("-", "_") for flag in re.findall(r"(?<![\w-])--([a-z][\w-]*)", code)}
            assert used <= known, f"{page.name}: {code}"
            for name, verb in re.findall(r"paddlevideo-fast ([a-z]+)(?: ([a-z]\w+))?", code):
                group = {"data": TOOLS, "config": VERBS}.get(name)
                assert name in COMMANDS, f"{page.name}: {code}"
                assert not verb or group is None or verb in group, f"{page.name}: {code}"


def test_keys_components_and_imports_of_the_pages_exist():
    """Keys stand in the generated reference, CamelCase names in the package; Python examples import it."""
    keys = set(re.findall(r"\w+", (DOCS / "en" / "config_reference.md").read_text(encoding="utf-8")))
    sources = (ROOT / "paddlevideo_fast").rglob("*.py")
    names = {word for path in sources for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    names |= {"OnFailure"}  # of Kubernetes
    for page in sorted((DOCS / "en").glob("*.md")):
        for code in re.findall(r"`([^`\n]+)`", prose(page)) if page.name != "migrating.md" else ():
            for key in re.findall(r"\b[A-Z_]{3,}\.(?!md\b)([a-z_.\d]{2,})", code):
                parts = {part for part in key.split(".") if part and not part.isdigit()}
                assert parts <= keys, f"{page.name}: {code}"
            assert not re.fullmatch(r"(?:[A-Z][a-z0-9]+){2,}", code) or code in names, f"{page.name}: {code}"
        for line in "".join(block.code for block in blocks(page) if block.lang == "python").splitlines():
            if re.match(r"(from|import) paddlevideo_fast\b[^(]*$", line):
                exec(line, {})


def test_decisions_have_numbers_of_their_own():
    pages = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert numbers == list(range(1, len(pages) + 1))
    for number, page in zip(numbers, pages):
        assert page.read_text(encoding="utf-8").startswith(f"# {number}. ")


def test_the_quick_start_says_what_make_quickstart_does():
    recipe = (ROOT / "Makefile").read_text().partition("\nquickstart:")[2].partition("\n\n")[0]
    expected = re.findall(r"\$\(BIN\)/(paddlevideo-fast .+)", recipe)
    assert len(expected) >= 2
    for page in ("docs/en/quick_start.md", "docs/zh-CN/quick_start.md"):
        missing = set(expected) - set((ROOT / page).read_text(encoding="utf-8").splitlines())
        assert not missing, page


def test_numbers_are_filled_in():
    for page in PAGES:
        assert "TBD_" not in page.read_text(encoding="utf-8"), name_of(page)


# --- what runs


@pytest.fixture(scope="session")
def working_copy(tmp_path_factory, make_clip):
    """Scripts and configs of the repository, what pages have one write, and the videos they expect."""
    root = tmp_path_factory.mktemp("copy")
    for folder in ("configs", "tools", "data"):
        kept = shutil.ignore_patterns("motion", *SETS, "__pycache__")
        shutil.copytree(ROOT / folder, root / folder, ignore=kept)
    for name in SETS:  # without what a developer may have downloaded
        (root / "data" / name).mkdir()
        shutil.copy(ROOT / "data" / name / "build_lists.py", root / "data" / name)
    for page in RUN_PAGES:
        for block in blocks(ROOT / page):
            if block.mark == "file":
                (root / block.text).write_text(block.code)
    names = {"my_videos": ("{c}/{c} {i}.mp4", 5), "data/k400/videos": ("{c}/{c}_{i}.mp4", 2)}
    names["data/ucf101/videos"] = ("{c}/v_{c}_g01_c{i}.avi", 2)
    names["data/ssv2/videos"] = ("{c}_{i}.webm", 2)
    for folder, (pattern, count) in names.items():
        for name in ("run", "walk"):
            for i in range(count):
                codec = {"avi": "mpeg4", "webm": "libvpx"}.get(pattern.rpartition(".")[2], "libx264")
                make_clip(root / folder / pattern.format(c=name, i=i), 8, codec=codec)
    _write_annotations(root)
    return root


def _write_annotations(root: Path) -> None:
    k400, ucf101, ssv2 = (root / "data" / name / "annotations" for name in SETS)
    for folder in (k400, ucf101, ssv2):
        folder.mkdir()
    (ucf101 / "classInd.txt").write_text("1 run\n2 walk\n")
    columns = "label,youtube_id,time_start,time_end,split\n"
    for i, (official, split) in enumerate((("train", "train"), ("test", "validate"))):
        lines = [f"{name}/v_{name}_g01_c{i}.avi\n" for name in ("run", "walk")]
        for number in (1, 2, 3):
            (ucf101 / f"{official}list{number:02d}.txt").write_text("".join(lines))
        rows = "".join(f"{name},{name}_{i},0,10,{split}\n" for name in ("run", "walk"))
        (k400 / f"{split}.csv").write_text(columns + rows)
        entries = [{"id": f"{name}_{i}", "template": f"[{name}]"} for name in ("run", "walk")]
        (ssv2 / ("train.json", "validation.json")[i]).write_text(json.dumps(entries))
    (ssv2 / "labels.json").write_text(json.dumps({"run": "0", "walk": "1"}))


@pytest.fixture(scope="session")
def run_in(template):
    """Function that runs a command of a page: `run_in(folder, ["python", "tools/main.py", ...])`."""

    def run(root: Path, words: list[str]) -> subprocess.CompletedProcess:
        if words[1].endswith(".py"):
            return template.run([root / words[1], *words[2:]], cwd=root)
        if words[1:3] == ["-m", "paddlevideo_fast"]:
            return template.run([ROOT / "paddlevideo_fast/__main__.py", *words[3:]], cwd=root)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *words[1:]]
        return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120)

    return run


def test_all_pages_with_marked_commands_are_run():
    marked = [page for page in PAGES if page.parent.name != "zh-CN" and any(b.mark for b in blocks(page))]
    assert {name_of(page) for page in marked} - {"README_cn.md"} <= set(RUN_PAGES)


@pytest.mark.slow
def test_marked_commands_and_examples_run(working_copy, run_in):
    """One test: each worker of pytest-xdist would run the commands for itself."""
    done = set()
    for page in RUN_PAGES:
        for block in blocks(ROOT / page):
            for line in block.code.splitlines() if block.mark == "test" else ():
                command = f"{line} {block.text}"
                if command not in done:
                    result = run_in(working_copy, as_python(shlex.split(command)))
                    no_gpu = "the profiler of a GPU build of Paddle" in result.stdout + result.stderr
                    assert no_gpu or not result.returncode, f"{page}: {command}\n{result}"
                    assert no_gpu or "Traceback" not in result.stderr, f"{page}: {command}\n{result}"
                    done.add(command)
    assert len(done) >= 15
    check_what_the_commands_leave(working_copy)
    for page in ("docs/en/extending.md", "docs/en/inference.md"):
        examples = [block for block in blocks(ROOT / page) if block.lang == "python" and not block.mark]
        code = "\n".join(block.code for block in examples)
        script = working_copy / f"{Path(page).stem}.py"
        script.write_text(code)
        result = run_in(working_copy, ["python", script.name])
        assert result.returncode == 0, result.stderr


def check_what_the_commands_leave(working_copy):
    output = working_copy / "output" / "tsm_motion"
    names = {path.name for path in output.iterdir()}
    assert {"TSM_motion_best.pdparams", "config.yaml", "metrics.jsonl", "train.log"} <= names
    assert any(re.fullmatch(r"TSM_motion_epoch_\d{5}\.json", name) for name in names)
    for split in ("train", "val"):
        for form in ("videos", "rawframes"):
            assert (working_copy / f"data/ucf101/ucf101_{split}_split_1_{form}.txt").is_file()
        for name in ("k400", "ssv2"):
            for kind in ("", "_frames"):
                listed = (working_copy / f"data/{name}/{split}{kind}.list").read_text()
                assert [line.rsplit(" ", 1)[1] for line in listed.splitlines()] == ["0", "1"]
    lines = (working_copy / "my_lists" / "valid.list").read_text().splitlines()
    assert sorted(line.rsplit(" ", 1)[1] for line in lines) == ["0", "1"]


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_the_tests_that_the_page_on_failures_names_exist(lang):
    named = re.findall(r"`(tests/[\w/]+\.py)`", (DOCS / lang / "distributed.md").read_text(encoding="utf-8"))
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).is_file()] == []
