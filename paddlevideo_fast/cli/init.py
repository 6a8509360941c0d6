r"""Makes a data set and a config from a folder of videos, so that training can begin.

FOLDER holds a folder for each class. Folders named train and val (or valid, test) around the classes are the
split. FOLDER may also be an annotation list; a .jsonl or .csv may also give spans, groups and several labels
for a video. The command writes to --output: train.list, valid.list (.jsonl where there are spans, weights,
groups or several labels), classes.txt, config.yaml, data_set.png, and failures.txt where files do not decode.
Paths in config.yaml are relative to its folder: move it together with the videos.

The split depends on --seed and the file names: when you add files and run the command again, earlier files
stay on their side. An existing config.yaml is kept.

Examples:
    paddlevideo-fast init videos --output my_set
    paddlevideo-fast init videos --output my_set --group 'game_(\d+)' --recipe slowfast
"""

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from paddlevideo_fast.cli.command import quiet_import, say
from paddlevideo_fast.cli.new_config import CLIPS_OF_TRAINING, NETWORKS, Recipe, config_text, recipe_of
from paddlevideo_fast.command_line import PROGRAM, CommandParser, count
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.zoo import source_of_weights
from paddlevideo_fast.decode import Span, open_video
from paddlevideo_fast.errors import EXIT_FAILURES
from paddlevideo_fast.io.files import atomic_write_text
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.log import printable
from paddlevideo_fast.machine import gpu_number, installed_gpus, num_cores
from paddlevideo_fast.preparation import init_dataset
from paddlevideo_fast.preparation.init_dataset import Found, Probe, Source
from paddlevideo_fast.preparation.lists import class_names
from paddlevideo_fast.preparation.run import (
    Provenance,
    ToolError,
    crc32_of,
    earlier_run,
    report_failures,
    spread,
    write_lines,
)

