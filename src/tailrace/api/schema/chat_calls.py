"""Tool calls of a chat, whole and streamed."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class FunctionCall(msgspec.Struct, frozen=True):
    """`arguments`: JSON, as the model wrote it."""

    name: str
    arguments: str


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of the arguments; the name, in a call's first delta."""

    name: str | UnsetType = UNSET
    arguments: str


class CustomCall(msgspec.Struct, frozen=True):
    """A call of a custom tool. `input`: the text that the model wrote."""

    name: str
    input: str


class CustomDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of the input; the name, in a call's first delta."""

    name: str | UnsetType = UNSET
    input: str


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of a tool call. The first of each has id, type and name, and no arguments yet. The official client's
    types know no `custom` in streams; the vendor's server sends it."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class AnswerToolCall(msgspec.Struct, frozen=True):
    """One tool call of a full answer: `function` or `custom`, as `type` says."""

    id: str
    function: FunctionCall | UnsetType = UNSET
    type: str = "function"
    custom: CustomCall | UnsetType = UNSET
