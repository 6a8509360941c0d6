"""Fixtures of other tests that tests of stores have, too."""

from tests.modeling.conftest import make_model  # noqa: F401  a fixture
from tests.support.runs import *  # noqa: F403  fixtures
from tests.test_extras import installed  # noqa: F401  a fixture
