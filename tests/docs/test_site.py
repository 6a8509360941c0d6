"""The site of `make site` and the files for GitHub: they follow the pages and commands of the repository."""

import importlib.util
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
site = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(site)


@pytest.mark.parametrize("folder", site.LANGUAGES.values())
def test_the_navigation_has_each_page_once_under_the_headings_of_the_index(folder):
    first, *sections = site.navigation(folder)
    assert first == f"{folder}/index.md"
    pages = [page for section in sections for page in next(iter(section.values()))]
    assert sorted(pages) == sorted(
        path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob("*.md") if path.name != "index.md"
    )
    headings = re.findall(r"^## (.+)$", (ROOT / folder / "index.md").read_text(encoding="utf-8"), re.M)
    assert [next(iter(section)) for section in sections] == headings


@pytest.mark.parametrize(
    ("page", "language"), [("docs/zh-CN/training.md", "zh"), ("docs/en/training.md", "en")]
)
def test_the_texts_of_the_theme_are_in_the_language_of_the_page(page, language):
    config = {"theme": {}}
    site.on_page_context({}, SimpleNamespace(file=SimpleNamespace(src_uri=page)), config, None)
    assert config == {"theme": {"language": language}}


def test_what_pages_refer_to_is_linked_into_the_site(tmp_path):
    site.link_pages(tmp_path)
    site.link_pages(tmp_path)  # a second build finds the links of the first
    folders = [*site.LANGUAGES.values(), "docs/adr"]
    pages = [path for name in folders for path in (tmp_path / name).glob("*.md")]
    assert len(pages) > 100
    for page in pages:
        for target in re.findall(r"\]\(([^)\s#]+\.(?:md|ya?ml|png|py))", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                # as MkDocs resolves it: by the names, not where the link of a folder leads
                assert os.path.exists(os.path.normpath(page.parent / target)), f"{target} of {page.name}"


def test_the_workflow_and_the_hooks_run_what_the_makefile_runs():
    makefile = (ROOT / "Makefile").read_text()
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in commands
    for command in commands:
        if command.startswith("make "):
            assert re.search(rf"^{command.split()[1]}:", makefile, re.M), command
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    tools = {hook["entry"].split("/")[-1].split()[0] for hook in hooks}
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.M)[1]
    assert tools == {line.split("/")[-1].split()[0] for line in lint.splitlines()}


def test_the_templates_ask_for_the_doctor():
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        fields = yaml.safe_load(path.read_text())["body"]
        assert any("paddlevideo-fast doctor" in field["attributes"]["description"] for field in fields
                   if "description" in field["attributes"]), path.name  # fmt: skip
    assert "paddlevideo-fast doctor" in (ROOT / ".github" / "pull_request_template.md").read_text()
