"""Is vLLM built as this plug-in expects, and what is replaced in it. Looked up in vLLM itself: its version says little.

Its parts are given by their dotted names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from pkgutil import resolve_name
from typing import Any

Function = Callable[..., Any]


def problem(wanted: Mapping[str, Collection[str]]) -> str:
    """What of vLLM is missing, in one sentence; "" if nothing is. wanted: of its parts, the attributes, fields or
    arguments that are read; a tuple has a function's first ones, in their order."""
    found = []
    for name, read in wanted.items():
        try:
            part = resolve_name(name)
        except (ImportError, AttributeError):
            found.append(f"there is no {name}")
            continue
        arguments = names_of(part)
        if isinstance(read, tuple) and arguments[: len(read)] != read:
            found.append(f"{name} begins with {', '.join(arguments[: len(read)])} in the place of {', '.join(read)}")
        elif missing := set(read) - set(arguments) - set(dir(part)):
            found.append(f"{name} has no {', '.join(sorted(missing))}")
    return f"this vLLM is built differently: {'; '.join(found)}" if found else ""


def names_of(part: Any) -> tuple[str, ...]:
    """Of its arguments; () where it has none, or can't say."""
    try:
        return tuple(inspect.signature(part).parameters) if callable(part) else ()
    except (TypeError, ValueError):
        return ()


def replace(ours: Mapping[str, Function], read: Mapping[str, Collection[str]]) -> None:
    """Replace these functions, once: all of them, or none. Ours are given vLLM's own first. read: what else is needed.

    Raises:
        AttributeError: something is missing.
    """
    if missing := problem({**dict.fromkeys(ours, ()), **read}):
        raise AttributeError(missing)
    for name, function in ours.items():
        where, _, attribute = name.rpartition(".")
        place = resolve_name(where)
        theirs = getattr(place, attribute)
        if not hasattr(theirs, "theirs"):
            setattr(place, attribute, around(theirs, function))


def around(theirs: Function, ours: Function) -> Function:
    """`ours`, which is given theirs first."""

    @functools.wraps(theirs)
    def replaced(*args: Any, **more: Any) -> Any:
        return ours(theirs, *args, **more)

    replaced.theirs = theirs  # type: ignore[attr-defined]
    return replaced


def arguments(function: Function, *args: Any, **more: Any) -> dict[str, Any]:
    """Of this call, by name, with the defaults of what is left out."""
    call = inspect.signature(function).bind(*args, **more)
    call.apply_defaults()
    return call.arguments
