"""Check that vLLM is built as this plug-in expects, and replace functions of vLLM.

The check reads vLLM itself, because its version says little. Dotted names identify vLLM's parts.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from pkgutil import resolve_name
from typing import Any

Function = Callable[..., Any]


def describe_missing(wanted: Mapping[str, Collection[str]]) -> str:
    """Return what vLLM lacks, in one sentence; "" if it lacks nothing.

    Args:
        wanted: part of vLLM → its attributes, fields or arguments that are read. A tuple lists a function's first
            arguments in order.
    """
    found = []
    for name, read in wanted.items():
        try:
            part = resolve_name(name)
        except (ImportError, AttributeError):
            found.append(f"there is no {name}")
            continue
        arguments = list_parameter_names(part)
        if isinstance(read, tuple) and arguments[: len(read)] != read:
            found.append(f"{name} begins with {', '.join(arguments[: len(read)])} in the place of {', '.join(read)}")
        elif missing := set(read) - set(arguments) - set(dir(part)):
            found.append(f"{name} has no {', '.join(sorted(missing))}")
    return f"this vLLM is built differently: {'; '.join(found)}" if found else ""


def list_parameter_names(part: Any) -> tuple[str, ...]:
    """Return the names of the part's arguments; () if it takes no arguments or has no known signature."""
    try:
        return tuple(inspect.signature(part).parameters) if callable(part) else ()
    except (TypeError, ValueError):
        return ()


def replace_functions(ours: Mapping[str, Function], read: Mapping[str, Collection[str]]) -> None:
    """Replace these functions once, either all or none. Each of ours gets vLLM's own first. read: other needed parts.

    Raises:
        AttributeError: something is missing.
    """
    if missing := describe_missing({**dict.fromkeys(ours, ()), **read}):
        raise AttributeError(missing)
    for name, function in ours.items():
        where, _, attribute = name.rpartition(".")
        place = resolve_name(where)
        theirs = getattr(place, attribute)
        if not hasattr(theirs, "theirs"):
            setattr(place, attribute, wrap_function(theirs, function))


def wrap_function(theirs: Function, ours: Function) -> Function:
    """Return `ours`, called with theirs as first argument."""

    @functools.wraps(theirs)
    def call_ours(*args: Any, **more: Any) -> Any:
        return ours(theirs, *args, **more)

    call_ours.theirs = theirs  # type: ignore[attr-defined]
    return call_ours


def bind_arguments(function: Function, *args: Any, **more: Any) -> dict[str, Any]:
    """Return the arguments of this call by name, with defaults for those left out."""
    call = inspect.signature(function).bind(*args, **more)
    call.apply_defaults()
    return call.arguments
