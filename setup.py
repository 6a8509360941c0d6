"""Builds the package; pyproject.toml describes it."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithConfigs(build_py):
    """Puts configs/ into the package; one that is installed as editable finds them beside it."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for file in ROOT.glob("configs/**/*.y*ml"):
                target = Path(self.build_lib, "paddlevideo_fast", file.relative_to(ROOT))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


setup(cmdclass={"build_py": BuildWithConfigs})