_NUM_COUNTED = 40
_NUM_EXAMPLES = 12


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast init`."""
    parser = CommandParser("init", __doc__)
    parser.add_argument("source", type=Path, metavar="FOLDER", help="folder of classes, or annotation list")
    parser.add_argument("--output", type=Path, required=True, help="folder for lists and config")
    parser.add_argument("--valid", type=Path, metavar="FILE", help="list or CSV of the validation videos")
    parser.add_argument(
        "--valid_share", type=float, default=0.2, help="share of the videos for validation (default 0.2)"
    )
    parser.add_argument("--seed", type=count(0), default=0, help="decides the split (default 0)")
    parser.add_argument(
        "--group",
        metavar="PATTERN",
        help="regular expression; videos with the same match in their paths stay on one side of the split",
    )
    parser.add_argument(
        "--classes", type=Path, metavar="FILE", help="class names in the order of their labels"
    )
    parser.add_argument(
        "--data_prefix",
        type=Path,
        metavar="FOLDER",
        help="where the paths of a CSV or list start (default: its folder)",
    )
    parser.add_argument(
        "--recipe",
        default="tsm",
        help=f"network: {', '.join(NETWORKS)}; with a GPU its full-size config, without one a small config "
        "if there is one. Or a built-in config by name; configs named *_ucf101_videos fine-tune, which needs "
        "the fewest videos (default tsm)",
    )
    parser.add_argument(
        "--check",
        choices=("some", "all"),
        default="some",
        help="frames of each file to decode: some, three of them (default); all, every frame",
    )
    parser.add_argument("--workers", type=count(0), default=num_cores(), help="processes (default: all CPUs)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command; 1: some files do not decode or no list can hold them; 2: wrong input."""
    if not 0 <= args.valid_share < 1:
        raise ToolError(f"--valid_share: {args.valid_share}; must be from 0 to below 1")
    try:
        re.compile(args.group or "")
    except re.error as error:
        raise ToolError(f"--group {args.group}: is no regular expression: {error}") from None
    has_gpu = _computes_on_gpu()
    recipe = Recipe(recipe_of(args.recipe, has_gpu))
    source = init_dataset.find(args.source, args.classes, args.data_prefix)
    clips = [*source.clips]
    if args.valid is not None:
        clips = _with_valid(source, init_dataset.find(args.valid, args.classes, args.data_prefix))
    files = Counter((clip.path, clip.span) for clip in clips)
    names = args.output / "classes.txt"
    if names.exists() and args.classes is not None:
        init_dataset.require_same_numbers(source, class_names(names), args.classes, names)
    elif names.exists() and not source.has_numbers:
        init_dataset.keep_numbers(source, class_names(names))
    probes = init_dataset.probe(clips, args.workers, args.check == "all")
    places = {(clip.path, clip.span): f"{clip.where}{clip.path}" for clip in clips}
    left_out = [(places[key], probed.fault) for key, probed in probes.items() if probed.fault]
    clips = [clip for clip in clips if not probes[clip.path, clip.span].fault]
    if not clips:
        raise ToolError(
            f"{args.source}: none of its {len(files)} videos decodes; {left_out[0][0]}: {left_out[0][1]}"
        )
    ending = init_dataset.ending_of_lists(clips)
    sides = _sides(source, clips, args)
    counts = {
        side: Counter(label for clip, own in zip(clips, sides) if own == side for label in clip.labels)
        for side in ("train", "valid")
    }
    numbers = Counter(sides)
    with only_writer(args.output), _provenance(args).kept_in(args.output):
        for side in ("train", "valid"):
            lines, unlisted = init_dataset.lines_of(
                source, [clip for clip, own in zip(clips, sides) if own == side], ending
            )
            left_out += unlisted
            write_lines(args.output / f"{side}{ending}", lines)
        write_lines(args.output / "classes.txt", source.classes)
        config = args.output / "config.yaml"
        remarks = [*source.remarks]
        if not has_gpu and (there := installed_gpus()):
            remarks.append(
                f"the recipe is for a CPU, since this Paddle does not compute on the {there[0].name}: "
                "paddlevideo-fast doctor --device-check  says why"
            )
        if config.exists():
            remarks += _kept(config, len(source.classes))
        else:
            text, changes = config_text(recipe, source, args.output, numbers, ending)
            remarks += changes
            atomic_write_text(config, text)
            load_config(str(config))  # what was written is right, whatever the recipe
        _draw(args.output / "data_set.png", source, clips, counts)
    _tell(source, clips, counts, numbers, probes, remarks)
    doubles = [str(path) for (path, _), number in files.items() if number > 1]
    intact = [probes[key] for key in files if not probes[key].fault]
    for warning in init_dataset.warnings_of(counts, intact, recipe.frames_of_clip, doubles):
        say(f"warning: {warning}")
    _tell_next(args, recipe, numbers["train"], has_gpu)
    return EXIT_FAILURES if report_failures(left_out, len(files), args.output / "failures.txt") else 0


def _computes_on_gpu() -> bool:
    with quiet_import():
        import paddle
    return gpu_number(paddle.get_device()) is not None


def _kept(config: Path, num_classes: int) -> list[str]:
    """Remarks about the config of an earlier run, which stays but for its number of classes."""
    remarks = [f"{config} is kept; remove it for a new one"]
    text = config.read_text(encoding="utf-8")
    place = _place_of_num_classes(text)
    if place is not None and int(text[place]) < num_classes:
        atomic_write_text(config, f"{text[: place.start]}{num_classes}{text[place.stop :]}")
        remarks.append(
            f"MODEL.head.num_classes is now {num_classes}, not {text[place]}: start a new training"
        )
    return remarks


def _place_of_num_classes(text: str) -> slice | None:
    """Where a config says the number of classes; None where it does not."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:  # training says what is wrong with it
        return None
    for key in ("MODEL", "head", "num_classes"):
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for name, value in node.value if name.value == key), None)
    if not isinstance(node, yaml.ScalarNode) or not node.value.isdecimal():
        return None
    return slice(node.start_mark.index, node.end_mark.index)


def _with_valid(source: Source, valid: Source) -> list[Found]:
    unknown = sorted(set(valid.classes) - set(source.classes))
    if unknown and not source.has_numbers:
        raise ToolError(f"--valid: the class {unknown[0]!r} is not in the training data")
    if len(valid.classes) > len(source.classes):
        source.classes = valid.classes
    source.remarks += valid.remarks
    source.has_several |= valid.has_several
    return [
        *(clip._replace(split="train") for clip in source.clips),
        *(clip._replace(split="valid") for clip in valid.clips),
    ]


def _sides(source: Source, clips: Sequence[Found], args: argparse.Namespace) -> list[str]:
    given = [clip.split for clip in clips]
    grouped = [clip for clip in clips if clip.group]
    if "valid" in given:
        sides = [side or "train" for side in given]
        for one in sorted({clip.group for clip in grouped}):
            if len({side for clip, side in zip(clips, sides) if clip.group == one}) > 1:
                source.remarks.append(f"the group {printable(one)} is in training and in validation")
        return sides
    paths = [init_dataset.relative(source, clip.path) for clip in clips]
    named = list(zip(paths, init_dataset.rarest_labels(clips)))
    if grouped and args.group:
        raise ToolError(f"--group: {grouped[0].where}the list has groups of its own; leave the flag out")
    if args.group and not any(re.search(args.group, path) for path in paths):
        raise ToolError(f"--group {args.group}: matches none of the paths, such as {paths[0]}")
    groups = [clip.group or init_dataset.group_of(path, args.group) for clip, path in zip(clips, paths)]
    known = init_dataset.earlier_sides(args.output)
    if known:
        source.remarks += _without_effect(args)
    return init_dataset.split(named, args.valid_share, args.seed, groups, known)


def _without_effect(args: argparse.Namespace) -> list[str]:
    """A remark for each option of the split that differs from an earlier run's."""
    earlier = earlier_run(args.output, "init")
    options = earlier.options if earlier else {}
    return [
        f"--{name} {getattr(args, name)}, and {options[name]} before, decides about new videos only: known "
        "ones keep their side"
        for name in ("valid_share", "seed")
        if options.get(name, getattr(args, name)) != getattr(args, name)
    ]


def _provenance(args: argparse.Namespace) -> Provenance:
    options = {key: getattr(args, key) for key in ("valid_share", "seed", "group", "recipe")}
    lists = [path for path in (args.source, args.valid, args.classes) if path is not None and path.is_file()]
    return Provenance("init", options, crc32_of(*lists), str(args.source))


def _draw(path: Path, source: Source, clips: Sequence[Found], counts: Mapping[str, Counter]) -> None:
    with quiet_import():
        from paddlevideo_fast.report.drawings import data_set_picture

    firsts: dict[str, Found] = {}
    for clip in clips:
        for label in clip.labels:
            firsts.setdefault(label, clip)
    examples = {}
    for name, clip in spread(list(firsts.items()), _NUM_EXAMPLES):
        with open_video(str(clip.path)) as reader:
            part = reader.part(clip.span) if clip.span else reader
            examples[name] = part.read([part.num_frames // 2])[0]
    data_set_picture(path, source.classes, counts["train"], counts["valid"], examples)


def _tell(
    source: Source,
    clips: Sequence[Found],
    counts: Mapping[str, Counter],
    numbers: Mapping[str, int],
    probes: Mapping[tuple[Path, Span | None], Probe],
    remarks: Sequence[str],
) -> None:
    width = min(max([5, *(len(printable(name)) for name in source.classes)]), 40)
    print(f"{'class':<{width}}{'train':>8}{'valid':>8}")
    for name in source.classes[:_NUM_COUNTED]:
        print(f"{printable(name):<{width}}{counts['train'][name]:>8}{counts['valid'][name]:>8}")
    if len(source.classes) > _NUM_COUNTED:
        print(f"... and {len(source.classes) - _NUM_COUNTED} more classes")
    print(f"{'all':<{width}}{numbers['train']:>8}{numbers['valid']:>8}")
    kept = [probes[clip.path, clip.span] for clip in clips]
    sizes = Counter(probed.size for probed in kept)
    (wide, high), number = sizes.most_common(1)[0]
    seconds = sorted(probed.seconds for probed in kept)
    middle = seconds[len(seconds) // 2]
    lasting = f"{seconds[0]:.1f} to {seconds[-1]:.1f} s, median {middle:.1f} s"
    print(f"{len(kept)} videos, {sum(seconds) / 3600:.1f} h: {lasting}")
    print(f"{len(sizes)} sizes, {wide}×{high} px in {number} videos")
    for remark in remarks:
        print(f"note: {remark}")


def _tell_next(args: argparse.Namespace, recipe: Recipe, num_train: int, has_gpu: bool) -> None:
    named = shlex.quote(str(args.output))
    is_small = num_train < CLIPS_OF_TRAINING
    if recipe.fine_tuning and is_small:
        print(
            f"first: {recipe.name} starts from random weights, and {num_train} videos are few for that; "
            f"--recipe {recipe.fine_tuning} fine-tunes trained weights"
        )
    if recipe.pretrained and not Path(recipe.pretrained).exists():
        advice = source_of_weights(recipe.pretrained) or "check MODEL.backbone.pretrained"
        print(f"first: {recipe.pretrained} is missing; {advice}")
    for words, what in (
        (f"train {named}", "trains"),
        (f"doctor {named}", "says what limits the training and what would make it faster"),
    ):
        print(f"next: {PROGRAM} {words}  # {what}")
    if (recipe.pretrained or recipe.fine_tuning) and is_small and not has_gpu:
        print("or: without a GPU it is quicker to train the head alone, on features of trained weights")
        output = args.output
        if not recipe.pretrained:
            output = output.with_name(f"{output.resolve().name}_head")
            print(f"next: {_again(args, output, recipe.fine_tuning)}")
        features = shlex.quote(str(output / "features"))
        print(f"next: {PROGRAM} features {shlex.quote(str(output))} --output {features}")
        print(f"next: {PROGRAM} train {shlex.quote(str(output))} -o features={features}")


def _again(args: argparse.Namespace, output: Path, recipe: str | None) -> str:
    """This command line with another output folder and recipe."""
    words = [PROGRAM, "init", args.source, "--output", output, "--recipe", recipe]
    for name in ("valid", "valid_share", "seed", "group", "classes", "data_prefix"):
        if getattr(args, name) != build_parser().get_default(name):
            words += [f"--{name}", getattr(args, name)]
    return shlex.join(map(str, words))
