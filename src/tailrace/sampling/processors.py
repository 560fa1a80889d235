"""Custom logits processors by name. An operator registers functions where the engine starts; requests only name them: no code ever
comes over the wire.

A processor is called with (row, tokens, **arguments): row float32 [V] on the CPU, to be changed in place; tokens, the ids of prompt
and output so far, not to be changed. It must depend on nothing else, or neighbours would matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.errors import ParameterError

Processor = Callable[..., Any]
REGISTERED: dict[str, Processor] = {}


def register(name: str, processor: Processor) -> None:
    """Make `processor` available to requests as `name`.

    Raises:
        ValueError: the name is taken.
    """
    if name in REGISTERED:
        raise ValueError(f"a processor named {name!r} is registered already")
    REGISTERED[name] = processor


def find(name: str) -> Processor:
    """The processor of this name.

    Raises:
        ParameterError: there is none.
    """
    if name not in REGISTERED:
        known = ", ".join(sorted(REGISTERED)) or "none is registered"
        raise ParameterError(f"processors: there is no {name!r} on this server ({known})", "processors")
    return REGISTERED[name]
