"""What commands print with `--json`."""

import json
from typing import Any


def entries_of(printed: str) -> list[dict[str, Any]]:
    """The object of each line; only a line feed ends one, since names hold other line breaks as they are."""
    return [json.loads(line) for line in printed.split("\n") if line]
