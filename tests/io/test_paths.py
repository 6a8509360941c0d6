"""What opens a path: the files of this machine, a class of a user, or nothing."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from paddlevideo_fast.decode.image_folder import read_image
from paddlevideo_fast.errors import InstallationError
from paddlevideo_fast.io import paths
from paddlevideo_fast.io.files import as_path, local_copy, working_folder
from paddlevideo_fast.io.paths import FileSystem, file_system
from paddlevideo_fast.registry import FILE_SYSTEMS


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Schemes are looked up anew."""
    paths._of_scheme.cache_clear()
    yield
    paths._of_scheme.cache_clear()


@pytest.mark.parametrize("path", ["a.mp4", "/a/b.mp4", "a b://c.mp4", "://a", "1://a", "C:/a.mp4", "a:b.mp4"])
def test_a_path_without_a_scheme_is_of_this_machine(path):
    assert type(file_system(path)) is FileSystem
    assert as_path(path).name == path.rpartition("/")[2]
    assert local_copy(path) == path
    with pytest.raises(io.UnsupportedOperation, match="is on this machine"):
        file_system(path).open(path)


def test_without_what_opens_stores_one_error_says_so(looked_up, monkeypatch):
    """In an installation without `sources/`."""
    monkeypatch.delitem(FILE_SYSTEMS._entries, "://", raising=False)
    monkeypatch.setattr(FILE_SYSTEMS, "_later", {})
    for ask in (as_path, local_copy, working_folder, lambda path: read_image(path)):
        with pytest.raises(
            InstallationError,
            match=r"^s3:// is not read .* lacks paddlevideo_fast\.sources: type  pip install",
        ):
            ask("s3://bucket/a.jpg")
    assert local_copy("a.jpg") == "a.jpg"


def test_a_user_adds_a_scheme(looked_up):
    @FILE_SYSTEMS.register("letters")
    class Letters(FileSystem):
        """Files whose content is their name."""

        is_local = False

        def read_unchecked(self, path, max_bytes):
            return path.partition("://")[2].encode()[:max_bytes]

    assert read_image("letters://abc") == b"abc"
    assert read_image("LETTERS://abc") == b"abc"
