"""The quick sandbox answers as Jinja's does."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tailrace.text.templates.sandbox import QuickSandbox

PLAIN, QUICK = ImmutableSandboxedEnvironment(), QuickSandbox()
MORE = ("role", "content", "nope", "_nope", "__class__", "items", "0", "format", "format_map", "previtem", "mro")


class OwnDict(dict):
    extra = "e"


def make_loop() -> LoopContext:
    loop = LoopContext([1, 2, 3], Undefined)
    next(loop)
    return loop


OBJECTS: list[Any] = [
    {"role": "user", "items": 5, "_nope": 1, "__class__": 2, "content": None, "format": "{}"},
    *({}, "text", "", [1, 2], (1,), {1}, make_loop(), 5, None, True, Undefined(name="u"), OwnDict(role="r"), dict, str),
    *("{}".format, make_loop, len),
]


def describe(sandbox: ImmutableSandboxedEnvironment, obj: Any, name: str) -> Any:
    """What a template can learn: the value, a call's result, or the error."""
    try:
        value = sandbox.getattr(obj, name)
        if isinstance(value, Undefined):
            return "undefined", value._undefined_message, value._undefined_name, value._undefined_exception
        return type(value).__name__, getattr(value, "__name__", repr(value))
    except (SecurityError, Exception) as error:
        return type(error), str(error)


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: repr(type(obj).__name__))
def test_each_attribute_is_what_jinja_returns(obj: Any):
    for name in {*MORE, *dir(obj), *dir(dict), *dir(str), *dir(LoopContext)}:
        assert describe(QUICK, obj, name) == describe(PLAIN, obj, name), name
