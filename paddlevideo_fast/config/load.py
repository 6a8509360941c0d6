"""A YAML file, the files that it inherits with `_BASE_`, and the overrides become one checked config.

A later layer wins over an earlier one. Mappings merge, lists and plain values replace. Where a layer changes
the `name` of a component, those arguments of the earlier component stay that the new one shares. The check
leaves out the others and says so (`Config.inherited`). The plug-ins of all layers are imported: what a file
names with `imports` is added to what the files that it inherits name.
"""

import itertools
import json
import mimetypes
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlevideo_fast import annexes
from paddlevideo_fast.config.builtin import CONFIG_FILE, find_config, hint_at_configs
from paddlevideo_fast.config.clip import expand_clip
from paddlevideo_fast.config.document import Config, Findings
from paddlevideo_fast.config.relative_paths import PATHS, place_paths
from paddlevideo_fast.config.sections import ROOT, Group, options_of
from paddlevideo_fast.config.types import KeyPath, leaves
from paddlevideo_fast.config.yaml_source import MAX_CHARACTERS, MAX_DEPTH, Budget, Source, dotted, parse
from paddlevideo_fast.errors import ConfigError, shown
from paddlevideo_fast.io.files import hint_at_working_folder, read_text
from paddlevideo_fast.io.urls import secret_in
from paddlevideo_fast.log import get_logger, is_unicode
from paddlevideo_fast.plugins import Import, import_all, installed_imports, located
from paddlevideo_fast.registry import did_you_mean

_LOGGER = get_logger(__name__)

BASE = "_BASE_"
_MAX_LISTED = 20  # items of a list that an error names
IMPORTS = "imports"


def load_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    check: bool = True,
    translate: Callable[[Config], None] | None = None,
    root: Group = ROOT,
) -> Config:
    """Reads a config with everything it inherits, applies the overrides and checks the result.

    Before the check, it imports the plug-ins that the config and installed packages name.

    Args:
        path: a YAML file, a folder with a config.yaml, or the name of a built-in config.
        overrides: `KEY.PATH=VALUE` texts, see `apply_overrides`.
        check: False leaves the content unchecked, and imports nothing.
        translate: changes the config before it is checked; for configs of another shape.
        root: the schema.

    Raises:
        ConfigError: with all problems, each with file and line or the number of its override.
    """
    config = read_with_bases(str(path))
    problems = apply_overrides(config, overrides)
    if PATHS in config:
        problems.append(config.problem(PATHS, "is for a file; paths of -o start from the working folder"))
    _refuse_secrets(config)
    if translate is not None:
        translate(config)
    config.imports += take_imports(config)
    if config.imports:
        config[IMPORTS] = list(dict.fromkeys(one.name for one in config.imports))
    if check:
        import_plugins(config, problems)
        check_config(config, root, problems)
        for option in options_of(config):
            option.expand(config)
        expand_clip(config)
    elif problems:
        raise ConfigError(problems)
    return config


def import_plugins(config: Config, problems: Sequence[str] = ()) -> None:
    """Imports what installed packages and a config name. Their constructors are a part of the schema.

    Args:
        config: the config.
        problems: those found before, to be told together with the new ones.

    Raises:
        ConfigError: an import fails.
    """
    broken = import_all([*installed_imports(), *config.imports])
    if broken:
        raise ConfigError([*problems, *broken])


def check_config(config: Config, root: Group = ROOT, problems: Sequence[str] = ()) -> None:
    """Checks a config and takes out of it what has no effect, with one warning each.

    Args:
        config: the config; without origins, its problems carry no file and line.
        root: the schema.
        problems: those found before, to be told together with the new ones.

    Raises:
        ConfigError: with all problems; the config is then unchanged.
    """
    other_tasks = annexes.load("advice", "task")
    if other_tasks is not None:
        other_tasks.refuse(config)
    findings = Findings(config, [*problems])
    root.check(config, (), findings)
    findings.report()


def _hint_at_init(folder: str) -> str:
    """What to type where a folder of videos stands for a config."""
    files = itertools.islice(Path(folder).glob("*/*"), 1000)
    if not any((mimetypes.guess_type(file.name)[0] or "").startswith("video/") for file in files):
        return ""
    return f"; make a set of its videos with  paddlevideo-fast init {shlex.quote(folder)} --output my_set"


