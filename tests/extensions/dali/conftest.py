"""What the extension warns of."""

import pytest

from paddlevideo_fast.extensions.dali import extension


@pytest.fixture
def warnings(monkeypatch):
    """Its warnings, as if the process had just started."""
    seen: list[str] = []
    monkeypatch.setattr(extension.logger, "log", lambda level, text: seen.append(text))
    return seen
