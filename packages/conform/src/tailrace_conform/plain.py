"""Values of requests and answers, as reasons show them: in JSON's words, never in Python's."""

from __future__ import annotations

import json
from typing import Any

MOST = 200  # characters


def quoted(value: Any) -> str:
    """A value as JSON writes it, cut after MOST characters; what can't be printed as escapes. Bytes are shown as the
    text that they are."""
    text = json.dumps(readable(value), ensure_ascii=False)
    text = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
    return text if len(text) <= MOST else text[:MOST] + "…"


def readable(value: Any) -> Any:
    """The value with all bytes as texts, also those within lists."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple | set | frozenset):
        return [readable(one) for one in value]
    return value


def listed(values: Any) -> str:
    """Values with commas between."""
    return ", ".join(map(quoted, values)) or "none"
