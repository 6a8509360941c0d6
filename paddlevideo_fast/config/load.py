"""A YAML file, its bases and the overrides become one checked config."""

from collections.abc import Callable, Sequence
from pathlib import Path

from paddlevideo_fast.config.document import Config
from paddlevideo_fast.config.findings import Findings
from paddlevideo_fast.config.layers import IMPORTS, apply_overrides, read_with_bases, take_imports
from paddlevideo_fast.config.schema import ROOT
from paddlevideo_fast.config.sections import Group
from paddlevideo_fast.config.settings import DaliData, settings_from
from paddlevideo_fast.config.types import leaves
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.io.urls import is_url, secret_in
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.plugins import import_all, installed_imports

_LOGGER = get_logger(__name__)


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
        path: a YAML file.
        overrides: `KEY.PATH=VALUE` texts, see `apply_overrides`.
        check: False leaves the content unchecked, and imports nothing.
        translate: changes the config before it is checked; for configs of another shape.
        root: the schema.

    Raises:
        ConfigError: with all problems, each with file and line or the number of its override.
    """
    config = read_with_bases(str(path))
    problems = apply_overrides(config, overrides, root.members)
    _refuse_secrets(config)
    if translate is not None:
        translate(config)
    config.imports += take_imports(config)
    if config.imports:
        config[IMPORTS] = list(dict.fromkeys(one.name for one in config.imports))
    if check:
        import_plugins(config, problems)
        check_config(config, root, problems)
        _expand_dali_data(config)
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
    found = Findings(config, [*problems])
    root.check(config, (), found)
    found.settle()


def _refuse_secrets(config: Config) -> None:
    """Refuses URLs with credentials, before anything repeats them: a config is printed, logged and saved."""
    advice = (
        "the config is saved beside the checkpoints. Leave it out, and give it as the store's driver reads it"
    )
    texts = ((path, text) for path, text in leaves(config) if isinstance(text, str))
    found = {path: secret_in(text) for path, text in texts if is_url(text)}
    problems = {path: f"the URL holds {secret}, and {advice}" for path, secret in found.items() if secret}
    if problems:
        raise ConfigError([config.problem(path, text) for path, text in problems.items()])


def _expand_dali_data(config: Config) -> None:
    """Puts what DALI_LOADER describes into DATASET and PIPELINE, with `train_dali`.

    The section is gone afterwards, so that the saved config says the same once only. Without `train_dali` it
    goes, too, with a warning: the training data are those of DATASET.train.
    """
    section = config.pop("DALI_LOADER", None)
    if section is None:
        return
    if not config.get("train_dali"):
        text = "has no effect without --train_dali (train_dali: True)"
        warn_once(_LOGGER, config.problem("DALI_LOADER", text))
        return
    data = settings_from(DaliData, section)
    for part in ("DATASET", "PIPELINE"):
        config.forget((part, "train"), config[part].get("train"))
        config.origins[part, "train"] = config.where("DALI_LOADER")
    config.origins["DATASET", "train", "file_path"] = config.where("DALI_LOADER.file_path")
    config.origins["DATASET", "batch_size"] = config.where("DALI_LOADER.batch_size")
    config["DATASET"] = {**config["DATASET"], "batch_size": data.batch_size, "train": data.dataset()}
    config["PIPELINE"] = {**config["PIPELINE"], "train": data.pipeline()}
