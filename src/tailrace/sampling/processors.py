"""Custom logits processors by name. An operator registers functions where the engine starts; requests only name them:
no code ever comes over the wire.

A processor is called with (row, tokens, **arguments): row float32 [V] on the CPU, to be changed in place, unless it
returns another such tensor, which takes its place; tokens, the ids of prompt and output so far. All are its own copies.
It must depend on nothing else, or neighbours would matter. One that raises, or returns anything else, fails the request
for which it was called.

One whose attribute `keeps_argmax` is true says that the largest logit stays the largest: it is not called where that
one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from tailrace.errors import ConfigError, ParameterError

Processor = Callable[..., Any]
REGISTERED: dict[str, Processor] = {}


def register(name: str, processor: Processor) -> None:
    """Make `processor` available to requests as `name`.

    Raises:
        ParameterError: (a ValueError) the name is taken or none, or it can't be called.
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ParameterError(f"name must be a text that can be printed, got {name!r:.100}", "name")
    if not callable(processor):
        raise ParameterError(f"processor must be a function, got {type(processor).__name__}", "processor")
    if name in REGISTERED:
        raise ParameterError(f"name: a processor named {name!r} is registered already", "name")
    REGISTERED[name] = processor


def load_processors(spec: str) -> None:
    """Register what "name=package.module:function, …" says.

    Raises:
        ConfigError: it says something else, or what it names is not there.
    """
    for entry in filter(None, (part.strip() for part in spec.split(","))):
        name, _, target = entry.partition("=")
        module, _, function = target.partition(":")
        if not (name and module and function):
            raise ConfigError(f"model.processors must hold entries like name=package.module:function, got {entry!r}")
        try:
            register(name.strip(), getattr(import_module(module.strip()), function.strip()))
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"model.processors: {entry!r} can't be had: {error}") from error


def find_processor(name: str) -> Processor:
    """The processor of this name.

    Raises:
        ParameterError: there is none.
    """
    if name not in REGISTERED:
        known = ", ".join(sorted(REGISTERED)) or "none is registered"
        raise ParameterError(f"processors: there is no {name!r} on this server ({known})", "processors")
    return REGISTERED[name]


def keep_argmax(names: Iterable[str]) -> bool:
    """All of these say so."""
    return all(getattr(find_processor(name), "keeps_argmax", False) is True for name in names)
