"""What the conversion knows of an architecture. Part of convert.py's process."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tailrace.models.gguf_readers import Reader
from tailrace.models.gguf_recipes import Change, Recipe


class Architecture(NamedTuple):
    """model: transformers' model_type. readers: of its fields, in order. fixed: settings that no field states. changes:
    of values. ways: to make a parameter of several tensors, by the end of its name. names: the architecture
    whose names of tensors it has, if the package gguf does not know it."""

    model: str
    readers: tuple[Reader, ...]
    fixed: Mapping[str, Any] = MappingProxyType({})
    changes: tuple[Change, ...] = ()
    ways: Mapping[str, tuple[Recipe, ...]] = MappingProxyType({})
    names: str = ""
