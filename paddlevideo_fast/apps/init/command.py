r"""Makes a data set and a config from a folder of videos, so that training can begin.

FOLDER holds a folder for each class. Folders named train and val (or valid, test) around the classes are the
split. FOLDER may also be an annotation list; a .jsonl or .csv may also give spans, groups and several labels
for a video. The command writes to --output: train.list, valid.list (.jsonl where there are spans, weights,
groups or several labels), classes.txt, config.yaml, and failures.txt where files do not decode.
Paths in config.yaml are relative to its folder: move it together with the videos.

The split depends on --seed and the file names: when you add files and run the command again, earlier files
stay on their side. What an option said once holds for later runs, until it is given again ('' takes it back).
An existing config.yaml is kept, but for what the new lists need. With another --recipe than before it is
written anew, and the earlier one is kept as earlier_config_1.yaml.

Examples:
    paddlevideo-fast init videos --output my_set
    paddlevideo-fast init videos --output my_set --group 'game_(\d+)' --recipe slowfast
"""

import argparse
import importlib.util
import itertools
import os
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paddlevideo_fast.apps.data.lists import class_names
from paddlevideo_fast.apps.init import choice, init_dataset, together
from paddlevideo_fast.apps.init.init_dataset import Entry, Found, Probe, Source
from paddlevideo_fast.apps.init.new_config import (
    CLIPS_OF_TRAINING,
    NETWORKS,
    Recipe,
    base_of,
    config_text,
    from_folder,
    kept_config,
    recipe_of,
)
from paddlevideo_fast.apps.zoo.zoo import has_weights, source_of_weights
from paddlevideo_fast.cli.command import print_result, quiet_import, say
from paddlevideo_fast.command_line import JSON, PROGRAM, CommandParser, count
from paddlevideo_fast.config.builtin import CONFIG_FILE
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.decode import Span
from paddlevideo_fast.errors import EXIT_FAILURES
from paddlevideo_fast.io.files import atomic_write_text
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.jobs.run import (
    Provenance,
    ToolError,
    crc32_of,
    duration,
    earlier_run,
    report_failures,
    write_lines,
)
from paddlevideo_fast.log import counted, printable
from paddlevideo_fast.machine import gpu_number, installed_gpus, num_cores

