"""Names in a YAML file to classes.

A registry knows the package that fills it and imports that package at the first look-up, so a config can be
checked without importing the world and no module imports upwards. Names of annexes are in the table of
`annexes`; the module of such a name is imported when the name is looked up.
"""

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from paddlevideo_fast import annexes

T = TypeVar("T", bound=type)


class Registry:
    """Classes of one kind under the names that configs use.

    A registered class may carry `ignored_arguments: Dict[str, str]`, arguments of other toolkits that have no
    effect here, each with the reason. The config check accepts them with a warning and leaves them out.

    Args:
        kind: what the entries are, for messages ("backbone").
        home: dotted name of the package whose import registers the entries.
        later: names of further entries, with the modules whose imports register them.
        base: name of a class in `home` of which all entries are subclasses; "": of any.
    """

    def __init__(
        self, kind: str, home: str, later: Mapping[str, str] = MappingProxyType({}), base: str = ""
    ) -> None:
        self.kind = kind
        self.home = home
        self._later = later
        self._base = base
        self._entries: dict[str, type] = {}
        self._definitions: dict[str, str] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """Class decorator; the entry's name is the class's own unless `names` are given.

        Raises:
            ValueError: another class has this name; the message has file and line of both.
            TypeError: what is decorated is no class, or the decorator lacks its parentheses.
        """
        if names and isinstance(names[0], type):
            raise TypeError(
                f"the decorator of {names[0].__name__} lacks its parentheses: write @...register()"
            )

        def add(cls: T) -> T:
            if not isinstance(cls, type):
                raise TypeError(f"{cls!r} is no class: a {self.kind} is one")
            frame = sys._getframe(1)
            definition = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            for key in names or (cls.__name__,):
                if not is_own(cls):  # so that a name of the toolkit is taken before a user's file takes it
                    self._load(key)
                known = self._entries.get(key, cls)
                # a module that is gone has failed to import, and its file may have been put right since
                if known is not cls and known.__module__ in sys.modules:
                    raise ValueError(
                        f"{self.kind} '{key}' is registered twice: in {self._definitions[key]} and in "
                        f"{definition}; give one of them another name"
                    )
                self._entries[key] = cls
                self._definitions[key] = definition
            return cls

        return add

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self.in_order())

    def in_order(self) -> list[str]:
        """All names: those of the table in its order, then the others as they were registered."""
        importlib.import_module(self.home)
        return [*dict.fromkeys([*self._later, *self._entries])]

    def get(self, name: str) -> type:
        """The class called `name`.

        Raises:
            KeyError: there is none; the message has the nearest names. Or it is of another kind.
        """
        self._load(name)
        if name not in self._entries:
            raise KeyError(f"unknown {self.kind} '{name}'{did_you_mean(name, self.names())}")
        cls = self._entries[name]
        if self._base and not issubclass(cls, base := getattr(sys.modules[self.home], self._base)):
            raise KeyError(f"{name} is no subclass of {base.__module__}.{base.__name__}")
        return cls

    def __contains__(self, name: object) -> bool:
        return name in self.in_order()

    def _load(self, name: str) -> None:
        importlib.import_module(self.home)
        if name in self._later and name not in self._entries:
            importlib.import_module(self._later[name])


def is_own(cls: type) -> bool:
    """Whether a class is one of the toolkit, and not of a user."""
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A clause that suggests the nearest of `known`, or lists them where none is near."""
    known = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{lowered[near[0]]}'?"
    return f"; known: {', '.join(known)}" if known else ""


def _own(kind: str, module: str, base: str = "") -> Registry:
    """A registry of the toolkit, with what the annexes have for it."""
    return Registry(kind, f"{__package__}.{module}", annexes.modules_of(kind), base)


RECOGNIZERS = _own("recognizer", "modeling.recognizers")
BACKBONES = _own("backbone", "modeling.backbones")
HEADS = _own("head", "modeling.heads")
LOSSES = _own("loss", "modeling.losses")
MIXES = _own("mix", "modeling.preprocess")
DATASETS = _own("dataset", "loader.dataset")
READERS = _own("reader", "decode.backends")
DECODERS = _own("decoder", "loader.dataset")
RECORD_SECTIONS = _own("record section", "loader.dataset")
SAMPLERS = _own("sampler", "loader.sampling")
TRANSFORMS = _own("transform", "loader.transforms")
OPTIMIZERS = _own("optimizer", "solver.optimizer")
LEARNING_RATES = _own("learning rate", "solver.learning_rate")
METRICS = _own("metric", "metrics")
CALLBACKS = _own("callback", "engine.callbacks", "Callback")
WEIGHT_RECORDS = _own("weight record", "modeling.weights")
FILE_SYSTEMS = _own("file system", "io.paths")
EXTENSIONS = _own("extension", "engine.extension")
