"""The kinds of sections that a config is made of; each checks and builds what it holds. `ROOT` is their tree.

The constructor of a registered class is the schema of its section. An annotation may give an argument a
`Role` besides its type. A class may say more about its arguments:

    parts               which of them are, or hold, components themselves, as a registry or a section; a
                        function, where these are looked up first
    injected            which of them code passes, so that no config can set them
    ignored_arguments   arguments of other toolkits that have no effect here, each with the reason
    refused_arguments   arguments of other toolkits that would mean something else here, with what to do
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from paddlevideo_fast import registry as registries
from paddlevideo_fast.annexes import ALWAYS
from paddlevideo_fast.config import settings
from paddlevideo_fast.config.document import Findings
from paddlevideo_fast.config.types import (
    KeyPath,
    Role,
    arguments_of,
    describe,
    mismatches,
    plain_alternatives,
)
from paddlevideo_fast.config.yaml_source import dotted
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import Registry, did_you_mean, is_own

_TAGS = {"recognizer": "framework", "dataset": "format"}


def tag_of(kind: Registry) -> str:
    """The key that names the class: PaddleVideo says `framework` and `format` in two places, else `name`."""
    return _TAGS.get(kind.kind, "name")


class Arguments(NamedTuple):
    """The arguments of a class as they stand in a checked config.

    Attributes:
        path: of their mapping.
        cls: the class.
        given: the mapping, which may have the name of the class, too.
    """

    path: KeyPath
    cls: type
    given: Mapping[str, Any]

    def with_role(self, *roles: Role) -> dict[str, Any]:
        """The values of the arguments that have one of the roles, defaults included, by their names."""
        arguments = arguments_of(self.cls).values()
        return {
            item.name: self.given.get(item.name, item.default) for item in arguments if item.role in roles
        }

    def key(self, name: str) -> str:
        """The dotted key of an argument."""
        return dotted((*self.path, name))


class Section:
    """What may stand at a key of a config."""

    def check(self, value: Any, path: KeyPath, findings: Findings) -> None:
        """Notes everything about the `value` at `path` that is wrong or has no effect."""
        raise NotImplementedError

    def check_argument(self, value: Any, hint: Any, path: KeyPath, findings: Findings) -> None:
        """Checks an argument with the annotation `hint` whose value is this section, or null if that fits."""
        if value is not None or list(mismatches(None, hint)):
            self.check(value, path, findings)

    def build(self, value: Any) -> Any:
        """What a constructor receives for a checked `value`."""
        return value

    def arguments(self, value: Any, path: KeyPath) -> Iterator[Arguments]:
        """The arguments of all classes that stand in the `value` at `path`; what does not fit is left out."""
        return iter(())


@dataclass(frozen=True)
class Component(Section):
    """A mapping that names a registered class and has its arguments beside the name.

    Args:
        registry: where the name is looked up.
        purpose: one sentence for the reference.
    """

    registry: Registry
    purpose: str = ""

    def check(self, value: Any, path: KeyPath, findings: Findings) -> None:
        tag = tag_of(self.registry)
        if not isinstance(value, Mapping):
            findings.wrong_value(path, value, "a mapping")
        elif tag not in value:
            findings.problem(path, f"'{tag}' is missing; known: {', '.join(self.registry.names())}")
        else:
            cls = _look_up(self.registry, value[tag], (*path, tag), findings)
            if cls is not None:
                given = {key: item for key, item in value.items() if key != tag}
                for key in self._not_shared(cls, given, path, findings):
                    findings.leave_out((*path, tag), value[tag], key)
                    del given[key]
                check_arguments(cls, given, path, findings)

    def check_argument(self, value: Any, hint: Any, path: KeyPath, findings: Findings) -> None:
        if isinstance(value, Mapping):
            self.check(value, path, findings)
        elif list(mismatches(value, hint)):  # a plain number may do for a learning rate
            allowed = [*plain_alternatives(hint), f"a mapping with '{tag_of(self.registry)}'"]
            findings.wrong_value(path, value, " or ".join(allowed))

    def _not_shared(
        self, cls: type, given: Mapping[str, Any], path: KeyPath, findings: Findings
    ) -> list[str]:
        """Arguments that were written for another component, and that `cls` has not or means differently.

        An argument with another default is another argument: the `suffix` of a FrameDataset names frames,
        that of a VideoDataset is the ending of a file.
        """
        arguments, parts, others = arguments_of(cls), parts_of(cls), []
        for key, value in given.items():
            earlier = findings.config.inherited.get((*path, key))
            if earlier is None or key in parts:
                continue
            before = arguments_of(self.registry.get(earlier)) if earlier in self.registry else {}
            shared = key in arguments and key in before and before[key].default == arguments[key].default
            if not shared or list(mismatches(value, arguments[key].hint)):
                others.append(key)
        return others

    def build(self, value: Any) -> Any:
        return build(self.registry, value) if isinstance(value, Mapping) else value

    def arguments(self, value: Any, path: KeyPath) -> Iterator[Arguments]:
        if isinstance(value, Mapping):
            yield from _arguments_of(self.registry, value.get(tag_of(self.registry)), value, path)


@dataclass(frozen=True)
class ComponentList(Section):
    """A list of one-key mappings from a registered name to its arguments, null for none.

    Args:
        registry: where the names are looked up.
        purpose: one sentence for the reference.
        plain_names: an item without arguments may be the name alone.
    """

    registry: Registry
    purpose: str = ""
    plain_names: bool = False

    def check(self, value: Any, path: KeyPath, findings: Findings) -> None:
        for name, arguments, here in named_items(value, path, findings, self.plain_names):
            cls = _look_up(self.registry, name, here, findings)
            if cls is not None and not isinstance(arguments, (Mapping, type(None))):
                findings.wrong_value((*here, name), arguments, "a mapping of arguments")
            elif cls is not None:
                check_arguments(cls, arguments or {}, (*here, name), findings)

    def build(self, value: Any) -> Any:
        return build_list(self.registry, value)

    def arguments(self, value: Any, path: KeyPath) -> Iterator[Arguments]:
        for name, given, here in named_items(value, path, plain_names=True):
            yield from _arguments_of(self.registry, name, given, (*here, name))


@dataclass(frozen=True)
class Group(Section):
    """A mapping of settings and further sections.

    Args:
        members: the sections in it.
        settings: dataclass whose fields are the plain keys, or None.
        takes_options: whether sections and keys of extensions may stand in it: at the top level of a config.
        required: members that must be there.
        replaced_by: required member -> member that takes its place; the two exclude each other.
        needs: dotted key of a section -> those it is of no use without; for the whole config.
        purpose: one sentence for the reference; "": the docstring of the settings has one.
    """

    members: Mapping[str, Section] = field(default_factory=dict)
    settings: type | None = None
    takes_options: bool = False
    required: tuple[str, ...] = ()
    replaced_by: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    purpose: str = ""

    def check(self, value: Any, path: KeyPath, findings: Findings) -> None:
        if not isinstance(value, Mapping):
            findings.wrong_value(path, value, "a mapping")
            return
        for name in self.required:
            other = self.replaced_by.get(name)
            replaced = other is not None and value.get(other) is not None
            if value.get(name) is None and not replaced:
                findings.problem((*path, name), "this section is missing")
            elif value.get(name) is not None and replaced:
                findings.problem((*path, name), f"{other} stands for it; keep one of the two")
        settings = {key: item for key, item in value.items() if key not in self.members}
        if self.takes_options:
            settings = self._check_options(settings, path, findings)
        if self.settings:
            is_known = set(settings) <= {*arguments_of(self.settings)}
            known = [] if is_known else [*self.all_members(), *self.options_at_top()]
            at_top = {} if path or is_known else {key: [*holders(self, key, value)] for key in settings}
            check_arguments(self.settings, settings, path, findings, known=known, owner="", deeper=at_top)
        else:
            for key in settings:
                findings.problem((*path, key), f"unknown key{did_you_mean(key, self.members)}")
        for name, section in self.members.items():
            if value.get(name) is not None:  # null turns off what a base turned on
                section.check(value[name], (*path, name), findings)
        for having, needed in self.needs.items():
            if findings.config.holds(having):
                findings.problems += findings.config.missing(having, *needed)

    def _check_options(self, given: Mapping[str, Any], path: KeyPath, findings: Findings) -> dict[str, Any]:
        """Checks what belongs to extensions, and returns the rest."""
        own = {key: registries.EXTENSIONS.get(key) for key in given if key in registries.EXTENSIONS}
        for cls in dict.fromkeys(own.values()):
            at_top = {key: given[key] for key, owner in own.items() if owner is cls}
            for key in [key for key in at_top if has_section(cls, key)]:
                if (section := at_top.pop(key)) is not None:
                    Group(settings=cls).check(section, (*path, key), findings)
            if at_top:
                check_arguments(cls, at_top, path, findings)
        return {key: item for key, item in given.items() if key not in own}

    def all_members(self) -> dict[str, Section]:
        """The sections, those of extensions included, whose modules are imported for it."""
        members = dict(self.members)
        for key, cls in self._options().items():
            if has_section(cls, key):
                members[key] = Group(settings=cls)
            elif section := parts_of(cls).get(key):
                members[key] = section
        return members

    def options_at_top(self) -> dict[str, type]:
        """The keys of extensions that are plain values, with their extensions."""
        members = self.all_members()
        return {key: cls for key, cls in self._options().items() if key not in members}

    def _options(self) -> dict[str, type]:
        options = registries.EXTENSIONS
        return {key: options.get(key) for key in options.in_order()} if self.takes_options else {}

    def arguments(self, value: Any, path: KeyPath) -> Iterator[Arguments]:
        value = value if isinstance(value, Mapping) else {}
        if self.settings:
            yield Arguments(path, self.settings, value)
        for name, section in self.members.items():
            yield from section.arguments(value.get(name), (*path, name))

    def build(self, value: Any) -> Any:
        built = {name: section.build(value[name]) for name, section in self.members.items() if name in value}
        plain = {key: item for key, item in value.items() if key not in self.members}
        if self.settings:
            return self.settings(**plain, **built)
        if plain:
            unknown = [f"{key}: unknown key{did_you_mean(key, self.members)}" for key in sorted(plain)]
            raise ConfigError(unknown)
        return built


@dataclass(frozen=True)
class Unsupported(Section):
    """A section that is accepted and left out with a warning.

    Args:
        reason: why, in one line.
    """

    reason: str

    def check(self, value: Any, path: KeyPath, findings: Findings) -> None:
        findings.has_no_effect(path, ".".join(map(str, path)), self.reason)


# Names that other toolkits, or people, have for keys.
_OTHER_NAMES = {
    **dict.fromkeys(("lr", "learning_rate", "base_lr"), "OPTIMIZER.learning_rate"),
    **dict.fromkeys(("wd", "weight_decay"), "OPTIMIZER.weight_decay"),
    **dict.fromkeys(("workers", "num_workers", "j"), "DATASET.num_workers"),
    **dict.fromkeys(("optimizer", "opt"), "OPTIMIZER.name"),
    "momentum": "OPTIMIZER.momentum",
    "num_classes": "MODEL.head.num_classes",
    "pretrained": "MODEL.backbone.pretrained",
    "label_smoothing": "MODEL.head.ls_eps",
}


def holders(root: Group, key: str, value: Any) -> Iterator[str]:
    """Where in a config a key is known: dotted, `DATASET.batch_size`. Lists are passed over."""
    if key in _OTHER_NAMES:
        yield _OTHER_NAMES[key]
        return
    if key in root.options_at_top():
        yield key
    for each in replace(root, members=root.all_members()).arguments(value, ()):
        is_listed = any(isinstance(part, int) for part in each.path)
        if not is_listed and is_own(each.cls) and key in arguments_of(each.cls):
            yield each.key(key)


def has_section(option: type, key: str) -> bool:
    """Whether an extension has a section of its own at a key; else the key is one of its fields."""
    return key not in arguments_of(option)


def options_of(config: Mapping[str, Any]) -> dict[Any, str]:
    """The extensions that a config names, or that every run has, with one of their keys, in their order."""
    options = registries.EXTENSIONS
    names = [name for name in options.in_order() if config.get(name) is not None or name in ALWAYS]
    return {options.get(name): name for name in names}


def parts_of(cls: type) -> Mapping[str, Section]:
    """The constructor arguments of a class that are, or hold, components; it receives them built."""
    parts = getattr(cls, "parts", {})
    parts = parts() if callable(parts) else parts
    return {name: Component(part) if isinstance(part, Registry) else part for name, part in parts.items()}


def _arguments_of(registry: Registry, name: Any, given: Any, path: KeyPath) -> Iterator[Arguments]:
    if isinstance(name, str) and name in registry:
        cls = registry.get(name)
        yield from Group(parts_of(cls), cls).arguments(given, path)


def arguments_in(config: Mapping[str, Any], *path: str) -> Iterator[Arguments]:
    """The arguments of all classes that a checked config has at a path, such as ("PIPELINE", "train")."""
    return (each for each in ROOT.arguments(config, ()) if each.path[: len(path)] == path)


def check_arguments(
    cls: type,
    given: Mapping[str, Any],
    path: KeyPath,
    findings: Findings,
    known: Iterable[str] = (),
    owner: str | None = None,
    deeper: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Compares the keys `given` at `path` with the constructor of `cls`.

    Args:
        cls: the class.
        given: its arguments.
        path: their section.
        findings: collects what is wrong.
        known: other keys of the section, for suggestions.
        owner: what messages say of the class; None: its name.
        deeper: by an unknown key, the sections that know it.
    """
    arguments, parts = arguments_of(cls), parts_of(cls)
    ignored: Mapping[str, str] = getattr(cls, "ignored_arguments", {})
    refused: Mapping[str, str] = getattr(cls, "refused_arguments", {})
    owner = f" for {cls.__name__}" if owner is None else owner
    for key, value in given.items():
        here = (*path, key)
        if key in arguments and key in parts:
            parts[key].check_argument(value, arguments[key].hint, here, findings)
        elif key in arguments:
            for item in mismatches(value, arguments[key].hint, here):
                findings.wrong_value(item.path, item.value, item.expected)
        elif key in ignored:
            findings.has_no_effect(here, cls.__name__, ignored[key])
        elif key in refused:
            findings.problem(here, refused[key])
        else:
            keys = (deeper or {}).get(key) or []
            keys = [each for each in keys if findings.config.holds(each.rpartition(".")[0])] or keys
            near = f"; did you mean {' or '.join(keys)}?" if keys else ""
            findings.problem(here, f"unknown key{owner}{near or did_you_mean(key, [*arguments, *known])}")
    for name, argument in arguments.items():
        if argument.required and name not in given:
            findings.problem((*path, name), f"missing{owner}; expected {describe(argument.hint)}")


