"""Packages of the extras in pyproject.toml: one sentence where one is missing, broken or too old."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from importlib import metadata

from paddlevideo_fast.errors import InstallationError, MissingExtraError


@contextlib.contextmanager
def needing(extra: str, purpose: str, *packages: str) -> Iterator[None]:
    """Within it, packages of an extra are imported.

    Args:
        extra: its name in pyproject.toml; empty: what the toolkit always needs.
        purpose: what needs the packages; messages begin with it.
        packages: names of the packages that are needed; none: all of the extra.

    Raises:
        MissingExtraError: a package is not installed.
        InstallationError: a package is too old, or cannot be imported.
    """
    check_versions(extra, purpose, *packages)
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(_package_of(error.name or ""), extra, purpose) from error
    except ImportError as error:
        raise InstallationError(
            f"{purpose} needs a package that is installed and cannot be imported: {error}"
        ) from error


def _package_of(module: str) -> str:
    """The package of a module, spelled as in pyproject.toml."""
    from packaging.requirements import Requirement

    module = module.partition(".")[0]
    with contextlib.suppress(metadata.PackageNotFoundError):
        for name in (Requirement(text).name for text in metadata.requires("paddlevideo_fast") or ()):
            if name.replace("-", "_") == module:
                return name
    return module.replace("_", "-")


def check_versions(extra: str, purpose: str, *packages: str) -> None:
    """Checks the installed packages against their lower bounds in pyproject.toml.

    Args: as for `needing`.

    Raises:
        InstallationError: a package is too old; the message has the version that is needed.
    """
    for package, bound, version in _outdated(extra):
        if package in packages or not packages:
            raise InstallationError(
                f"{purpose} needs {package}{bound}, and {version} is installed: "
                f'type  pip install "{package}{bound}"'
            )


@functools.cache
def _outdated(extra: str) -> list[tuple[str, str, str]]:
    """Name, bound and installed version of each package that is too old.

    A clone that is not installed has no bounds.
    """
    from packaging.requirements import Requirement

    outdated = []
    with contextlib.suppress(metadata.PackageNotFoundError):
        for requirement in map(Requirement, metadata.requires("paddlevideo_fast") or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                with contextlib.suppress(metadata.PackageNotFoundError):
                    version = metadata.version(requirement.name)
                    if not requirement.specifier.contains(version, prereleases=True):
                        outdated.append((requirement.name, str(requirement.specifier), version))
    return outdated
