"""GET /v1/models."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class ModelStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """As llama.cpp's router has it. `value`: loaded, sleeping, loading or unloaded. `progress`: the share of a load
    that is done."""

    value: str
    progress: float | None = None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One served model. `max_model_len` (prompt and output together) is null until the engine is ready. `parent`: of an
    adapter, the model that it changes. `sampling_defaults`: fields of a request that leaves them out.
    `reasoning_parser`, `tool_parser`: what reads the thoughts and the calls of its answers, by the names of the flags;
    `tool_grammar`: calls can be forced. `status`: of a model that may sleep."""

    id: str
    created: int
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "tailrace"
    parent: str | UnsetType = UNSET
    sampling_defaults: dict[str, float | int] = {}
    reasoning_parser: str = "none"
    tool_parser: str = "none"
    tool_grammar: bool = False
    status: ModelStatus | UnsetType = UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    data: list[ModelCard]
    object: str = "list"
