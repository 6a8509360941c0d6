from tests.engine.conftest import make_trainer  # noqa: F401