_NUM_COUNTED = 40
_MOST_COMPARED, _MOST_HOURS = 2000, 3  # videos that are compared, and how long they last in all
# Options that hold for later runs, and what they are where nobody has said anything.
_DEFAULTS = {
    "valid_list": None,
    "valid_share": 0.2,
    "seed": 0,
    "group": None,
    "data_prefix": None,
    "recipe": None,
    "copies": "together",
}
_FILES = ("valid_list", "data_prefix")
_Probes = Mapping[tuple[Path, Span | None], Probe]
_ROOT = "root"  # in provenance.json: folder that the paths of the lists start from


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast init`."""
    parser = CommandParser("init", __doc__)
    parser.add_argument("source", type=Path, metavar="FOLDER", help="folder of classes, or annotation list")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder for lists and config"
    )
    parser.add_argument(
        "--data_prefix",
        type=_path,
        metavar="FOLDER",
        help="where the paths of a CSV or list start (default: its folder)",
    )
    parser.add_argument(
        "--class_names",
        type=Path,
        metavar="FILE",
        was="--classes",
        help="names of the classes, one a line, in the order of their labels",
    )
    text = "list or CSV of the validation videos"
    parser.add_argument("--valid_list", type=_path, metavar="FILE", was="--valid", help=text)
    parser.add_argument("--valid_share", type=float, help="share of the videos for validation (default 0.2)")
    parser.add_argument("--seed", type=count(0), help="decides the split (default 0)")
    parser.add_argument(
        "--group",
        metavar="PATTERN",
        help="regular expression; videos with the same match in their paths stay on one side of the split",
    )
    parser.add_argument(
        "--copies",
        choices=("together", "ignore"),
        help="videos that show the same stay on one side of the split (together, the default; looked for "
        f"among at most {_MOST_COMPARED:,} videos of {_MOST_HOURS} hours in all), or nobody looks for them "
        "(ignore)",
    )
    parser.add_argument(
        "--recipe",
        help=f"network: {', '.join(NETWORKS)}; with a GPU its full-size config, without one a small config "
        "if there is one. Or a built-in config by name; configs named *_ucf101_videos fine-tune, which needs "
        "the fewest videos (default: chosen by this machine and the weights on it, and init says why)",
    )
    parser.add_argument(
        "--no_measure",
        action="store_true",
        help="do not time steps of the recipe and of others on this machine",
    )
    parser.add_argument(
        "--check",
        choices=("some", "all"),
        default="some",
        help="frames of each file to decode: some, three of them (default); all, every frame",
    )
    parser.add_argument("--workers", type=count(0), default=num_cores(), help="processes (default: all CPUs)")
    parser.add_argument("--json", **JSON)
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command; 1: some files do not decode or no list can hold them; 2: wrong input."""
    with only_writer(args.output):
        return _run(args)


def _path(text: str) -> Path | str:
    return Path(text) if text else ""


class _Set(NamedTuple):
    """A set of videos that is split.

    Attributes:
        source: where its videos come from.
        clips: those that decode.
        sides: "train" or "valid" for each clip.
        probes: what opening each clip said.
        ending: of the names of its lists.
    """

    source: Source
    clips: Sequence[Found]
    sides: Sequence[str]
    probes: Sequence[Probe]
    ending: str

    @property
    def numbers(self) -> Counter[str]:
        """The number of clips of each side."""
        return Counter(self.sides)

    @property
    def counts(self) -> dict[str, Counter[str]]:
        """The number of clips of each class, for each side."""
        counts = {side: Counter(dict.fromkeys(self.source.classes, 0)) for side in init_dataset.SIDES}
        for clip, side in zip(self.clips, self.sides):
            counts[side].update(clip.labels)
        return counts

    @property
    def traits(self) -> choice.Traits:
        """What decides about its recipe."""
        return choice.Traits(
            self.numbers["train"],
            statistics.median(probe.still for probe in self.probes),
            statistics.median(probe.seconds for probe in self.probes),
            statistics.median(min(probe.size) for probe in self.probes),
        )


def _run(args: argparse.Namespace) -> int:
    earlier = earlier_run(args.output, "init")
    before: Mapping[str, Any] = earlier.options if earlier else {}
    remarks = _hold(args, before)
    _check(args)
    has_gpu = _computes_on_gpu()
    asked = Recipe(recipe_of(args.recipe, has_gpu)) if args.recipe else None
    source = _find(args)
    probes = init_dataset.probe(source.clips, args.workers, args.check == "all")
    clips, left_out = _decodable(args, source, probes)
    start = args.output / before[_ROOT] if _ROOT in before else None
    own = _split(args, source, clips, probes, start)
    options = () if asked else choice.choices(has_gpu, own.traits)
    recipe = asked or Recipe(recipe_of(options[0].network, has_gpu))
    remarks += source.remarks
    if not has_gpu and (there := installed_gpus()):
        remarks.append(
            f"the recipe is for a CPU, since this Paddle does not compute on the {there[0].name}: "
            "paddlevideo-fast doctor --device-check  says why"
        )
    with _provenance(args, source).kept_in(args.output):
        left_out += _write_lists(args.output, own)
        is_new, more = _write_config(args, own, recipe, start)
        for side in init_dataset.SIDES if earlier else ():
            for other in {*init_dataset.ENDINGS} - {own.ending}:
                (args.output / f"{side}{other}").unlink(missing_ok=True)
    print_result(_facts(args.output, own), args.json, _as_text)
    for remark in [*remarks, *more]:
        print_result({"kind": "note", "text": remark}, args.json, _as_text)
    for warning in _warnings(source, probes, own.counts, recipe):
        say(f"warning: {warning}")
    has_failures = report_failures(left_out, len(probes), args.output / "failures.txt")
    on_features = bool(recipe.pretrained) and choice.trains_on_features(has_gpu, own.numbers["train"])
    for result in (
        *(_ways(args, own, recipe, options, has_gpu, on_features) if is_new else ()),
        *_next(args, recipe, own.numbers["train"], on_features),
    ):
        print_result(result, args.json, _as_text)
    return EXIT_FAILURES if has_failures else 0


def _split(
    args: argparse.Namespace, source: Source, clips: Sequence[Found], probes: _Probes, start: Path | None
) -> _Set:
    """The clips with their sides; those of an earlier run, whose paths begin at `start`, keep theirs."""
    entries = init_dataset.earlier_entries(args.output, start or source.root, source)
    if not args.group:
        clips = init_dataset.with_groups(source, clips, entries)
    ending = init_dataset.ending_of_lists(clips)
    copies = _copies(source, clips, args, sum(probe.seconds for probe in probes.values()))
    sides = _sides(source, clips, args, entries, copies)
    return _Set(source, clips, sides, [probes[clip.path, clip.span] for clip in clips], ending)


def _write_lists(output: Path, own: _Set) -> list[tuple[str, str]]:
    """Writes the lists and the class names; returns path and cause of each clip that no list can hold."""
    left_out = []
    for side in init_dataset.SIDES:
        clips = [clip for clip, its_side in zip(own.clips, own.sides) if its_side == side]
        lines, unlisted = init_dataset.lines_of(own.source, clips, own.ending)
        left_out += unlisted
        write_lines(output / f"{side}{own.ending}", lines)
    write_lines(output / "classes.txt", own.source.classes)
    return left_out


def _write_config(
    args: argparse.Namespace, own: _Set, recipe: Recipe, start: Path | None
) -> tuple[bool, list[str]]:
    """Writes the config, or changes the earlier one where the lists need it.

    Args:
        args: of the command.
        own: the set.
        recipe: of a new config.
        start: folder that the paths of the earlier lists start from; None: unknown.

    Returns:
        Whether the config is a new one, and remarks.
    """
    config = args.output / CONFIG_FILE
    is_there = config.exists()
    if is_there and not (args.changes_recipe and base_of(config) != recipe.name):
        prefix = None if start is None else os.path.abspath(start)
        return False, kept_config(config, own.source, own.ending, prefix, own.numbers["valid"] > 0)
    text, remarks = config_text(recipe, own.source, args.output, own.numbers, own.ending)
    if is_there:
        names = (args.output / f"earlier_config_{number}.yaml" for number in itertools.count(1))
        earlier = next(name for name in names if not name.exists())
        config.rename(earlier)
        remarks.insert(0, f"{config} is new, for another recipe; the earlier one is now {earlier}")
    atomic_write_text(config, text)
    load_config(str(config))  # what was written is right, whatever the recipe
    return True, remarks


def _check(args: argparse.Namespace) -> None:
    if not 0 <= args.valid_share < 1:
        raise ToolError(f"--valid_share: {args.valid_share}; must be from 0 to below 1")
    try:
        re.compile(args.group or "")
    except re.error as error:
        raise ToolError(f"--group {args.group}: is no regular expression: {error}") from None


def _find(args: argparse.Namespace) -> Source:
    """The videos of the set and of --valid_list. Classes keep the order of an earlier run."""
    source = init_dataset.find(args.source, args.class_names, args.data_prefix or None)
    if args.valid_list:
        _add_valid(source, init_dataset.find(args.valid_list, args.class_names, args.data_prefix or None))
    names = args.output / "classes.txt"
    if names.exists() and args.class_names is not None:
        init_dataset.require_same_numbers(source, class_names(names), args.class_names, names)
    elif names.exists():
        init_dataset.keep_numbers(source, class_names(names))
    return source


def _decodable(
    args: argparse.Namespace, source: Source, probes: _Probes
) -> tuple[list[Found], list[tuple[str, str]]]:
    """The clips that decode, and path and cause of each that does not."""
    places = {(clip.path, clip.span): f"{clip.where}{clip.path}" for clip in source.clips}
    left_out = [(places[key], probed.fault) for key, probed in probes.items() if probed.fault]
    clips = [clip for clip in source.clips if not probes[clip.path, clip.span].fault]
    if not clips:
        raise ToolError(
            f"{args.source}: none of its {len(probes)} videos decodes; {left_out[0][0]}: {left_out[0][1]}"
        )
    return clips, left_out


def _warnings(
    source: Source, probes: _Probes, counts: Mapping[str, Counter], recipe: Recipe
) -> Iterator[str]:
    """What may spoil a training."""
    files = Counter((clip.path, clip.span) for clip in source.clips)
    doubles = [str(path) for (path, _), number in files.items() if number > 1]
    intact = {key: probed for key, probed in probes.items() if not probed.fault}
    short = [
        f"{printable(str(path))} ({one.num_frames})"
        for (path, _), one in intact.items()
        if one.num_frames in (1, 2)
    ]
    if short:
        yield f"videos of one or two frames: {init_dataset.some(short)}"
    yield from init_dataset.warnings_of(counts, [*intact.values()], recipe.frames_of_clip, doubles)


def _ways(
    args: argparse.Namespace,
    own: _Set,
    recipe: Recipe,
    options: Sequence[choice.Choice],
    has_gpu: bool,
    on_features: bool,
) -> Iterator[dict[str, Any]]:
    """What the recipe does and how long it takes here, and the same of other ways.

    Args:
        args: of the command.
        own: the set.
        recipe: of the config.
        options: recipes among which init has chosen, its choice first; none where the user has chosen.
        has_gpu: Paddle computes on a GPU.
        on_features: only the head trains.
    """

    def times_of(config: Path) -> choice.Times | None:
        return None if args.no_measure else choice.training_times(config, own.numbers["valid"])

    def price(times: choice.Times | None, on_features: bool = False) -> dict[str, str]:
        return {"time": times.in_words(on_features)} if times else {}

    times = times_of(args.output / CONFIG_FILE)
    reason = options[0].reason if options else "as you have said"
    if on_features:
        reason += "; only its head trains, on stored features, since there are many videos for a CPU"
    yield {"kind": "recipe", "recipe": recipe.name, "reason": reason, **price(times, on_features)}
    if recipe.pretrained and not has_gpu:
        other = "the whole network trains" if on_features else "only the head trains, on stored features"
        commands = _trainings(args, not on_features)
        yield {"kind": "instead", "reason": other, **price(times, not on_features), "commands": commands}
    trial = args.output / ".other_recipe.yaml"
    for option in options[1:]:
        try:
            its_recipe = Recipe(recipe_of(option.network, has_gpu))
            text, _ = config_text(its_recipe, own.source, args.output, own.numbers, own.ending)
            atomic_write_text(trial, text)
            ways = {"kind": "instead", "recipe": option.network, "reason": option.reason}
            yield {**ways, **price(times_of(trial)), "commands": [_with_recipe(args, option.network)]}
        finally:
            trial.unlink(missing_ok=True)
    if options and (better := choice.advice(has_gpu, _with_recipe(args, "tsm_lite0"))):
        yield {"kind": "or", "text": better}


def _with_recipe(args: argparse.Namespace, recipe: str) -> str:
    """The command that gives the set another recipe; its other options hold."""
    return shlex.join([PROGRAM, "init", str(args.source), "--output", str(args.output), "--recipe", recipe])


def _trainings(args: argparse.Namespace, on_features: bool) -> list[str]:
    """The commands that train the new set."""
    folder = shlex.quote(str(args.output))
    if not on_features:
        return [f"{PROGRAM} train {folder}"]
    features = shlex.quote(str(args.output / "features"))
    return [
        f"{PROGRAM} features {folder} --output {features}",
        f"{PROGRAM} train {folder} -o features={features}",
    ]


def _computes_on_gpu() -> bool:
    with quiet_import():
        import paddle
    return gpu_number(paddle.get_device()) is not None


def _hold(args: argparse.Namespace, before: Mapping[str, Any]) -> list[str]:
    """Gives options that are not given the values that they had before; says which, and what has changed."""
    held, changed = [], []
    args.is_group_given = args.group is not None
    args.changes_recipe = args.recipe is not None and (args.recipe or None) != before.get("recipe")
    has_config = (args.output / CONFIG_FILE).exists()
    for name, default in _DEFAULTS.items():
        value, old = getattr(args, name), before.get(name, default)
        if name in _FILES and old:
            old = Path(os.path.relpath(args.output / old))
        if value is None and name in _FILES and old and not old.exists():
            raise ToolError(f"--{name} {old}: was given before and is gone; give another one, or '' for none")
        if value is None:
            setattr(args, name, old)
            if old != default and not (name == "recipe" and has_config):
                held.append(f"--{name} {shlex.quote(str(old))}")
        elif before and (value or None) != old and name != "recipe":
            effect = ""
            if name in ("valid_share", "seed"):
                effect = ", decides about new videos only: known ones keep their side"
            changed.append(f"--{name} {value or None}, and {old} before{effect}")
    return ([f"as before: {' '.join(held)}"] if held else []) + changed


def _add_valid(source: Source, valid: Source) -> None:
    """Adds the videos of --valid_list, for validation, to the videos for training."""
    if source.has_numbers and valid.has_numbers:
        source.classes = max(source.classes, valid.classes, key=len)
    unknown = {label for clip in valid.clips for label in clip.labels}.difference(source.classes)
    if unknown:
        raise ToolError(f"--valid: the class {min(unknown)!r} is not in the training data")
    source.remarks += valid.remarks
    source.has_several |= valid.has_several
    source.clips = [
        *(clip._replace(split="train") for clip in source.clips),
        *(clip._replace(split="valid") for clip in valid.clips),
    ]


def _copies(
    source: Source, clips: Sequence[Found], args: argparse.Namespace, seconds: float
) -> list[list[int]]:
    """Numbers of clips that show the same; a remark says why nothing was looked for.

    Args:
        source: the set; gets the remark.
        clips: of it.
        args: of the command.
        seconds: how long all clips last.
    """
    if args.copies == "ignore":
        return []
    if len({clip.path for clip in clips}) > _MOST_COMPARED or seconds > _MOST_HOURS * 3600:
        look = f"{PROGRAM} data check {shlex.quote(str(args.output / 'train.list'))} --duplicates"
        source.remarks.append(
            f"more than {_MOST_COMPARED:,} videos or {_MOST_HOURS} hours: copies are not looked for; "
            f" {look}  does"
        )
        return []
    return together.copies(clips, args.workers)


def _sides(
    source: Source,
    clips: Sequence[Found],
    args: argparse.Namespace,
    entries: Sequence[Entry],
    copies: Sequence[Sequence[int]],
) -> list[str]:
    grouped = [clip for clip in clips if clip.group]
    paths = [init_dataset.relative(source, clip.path) for clip in clips]
    known = {name: entry.side for entry in entries for name in (entry.path, entry.group) if name}
    if any(clip.split == "valid" for clip in clips):
        sides = [clip.split or "train" for clip in clips]
        for one in sorted({clip.group for clip in grouped}):
            if len({side for clip, side in zip(clips, sides) if clip.group == one}) > 1:
                source.remarks.append(f"the group {printable(one)} is in training and in validation")
    else:
        labels = init_dataset.rarest_labels(clips)
        if not args.group and not any(clip.group for clip in clips):
            _suggest_groups(source, paths, labels)
        groups = together.united(_groups(source, clips, paths, args), copies)
        named = list(zip(paths, labels))
        sides = init_dataset.split(named, args.valid_share, args.seed, groups, known)
        if copies:
            first = " and ".join(printable(paths[number]) for number in copies[0][:2])
            source.remarks.append(
                f"videos that show the same as another one: {sum(map(len, copies))}, such as {first}; they "
                "stay on one side of the split (--copies ignore: they need not)"
            )
    leaks = [group for group in copies if len({sides[number] for number in group}) > 1]
    if leaks:
        first = " and ".join(printable(paths[number]) for number in leaks[0][:2])
        source.remarks.append(
            "copies are in training and in validation, which makes validation too good: "
            f"{counted(len(leaks), 'group')}, such as {first}"
        )
    moved = sum(known.get(path, side) != side for path, side in zip(paths, sides))
    if moved:
        source.remarks.append(
            f"videos that change between training and validation: {moved}; start a new training"
        )
    return sides


def _suggest_groups(source: Source, paths: Sequence[str], labels: Sequence[str]) -> None:
    pattern = together.likely_pattern(paths, labels)
    if pattern:
        number = len({init_dataset.group_of(path, pattern) for path in paths})
        source.remarks.append(
            f"names suggest that videos belong together, in {number} groups; if they show one person or one "
            f"recording, keep them on one side: --group {shlex.quote(pattern)}"
        )


def _groups(
    source: Source, clips: Sequence[Found], paths: Sequence[str], args: argparse.Namespace
) -> list[str]:
    """What says of each clip which others stay on its side: the list, or --group, or nothing but its path."""
    grouped = [clip for clip in clips if clip.group]
    if grouped and args.group and args.is_group_given:
        raise ToolError(f"--group: {grouped[0].where}the list has groups of its own; leave the flag out")
    if grouped and args.group:
        source.remarks.append(f"the groups of the list take the place of --group {args.group}")
        args.group = None
    if args.group and not any(re.search(args.group, path) for path in paths):
        none = "" if args.is_group_given else "; it was given before, and --group '' takes it back"
        raise ToolError(f"--group {args.group}: matches none of the paths, such as {paths[0]}{none}")
    return [clip.group or init_dataset.group_of(path, args.group) for clip, path in zip(clips, paths)]


def _provenance(args: argparse.Namespace, source: Source) -> Provenance:
    options: dict[str, Any] = {name: getattr(args, name) or None for name in _DEFAULTS}
    options |= {name: from_folder(options[name], args.output) for name in _FILES if options[name]}
    options |= {name: getattr(args, name) for name in ("valid_share", "seed")}
    options[_ROOT] = from_folder(source.root, args.output)
    files = [Path(path) for path in (args.source, args.valid_list, args.class_names) if path]
    lists = crc32_of(*(path for path in files if path.is_file()))
    return Provenance("init", options, lists, str(args.source))


def _facts(output: Path, own: _Set) -> dict[str, Any]:
    """What is in the set."""
    counts, traits = own.counts, own.traits
    seconds = [probed.seconds for probed in own.probes]
    return {
        "kind": "set",
        "folder": output,
        "classes": {name: {side: count[name] for side, count in counts.items()} for name in counts["train"]},
        "all": {side: own.numbers[side] for side in counts},
        "num_videos": len(own.probes),
        "sizes": [[*size, number] for size, number in Counter(one.size for one in own.probes).most_common()],
        "seconds": {"all": sum(seconds), "min": min(seconds), "max": max(seconds), "median": traits.seconds},
        "still": traits.still,
    }


def _facts_text(facts: Mapping[str, Any]) -> str:
    names = [printable(name) for name in facts["classes"]]
    width = min(max(5, *map(len, names)), 40)
    lines = [f"{'class':<{width}}{'train':>8}{'valid':>8}"]
    for name, row in [*zip(names, facts["classes"].values())][:_NUM_COUNTED]:
        lines.append(f"{name:<{width}}{row['train']:>8}{row['valid']:>8}")
    if len(names) > _NUM_COUNTED:
        lines.append(f"... and {counted(len(names) - _NUM_COUNTED, 'more class')}")
    lines.append(f"{'all':<{width}}{facts['all']['train']:>8}{facts['all']['valid']:>8}")
    (wide, high, number), *others = facts["sizes"]
    shapes = f"{wide}×{high} px"
    if others:
        shapes = f"{1 + len(others)} sizes, {number} of {shapes}"
    seconds = facts["seconds"]
    lines.append(
        f"{counted(facts['num_videos'], 'video')} of {shapes}; {duration(seconds['all'])} in all, "
        f"{seconds['min']:.1f} to {seconds['max']:.1f} s each, median {seconds['median']:.1f} s"
    )
    lines.append(f"in the median video, {facts['still']:.0%} of the picture stays the same")
    return "\n".join(lines)


def _as_text(result: Mapping[str, Any]) -> str:
    """A result as it is printed for people."""
    kind = result["kind"]
    if kind == "set":
        return _facts_text(result)
    if kind == "next":
        return f"next: {result['command']}  # {result['text']}"
    if "text" in result:
        return f"{kind}: {result['text']}"
    name = "{recipe} " if "recipe" in result else ""
    time = "; training takes {time} on this machine" if "time" in result else ""
    commands = f":  {'  and then  '.join(result['commands'])}" if "commands" in result else ""
    return f"{kind}: {name}{{reason}}{time}".format_map(result) + commands


def _next(
    args: argparse.Namespace, recipe: Recipe, num_train: int, on_features: bool
) -> Iterator[dict[str, str]]:
    """What is missing for a training, and the commands to type."""
    missing = []
    if recipe.fine_tuning and num_train < CLIPS_OF_TRAINING and args.recipe:
        missing.append(
            f"{recipe.name} starts from random weights, and {num_train} videos are few for that; "
            f" {_with_recipe(args, recipe.fine_tuning)}  fine-tunes trained weights"
        )
    if recipe.downloads and importlib.util.find_spec("aiohttp") is None:
        missing.append('pip install "paddlevideo_fast[remote]"  brings what downloads the weights')
    if recipe.pretrained and not recipe.downloads and not has_weights(recipe.pretrained):
        advice = source_of_weights(recipe.pretrained) or "check MODEL.backbone.pretrained"
        missing.append(f"{recipe.pretrained} is missing; {advice}")
    yield from ({"kind": "first", "text": text} for text in missing)
    folder = shlex.quote(str(args.output))
    *before, training = _trainings(args, on_features)
    for words, what in (
        *((words, "computes the features") for words in before),
        (training, "trains"),
        (f"{PROGRAM} data report {folder}", "shows its videos and what is unusual on a page"),
        (f"{PROGRAM} doctor {folder}", "says what limits the training and what would make it faster"),
    ):
        yield {"kind": "next", "command": words, "text": what}