def named_items(
    value: Any, path: KeyPath, findings: Findings | None = None, plain_names: bool = False
) -> Iterator[tuple[Any, Any, KeyPath]]:
    """Name, content and path of each item of a list of one-key mappings; notes what is none in `findings`."""
    wrong: Callable[..., Any] = findings.wrong_value if findings else lambda *about: None
    if not isinstance(value, list):
        names = "names and " if plain_names else ""
        wrong(path, value, f"a list of {names}one-key mappings")
        return
    for index, item in enumerate(value):
        if isinstance(item, Mapping) and len(item) == 1:
            yield (*next(iter(item.items())), (*path, index))
        elif plain_names and isinstance(item, str):
            yield item, None, (*path, index)
        else:
            wrong((*path, index), item, "one name, with its arguments indented below it")


def _look_up(registry: Registry, name: Any, path: KeyPath, findings: Findings) -> type | None:
    if not isinstance(name, str):
        findings.wrong_value(path, name, f"the name of a {registry.kind}")
        return None
    try:
        cls = registry.get(name)
    except KeyError as error:
        findings.problem(path, str(error.args[0]))
        return None
    if not is_own(cls):  # an annotation of a user may be one that the check does not know
        try:
            for argument in arguments_of(cls).values():
                describe(argument.hint)
        except Exception as error:
            text = f"the constructor of {name} cannot be checked: {type(error).__name__}: {error}"
            findings.problem(path, text)
            return None
    return cls


