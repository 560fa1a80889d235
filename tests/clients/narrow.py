"""Loaded by schemathesis where requests shall reach the engine: of seventy fields drawn at random one is always out of
place."""

from __future__ import annotations

import random
from typing import Any

import schemathesis

ASKED = ("messages", "prompt", "input", "tokens")


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """What is asked, never empty, and three other fields; the model's name is left out."""
    if not isinstance(body, dict):
        return body
    others = sorted(body.keys() - {"model", *ASKED})
    kept = random.Random(repr(body)).sample(others, min(3, len(others)))
    return {name: body[name] for name in kept} | {name: body[name] or "abc" for name in ASKED if name in body}