def _refuse_secrets(config: Config) -> None:
    """Refuses URLs with credentials, before anything repeats them: a config is printed, logged and saved."""
    advice = (
        "the config is saved beside the checkpoints. Leave it out, and give it as the store's driver reads it"
    )
    secrets = [(path, secret_in(text)) for path, text in leaves(config) if isinstance(text, str)]
    problems = [config.problem(path, f"the URL holds {what}, and {advice}") for path, what in secrets if what]
    if problems:
        raise ConfigError(problems)


def read_with_bases(path: str, trail: tuple[str, ...] = (), budget: Budget | None = None) -> Config:
    """Reads a file and everything it inherits.

    `_BASE_` is a path relative to the file that has it, or a list of paths of which later ones win over
    earlier ones; the file's own content wins over all. The files that `imports` names are relative to the
    file that has it, too.

    Args:
        path: a file, a folder with a config.yaml, or the name of a built-in config; `_BASE_` may name each.
        trail: the files that led here, to find circles.
        budget: what this file and those that it inherits may ask for; None: as much as a whole config.

    Raises:
        ConfigError: a file is missing, is no YAML mapping, or inherits from itself; or the files are too many
            or too large.
    """
    path = find_config(path)
    budget = budget or Budget()
    try:
        text = read_text(path, max_bytes=4 * MAX_CHARACTERS)
    except FileNotFoundError:
        hint = hint_at_configs(path) or hint_at_working_folder(path)
        raise ConfigError([f"{path}  there is no such file{hint}"]) from None
    except OSError as error:
        cause = f"the file cannot be read: {error.strerror}"
        if os.path.isdir(path):
            cause = f"the folder has no {CONFIG_FILE}{_hint_at_init(path)}"
        raise ConfigError([f"{path}  {cause}"]) from None
    source = parse(text, path, budget)
    data = {} if source.data is None else source.data
    if not isinstance(data, dict):
        raise ConfigError([f"{path}  the file is not a mapping of sections such as MODEL and DATASET"])
    origins = {key: f"{path}:{line}" for key, line in source.lines.items() if key[:1] != (BASE,)}
    origins[()] = path
    where = f"{path}:{source.lines.get((BASE,), 1)}"

    merged, own = Config(path=path), Config(data, origins, path)
    own.imports = take_imports(own, os.path.dirname(path))
    place_paths(own)
    for base in _texts(own.pop(BASE, None), f"{where}  {BASE}", "a path or a list of paths"):
        target = find_config(os.path.normpath(os.path.join(os.path.dirname(path), base)), base)
        chain = (*trail, path)
        if os.path.realpath(target) in [os.path.realpath(seen) for seen in chain]:
            circle = " -> ".join((*chain, target))
            raise ConfigError([f"{where}  {BASE}: files inherit in a circle: {circle}"])
        if not os.path.exists(target):
            hint = hint_at_configs(base)
            raise ConfigError([f"{where}  {BASE}={shown(base)}: there is no file {target}{hint}"])
        budget.take_values(100, where)
        layer = read_with_bases(target, chain, budget)
        if merged or merged.imports:
            merge(merged, layer)
        else:  # a long chain of files does not copy the first one at each step
            merged = layer
    merged.path = path
    merge(merged, own)
    return merged


def take_imports(config: Config, folder: str = "") -> list[Import]:
    """Takes the plug-ins that `imports` names out of the content of a config; files are relative to `folder`.

    Raises:
        ConfigError: they are no list of texts.
    """
    key = (IMPORTS,)
    names = _texts(
        config.pop(IMPORTS, None), f"{config.where(key)}  {IMPORTS}", "a module or file, or a list of them"
    )
    return [
        located(name, f"{config.where((*key, number))}  {IMPORTS}", folder)
        for number, name in enumerate(names)
    ]


def merge(base: Config, over: Config) -> None:
    """Puts `over` on top of `base`, in place."""
    _merge_mapping(base, base, over, ())
    base.origins.update(over.origins)
    base.inherited.update(over.inherited)
    base.imports += over.imports


def _merge_mapping(base: Config, old: dict[str, Any], new: Mapping[str, Any], path: KeyPath) -> None:
    """Merges the mapping `new` into the mapping `old` of `base`; both are at `path`."""
    tag = _tag_at(path)
    if tag in old and tag in new and old[tag] != new[tag]:
        for key in old:
            if key != tag:
                base.inherited.setdefault((*path, key), str(old[tag]))
    for key, value in new.items():
        here = (*path, key)
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            base.inherited.pop(here, None)
            _merge_mapping(base, old[key], value, here)
        else:
            base.forget(here, old.get(key))
            old[key] = value


