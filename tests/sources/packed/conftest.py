from tests.loader.conftest import packed_folder  # noqa: F401
