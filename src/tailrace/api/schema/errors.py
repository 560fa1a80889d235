"""OpenAI's error body."""

from __future__ import annotations

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """`param` names the field at fault; `code` is for machines, `message` for people."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The whole body of an error answer, and the data of an error event in a stream."""

    error: Problem
