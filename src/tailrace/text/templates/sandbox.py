"""Jinja's sandbox for chat templates, with quick access to what conversations consist of.

Jinja looks for an attribute before an entry of a dict, and asks of each attribute whether it is safe. Most of a
rendering's time went there. The answers for the types below are always the same.
"""

from __future__ import annotations

from typing import Any

from tailrace.base.extras import require_extra

with require_extra("text"):
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension
    from jinja2.runtime import LoopContext, Undefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

NO_SIMPLE_ATTRIBUTES = ("format", "format_map", "previtem", "nextitem")  # Jinja looks at their values


def list_safe_names(sample: object) -> frozenset[str]:
    """Return the attributes that the sandbox returns unchanged, for each object of the sample's type."""
    names, is_safe = dir(sample), ImmutableSandboxedEnvironment().is_safe_attribute
    return frozenset(name for name in names if name not in NO_SIMPLE_ATTRIBUTES and is_safe(sample, name, None))


DICT_NAMES = frozenset(dir(dict))
SAFE_NAMES = {type(sample): list_safe_names(sample) for sample in ("", {}, [], LoopContext([], Undefined))}


class QuickSandbox(ImmutableSandboxedEnvironment):
    """The sandbox. `getattr` returns what Jinja's returns."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in SAFE_NAMES.get(kind, ()):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


class GenerationTag(Extension):
    """`{% generation %}` marks the model's output, for training. Here its body is rendered as usual."""

    tags = {"generation"}  # noqa: RUF012, as in Jinja

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class PlainNamespace(Namespace):
    """A namespace without names that lead to Python's internals."""

    def __init__(*args: Any, **values: Any) -> None:
        for name in (given := dict(*args[1:], **values)):
            check_name(name)
        Namespace.__init__(args[0], given)

    def __setitem__(self, name: str, value: Any) -> None:
        check_name(name)
        super().__setitem__(name, value)


def check_name(name: Any) -> None:
    """Raise SecurityError for a name in a namespace that begins with an underscore."""
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore, got {name!r}")