def build(registry: Registry, section: Mapping[str, Any], **extra: Any) -> Any:
    """Builds the component that `section` names.

    Arguments without effect are left out. Arguments that are components (see `parts_of`) are built first.

    Args:
        registry: where the name is looked up.
        section: the arguments, and the name under `name` (`framework` for a recognizer, `format` for a
            dataset).
        extra: further constructor arguments, which code and not a config provides.

    Raises:
        ConfigError: the name, or an argument, is missing or unknown.
    """
    tag = tag_of(registry)
    if tag not in section:
        raise ConfigError([f"a {registry.kind} needs '{tag}' in its section {dict(section)!r}"])
    arguments = {key: value for key, value in section.items() if key != tag}
    return build_named(registry, section[tag], arguments, **extra)


def build_named(
    registry: Registry, name: str, arguments: Mapping[str, Any] | None = None, **extra: Any
) -> Any:
    """Builds the component called `name`; see `build`."""
    try:
        cls = registry.get(name)
    except KeyError as error:
        raise ConfigError([str(error.args[0])]) from None
    parts = parts_of(cls)
    ignored = getattr(cls, "ignored_arguments", {})
    built = {
        key: parts[key].build(value) if key in parts and value is not None else value
        for key, value in (arguments or {}).items()
        if key not in ignored
    }
    problems = _wrong_names(cls, {*built, *extra})
    if problems:
        raise ConfigError(problems)
    return cls(**built, **extra)


