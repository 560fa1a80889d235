"""Custom logits processors by name. An operator registers functions when the engine starts. Requests only name them: no
code ever comes over the network.

A processor is called with (row, tokens, **arguments). `row` is float32 [V] on the CPU. The processor changes it in
place, or returns another such tensor as the result. `tokens` has the ids of prompt and output so far. All arguments are
copies for this call. The result must depend on nothing else, or it would depend on other requests. If a processor
raises, or returns anything else, only the calling request fails.

A processor with a true attribute `keeps_argmax` never changes which logit is the largest. It is not called if the
largest logit decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from tailrace.errors import ConfigError, ParameterError, format_json

Processor = Callable[..., Any]
REGISTERED: dict[str, Processor] = {}


def register(name: str, processor: Processor) -> None:
    """Make `processor` available to requests as `name`.

    Raises:
        ParameterError: (a ValueError) the name is taken or malformed, or the processor can't be called.
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ParameterError(f"name must be a text that can be printed, got {name!r:.100}", "name")
    if not callable(processor):
        raise ParameterError(f"processor must be a function, got {type(processor).__name__}", "processor")
    if name in REGISTERED:
        raise ParameterError(f"name: a processor named {name!r} is registered already", "name")
    REGISTERED[name] = processor


def load_processors(spec: str) -> None:
    """Register the processors of a list "name=package.module:function, …".

    Raises:
        ConfigError: the list has another form, or a function does not exist.
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
    """Return the processor of this name.

    Raises:
        ParameterError: no processor has this name.
    """
    if name not in REGISTERED:
        known = ", ".join(sorted(REGISTERED)) or "none is registered"
        raise ParameterError(f"processors: there is no {format_json(name)} on this server ({known})", "processors")
    return REGISTERED[name]


def keep_argmax(names: Iterable[str]) -> bool:
    """Return whether all of these processors keep the argmax."""
    return all(getattr(find_processor(name), "keeps_argmax", False) is True for name in names)
