"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """`lora_path`: a folder below the operator's. `load_inplace`: replace an adapter of the name. `model`: which of
    several models gets it."""

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None
    model: str | None = None


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """The name."""

    lora_name: str
    model: str | None = None


LOAD_REFUSED: dict[str, tuple[Any, ...]] = {"is_3d_lora_weight": (False, None)}
UNLOAD_REFUSED: dict[str, tuple[Any, ...]] = {"lora_int_id": (None,)}