NamedItem = str | Mapping[str, Mapping[str, Any] | None]


def build_list(registry: Registry, items: Sequence[NamedItem], **extra: Any) -> list[Any]:
    """Builds a list of names and one-key mappings `{name: arguments}`, as in `PIPELINE.train.transform`."""
    pairs = [(item, None) if isinstance(item, str) else next(iter(item.items())) for item in items]
    return [build_named(registry, name, arguments, **extra) for name, arguments in pairs]


def names_of(items: Sequence[NamedItem]) -> list[str]:
    """The names in a list of components."""
    return [item if isinstance(item, str) else next(iter(item)) for item in items]


def _wrong_names(cls: type, given: set[str]) -> list[str]:
    """What a check would say about the names of the arguments; a section that code wrote has met none."""
    arguments = arguments_of(cls)
    names = {*arguments, *getattr(cls, "injected", ())}
    unknown = [
        f"{key}: unknown key for {cls.__name__}{did_you_mean(key, arguments)}"
        for key in sorted(given - names)
    ]
    return unknown + [
        f"{name}: missing for {cls.__name__}; expected {describe(argument.hint)}"
        for name, argument in arguments.items()
        if argument.required and name not in given
    ]


_DATASET = Component(registries.DATASETS, purpose="An annotation list and where its files lie.")
PIPELINE = Group(
    {
        "decode": Component(registries.DECODERS, purpose="How a file is opened."),
        "sample": Component(registries.SAMPLERS, purpose="Which frames of it are read."),
        "decode_sampler": Component(
            registries.SAMPLERS, purpose="Stands for `sample`, and for `decode` with a VideoDecoder."
        ),
        "transform": ComponentList(
            registries.TRANSFORMS, purpose="What happens to the frames, in this order."
        ),
    },
    settings.PipelineSettings,
    required=("decode", "sample", "transform"),
    replaced_by={"decode": "decode_sampler", "sample": "decode_sampler"},
    purpose="From a file to a clip.",
)


