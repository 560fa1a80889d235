"""Warnings in an answer's headers: what was accepted and does not do what the client probably wants (RFC 7234, section
5.5)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.datastructures import MutableHeaders

PLAIN = re.compile(r"(?!\d)\w+(?:\.\w+|\[\d+\])*", re.ASCII)  # a name, or a place such as messages[0].content
WARNING = "warning"
MAX_NAMES, MAX_NAME = 8, 64  # that a warning holds, and characters of each


def write_warnings(headers: MutableHeaders, texts: Iterable[str]) -> None:
    """Write the warnings of a request. 299 is any persistent warning; the agent is this server."""
    for text in texts:
        headers.append(WARNING, f'299 tailrace "{text}"')


def list_names(names: Iterable[str]) -> str:
    """Return a client's names as a warning may hold them: a header holds plain words alone."""
    plain = [name for name in names if len(name) <= MAX_NAME and PLAIN.fullmatch(name)]
    return ", ".join(plain[:MAX_NAMES]) or "some names"