def _tag_at(path: KeyPath) -> str:
    """The key that names the component at `path`, if one is there: as PaddleVideo has it."""
    if path == ("MODEL",):
        return "framework"
    if len(path) > 1 and isinstance(path[-2], int):  # `- Scale:` in a list has its name already
        return ""
    return "format" if len(path) == 2 and path[0] == "DATASET" else "name"


def _texts(value: Any, where: str, expected: str) -> list[str]:
    """One text or a list of texts, as a list; None is an empty list."""
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError([f"{where}={shown(value)}: expected {expected}"])
    return texts


def apply_overrides(config: Config, overrides: Sequence[str]) -> list[str]:
    """Applies each override in order and returns the problems of those that cannot be applied.

    The key is split from the value at the first `=` and at each dot; a number steps into a list. The value
    is YAML, so `1e-4` is a float and `[1, 2]` a list, and nothing is ever executed. The last key may be new;
    those before it must exist. A section at the top level, whose name is in capitals, is made where it is
    missing: only the check knows the sections of plug-ins. A mapping as value replaces the whole section.
    """
    problems: list[str] = []
    budget = Budget()
    for number, text in enumerate(overrides, 1):
        name = f"-o #{number}"
        try:
            path, source = _read(text, name, budget)
            if path == [IMPORTS]:  # added to the imports of the files and of earlier overrides
                config.imports += take_imports(Config({IMPORTS: source.data}, {(): name}))
                continue
            if len(path) > 1 and path[0].isupper() and path[0] not in config:
                config[path[0]], config.origins[path[0],] = {}, name
            _set(config, path, source, name)
        except ConfigError as error:
            problems += error.problems
    return problems


def _read(text: str, name: str, budget: Budget) -> tuple[list[str], Source]:
    key, equals, value = text.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path) or "\0" in key or len(path) > MAX_DEPTH:
        example = "OPTIMIZER.learning_rate.values.0=0.1"
        raise ConfigError([f"{name}  {shown(text)}: expected KEY=VALUE, for example {example}"])
    if not is_unicode(value):  # the name of a file, which YAML takes only in escapes
        value = json.dumps(value)
    try:
        return path, parse(value, name, budget)
    except ConfigError as error:
        cause = error.problems[0].partition("  ")[2]
        raise ConfigError([f"{name}  {key.strip()}={shown(value)}: {cause}"]) from None


def _set(config: Config, path: Sequence[str], source: Source, name: str) -> None:
    container: Any = config
    done: KeyPath = ()
    for part in path[:-1]:
        key = _key(container, part, done, name)
        if isinstance(container, dict) and key not in container:
            hint = did_you_mean(part, container)
            raise ConfigError([f"{name}  {dotted((*done, key))}: there is no such section{hint}"])
        if container[key] is None:  # `- RandomFlip:` is a component without arguments
            container[key] = {}
        container, done = container[key], (*done, key)
        config.inherited.pop(done, None)
    key = _key(container, path[-1], done, name)
    here = (*done, key)
    if key == _tag_at(done) and container.get(key, source.data) != source.data:
        for other in container:
            if not config.where((*done, other)).startswith("-o "):
                config.inherited.setdefault((*done, other), str(container[key]))
    config.forget(here, container.get(key) if isinstance(container, dict) else container[key])
    container[key] = source.data
    config.origins.update({(*here, *below): name for below in source.lines})


def _key(container: Any, part: str, done: KeyPath, name: str) -> Any:
    """`part` as a key of `container`, or a ConfigError that says why it is none."""
    if isinstance(container, dict):
        return part
    if not isinstance(container, list):
        raise ConfigError(
            [f"{name}  {dotted(done)}={shown(container)}: is a value, {shown(part)} cannot be set in it"]
        )
    if part not in map(str, range(len(container))):
        raise ConfigError(
            [f"{name}  {dotted((*done, part))}: {shown(part)} is no index of this list ({_held(container)})"]
        )
    return int(part)


def _held(items: Sequence[Any]) -> str:
    """What a list holds at each index: the names of its components, or how many values there are."""
    names = [next(iter(item), None) if isinstance(item, dict) and len(item) == 1 else None for item in items]
    if not items or None in names or len(items) > _MAX_LISTED:
        return f"0 to {len(items) - 1}" if items else "none, it is empty"
    return ", ".join(f"{index} {shown(str(name))}" for index, name in enumerate(names))
