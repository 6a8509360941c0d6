"""The package, its requirements and its extras.

paddlepaddle and paddlepaddle-gpu own the same import name, so neither is a core requirement: the extras `cpu`
and `gpu` choose one.
"""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "paddlevideo_fast/__init__.py").read_text()).group(1)
# Each tracker has its own library; mlflow-skinny lacks what MLflow needs for a local database.
TRACKERS = {
    "tensorboard": ["tensorboard"],
    "wandb": ["wandb"],
    "mlflow": ["mlflow-skinny>=2", "sqlalchemy", "alembic"],
}

REMOTE = ["fsspec", "aiohttp", "s3fs"]
DASK = ["distributed", "dask-jobqueue"]


class BuildWithConfigs(build_py):
    """Puts configs/ into the package; one that is installed as editable finds them beside it."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for file in ROOT.glob("configs/**/*.y*ml"):
                target = Path(self.build_lib, "paddlevideo_fast", file.relative_to(ROOT))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


setup(
    name="paddlevideo_fast",
    version=VERSION,
    description="Train video action recognition models fast on PaddlePaddle, from a YAML file",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.9",
    packages=find_packages(include=["paddlevideo_fast*"]),
    # An editable install then puts this folder on the path. Else setuptools installs a finder that comes
    # after the path, and a folder called paddlevideo_fast there, such as a clone, would hide the package.
    package_dir={"": "."},
    cmdclass={"build_py": BuildWithConfigs},
    package_data={"paddlevideo_fast": ["py.typed"]},
    install_requires=[
        "numpy",
        "pyyaml",
        "opencv-python-headless>=4.8",
        "av>=15",
        # decord is optional at run time; its wheels exist for x86-64 Linux and Windows only
        'decord; platform_machine == "x86_64" and platform_system != "Darwin"',
        "visualdl",
        "jinja2",
        "shtab",
        "matplotlib",
        "pillow",
        "tqdm",
    ],
    extras_require={
        "cpu": ["paddlepaddle>=2.6.2"],
        "gpu": ["paddlepaddle-gpu>=2.6.2"],
        "onnx": ["paddle2onnx", "onnxruntime", "onnx"],
        "dali110": ["nvidia-dali-cuda110==1.34.0"],
        "dali120": ["nvidia-dali-cuda120>=1.53"],
        "dali130": ["nvidia-dali-cuda130>=1.53"],
        # other stores: the package of their fsspec driver, such as gcsfs
        "remote": REMOTE,
        "dask": DASK,
        **TRACKERS,
        "trackers": [package for packages in TRACKERS.values() for package in packages],
        "site": ["mkdocs-material", "jieba"],
        "dev": [
            "pytest>=7",
            "pytest-xdist",
            "hypothesis",
            "ruff>=0.6",
            "mypy>=1.8",
            "import-linter>=2",
            "types-PyYAML",
            "setuptools>=64",
            "wheel",
            *TRACKERS["tensorboard"],  # the lightest of them, so that one is tested everywhere
            *REMOTE,
            "moto[s3]",
            "flask",  # of its server, as flask-cors
            "flask-cors",
            *DASK,
        ],
    },
    entry_points={"console_scripts": ["paddlevideo-fast=paddlevideo_fast.cli.commands:main"]},
)
