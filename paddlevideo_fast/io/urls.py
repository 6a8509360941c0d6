"""URLs as text: what one is, how paths are joined to it, and what of it may be shown and stored.

A URL may hold a password or a signature: in its user part, its query, its fragment, or the parameters of a
part of its path (`;token=…`). Whatever shows or stores a URL for people leaves these four out:

    https://me:pw@host/a;token=1/b.mp4?X-Amz-Signature=2#sig=3
        bare_url     https://host/a/b.mp4       what is stored
        shown_url    https://host/a/b.mp4?…     what is shown: there is more, or the file could not be read

In the keys of object stores (`s3://`, `gs://`, …) only `?` begins something else: `#` and `;` are characters.
"""

import os
import re
from collections.abc import Callable
from urllib.parse import unquote

# bounded, so that a long text is searched in linear time
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{1,30})://")
_URL_IN_TEXT = re.compile(rf"{_SCHEME.pattern}[^\s'\"<>]+")
_QUERY_IN_TEXT = re.compile(r"[?#;][^\s=?#;'\"<>]+=[^\s'\"<>]*")  # of a URL with blanks
_CLOSING = ".,:;)]}"  # ends a URL in a sentence
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"}
_HARMLESS = {"alt", "dl", "download", "generation", "raw", "ref", "version", "versionid"}
_CHECKSUM = re.compile(r"sha256=[0-9a-fA-F]{64}")  # see `without_checksum`


def scheme_of(path: str | os.PathLike[str]) -> str:
    """The scheme of a URL in lower case; "" of other text and of a `Path`, which merges the slashes."""
    match = _SCHEME.match(os.fspath(path))
    return match[1].lower() if match else ""


def absolute(path: str) -> str:
    """A path from the root of the file system; a URL stays."""
    return path if scheme_of(path) else os.path.abspath(path)


def join(base: str, *names: str) -> str:
    """A path below a folder; the folder may be a URL, and a name that is a URL or absolute stands alone.

    Of a URL all slashes are kept: `s3://bucket//a` and `s3://bucket/a` are two objects.
    """
    for name in names:
        if not scheme_of(base) or scheme_of(name):
            base = name if scheme_of(name) else os.path.join(base, name)
        else:
            base = f"{base.removesuffix('/')}/{name}"
    return base


def bare_url(url: str) -> str:
    """A URL without user, password, query, fragment and parameters. Other text stays."""
    return _parts(url)[0] if scheme_of(url) else url


def shown_url(url: str) -> str:
    """A URL for messages: `bare_url`, and `?…` where a query, a fragment or parameters are left out."""
    if not scheme_of(url):
        return url
    bare, _, rest = _parts(url)
    return f"{bare}?…" if rest else bare


def without_checksum(url: str) -> tuple[str, str]:
    """A URL and the SHA-256 of its file, where it ends in `#sha256=…`, else "". Other text stays."""
    url, _, digest = url.partition("#sha256=") if scheme_of(url) else (url, "", "")
    return url, digest


def masked(text: str) -> str:
    """A text in which every URL is shown as by `shown_url`; of a URL with blanks the query goes, too."""
    match = _SCHEME.search(text)
    if match is None:
        return text
    start = match.start()
    rest = _URL_IN_TEXT.sub(lambda match: _up_to_its_end(match[0], shown_url), text[start:])
    return text[:start] + _QUERY_IN_TEXT.sub(lambda match: _up_to_its_end(match[0], lambda _: "?…"), rest)


def secret_in(url: str) -> str:
    """What a URL holds that belongs into no config: "a user name or password", or what may be a signature.

    A query of known names that say which file or version is wanted is none, nor is a checksum as fragment.
    Other text holds nothing.
    """
    if not scheme_of(url):
        return ""
    _, user, rest = _parts(url)
    if user:
        return "a user name or password"
    query, _, fragment = rest.partition("#")
    names = [unquote(pair.partition("=")[0]).lower() for pair in query.removeprefix("?").split("&") if pair]
    if (not fragment or _CHECKSUM.fullmatch(fragment)) and set(names) <= _HARMLESS:
        return ""
    return "a query, fragment or parameter that may be a signature or key"


def _parts(url: str) -> tuple[str, str, str]:
    """The bare URL; user and password; and parameters, query and fragment, each with its delimiter."""
    scheme, _, location = url.partition("://")
    user, rest = "", ""
    if scheme.lower() not in _OBJECT_STORES:
        location, mark, fragment = location.partition("#")
        rest = mark + fragment
    location, mark, query = location.partition("?")
    rest = mark + query + rest
    host, slash, path = location.partition("/")
    if "@" in host:
        user, _, host = host.rpartition("@")
    elif "@" in path + rest and re.search(
        r":(?!\d*$)[^\]]*$", host
    ):  # a password with a slash, a `?` or a `#` in it
        return f"{scheme}://…", host, ""
    if scheme.lower() not in _OBJECT_STORES:
        parameters = re.findall(r";[^/]*", path)
        path, rest = re.sub(r";[^/]*", "", path), "".join(parameters) + rest
    return f"{scheme}://{host}{slash}{path}", user, rest


def _up_to_its_end(text: str, change: Callable[[str], str]) -> str:
    """Changes a text but for what closes it in a sentence."""
    body = text.rstrip(_CLOSING)
    return change(body) + text[len(body) :]