def _splits(section: Section) -> dict[str, Section]:
    return dict.fromkeys(("train", "valid", "test"), section)


ROOT = Group(
    {
        "MODEL": Component(registries.RECOGNIZERS, purpose="The network."),
        "DATASET": Group(_splits(_DATASET), settings.DatasetSettings),
        "PIPELINE": Group(_splits(PIPELINE), purpose="What is done to a sample, for each part of the data."),
        "OPTIMIZER": Component(registries.OPTIMIZERS, purpose="How the weights are updated."),
        "METRIC": Component(registries.METRICS, purpose="What an evaluation measures."),
        "MIX": Component(registries.MIXES, purpose="Mixing of the samples of a training batch."),
        "CALLBACKS": ComponentList(
            registries.CALLBACKS,
            purpose="Callbacks of your own, from plug-ins. They come after validation, before the records "
            "and the checkpoint.",
            plain_names=True,
        ),
        **{key: Group(settings=kind) for key, (_, kind, _) in settings.SECTIONS.items()},
        "INFERENCE": Unsupported("prediction reads videos as PIPELINE.valid says"),
    },
    settings.RunSettings,
    takes_options=True,
    required=("MODEL", "DATASET", "PIPELINE"),
    needs={
        "DATASET.train": ("PIPELINE.train", "OPTIMIZER"),
        "DATASET.valid": ("PIPELINE.valid", "METRIC"),
        "DATASET.test": ("PIPELINE.test", "METRIC"),
    },
    purpose="Settings of the run, at the top level of the file.",
)
