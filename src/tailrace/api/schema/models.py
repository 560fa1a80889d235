"""Models, as documented by OpenAI; max_model_len is an addition."""

from __future__ import annotations

from typing import Literal

import msgspec


class Model(msgspec.Struct):
    """One served model."""

    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "tailrace"


class ModelList(msgspec.Struct):
    """All of them."""

    data: list[Model]
    object: Literal["list"] = "list"
