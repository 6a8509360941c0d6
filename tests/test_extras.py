"""Bounds of packages, and what is said of a package that is missing, broken or too old."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from paddlevideo_fast import extras
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.errors import InstallationError, MissingExtraError
from paddlevideo_fast.extras import check_versions, needing

pytestmark = pytest.mark.smoke
REPO = Path(__file__).parents[1]


@pytest.fixture
def installed(monkeypatch):
    """Versions that some packages seem to have."""
    versions: dict[str, str] = {}
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: versions.get(name) or real(name))
    extras._outdated.cache_clear()
    yield versions
    extras._outdated.cache_clear()


def test_every_requirement_has_a_lower_bound():
    """Else pip goes back to a version of years ago where another package holds back what it needs."""
    requirements = [Requirement(text) for text in metadata.requires("paddlevideo_fast")]
    assert len(requirements) > 30
    assert not [
        str(one)
        for one in requirements
        if one.name != "paddlevideo_fast"
        and not any(specifier.operator in (">=", "==") for specifier in one.specifier)
    ]


def test_every_extra_that_the_code_names_exists():
    text = "\n".join(path.read_text("utf-8") for path in (REPO / "paddlevideo_fast").rglob("*.py"))
    named = set(re.findall(r'needing\(\s*"(\w+)"', text))
    assert {"remote", "serve", "onnx", "dask"} <= named
    assert named <= set(metadata.metadata("paddlevideo_fast").get_all("Provides-Extra"))


def test_a_package_that_is_too_old_is_one_sentence(installed):
    installed["s3fs"] = "0.4.2"
    with (
        pytest.raises(
            InstallationError, match=r'S3 needs s3fs>=[\d.]+, and 0.4.2 .*pip install "s3fs>=[\d.]+"'
        ),
        needing("remote", "S3"),
    ):
        pytest.fail("nothing is imported")
    check_versions("serve", "another extra")
    check_versions("remote", "another package", "fsspec", "aiohttp")


def test_a_command_says_that_a_package_is_too_old(installed, capsys):
    installed["av"] = "14.0.0"
    assert main(["zoo"]) == 2
    message = capsys.readouterr().err
    assert "paddlevideo-fast needs av>=" in message
    assert "and 14.0.0 is installed" in message


def test_a_package_that_is_missing_or_broken_is_one_sentence():
    missing = pytest.raises(
        MissingExtraError, match=r"a server needs the package 'no-such-package'.*\[serve\]"
    )
    with missing, needing("serve", "a server"):
        import no_such_package  # noqa: F401
    broken = pytest.raises(InstallationError, match="a server needs a package that is .* cannot import name")
    with broken, needing("serve", "a server"):
        from json import no_such_name  # noqa: F401


# Refuses packages that neither `pip install -e ".[dev]"` nor Paddle bring, then does what the words say.
_WITH_DEV_ALONE = """
import sys
from importlib import metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

owners = metadata.packages_distributions()
coming, brought = [("paddlevideo_fast", "dev"), *((name, "") for name in owners["paddle"])], set()
while coming:
    name, extra = coming.pop()
    if (name, extra) in brought:
        continue
    brought.add((name, extra))
    try:
        requirements = [Requirement(text) for text in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:  # a marker or a wheel leaves it out here
        continue
    for one in requirements:
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            coming += [(canonicalize_name(one.name), each) for each in ("", *one.extras)]
names = {canonicalize_name(name) for name, _ in brought}

class Refusing:
    def find_spec(self, name, path=None, target=None):
        distributions = {canonicalize_name(each) for each in owners.get(name, ())}
        if distributions and not distributions & names:
            print("refused:", name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
import pytest
import tools.benchmark
import benchmarks.gpu, benchmarks.train
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_the_gpu_suite_and_benchmark_need_the_extra_dev_and_paddle_alone():
    words = [sys.executable, "-c", _WITH_DEV_ALONE, "tests/gpu", "tests/extensions/dali/test_dali.py"]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(words, cwd=REPO, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_clips_are_read_whole" in done.stdout
    assert "error" not in done.stdout.lower()
