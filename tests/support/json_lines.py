"""What commands print with `--json`."""

import json
from typing import Any


def entries_of(printed: str) -> list[dict[str, Any]]:
    """The object of each line."""
    return [json.loads(line) for line in printed.splitlines()]
