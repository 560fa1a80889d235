"""OpenAI's error body, and Anthropic's."""

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


class Details(msgspec.Struct, frozen=True):
    """What machines read of an error: OpenAI's code and param."""

    error_code: str | None
    param: str | None


class AnthropicProblem(msgspec.Struct, frozen=True):
    """One of Anthropic's types of errors, for the status."""

    type: str
    message: str
    details: Details


class AnthropicError(msgspec.Struct, frozen=True):
    """The whole body of an error answer of /v1/messages, and the data of an error event there."""

    error: AnthropicProblem
    type: str = "error"
    request_id: str | None = None
