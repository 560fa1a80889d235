"""Compilation of a template, in the environment that templates expect: transformers' names and filters, in Jinja's
sandbox. Only the process for templates runs it (worker.py). Knows nothing of messages and of limits.

Rebuilt from the behaviour of transformers 5 (`utils/chat_template_utils.py`), whose output it must equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from tailrace.base.extras import require_extra

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

PLAIN_JSON = json.JSONEncoder(ensure_ascii=False)  # as most templates write tools; json.dumps makes one per call
FILE = "<template>"  # Jinja's name for a template's frames in tracebacks


class TemplateRefusalError(Exception):
    """A template's own refusal (`raise_exception`). Its message is meant for the caller."""


class CompiledTemplate:
    """A compiled template.

    Attributes:
        variables: the names that it reads and does not set itself, without Jinja's own.
        constants: the string constants in it.
    Raises:
        Exception: Jinja can't read the template. `describe_unreadable` describes it.
        MissingExtraError: Jinja is not installed.
    """

    def __init__(self, source: str) -> None:
        environment, (meta, nodes) = make_environment(), import_jinja()
        tree = environment.parse(source)
        self.variables = sorted(meta.find_undeclared_variables(tree))
        self.constants = sorted({node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)})
        code: Any = environment.compile(tree, filename=FILE)
        self._template = environment.template_class.from_code(environment, code, environment.make_globals(None))

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the text.

        Raises:
            Exception: any exception of the template. `describe_failure` describes it.
        """
        return self._template.render(values)


def describe_unreadable(error: BaseException) -> str:
    """Describe why a template can't be compiled, with the line if it is known."""
    line = getattr(error, "lineno", None)
    return f"{f'line {line}: ' if line else ''}{error or type(error).__name__}"


def describe_failure(error: BaseException) -> str:
    """Describe the failure of a rendering: by the template's own message, or by Python's with the line."""
    if isinstance(error, TemplateRefusalError):
        return str(error)
    line, trace = 0, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == FILE else line
        trace = trace.tb_next
    return f"{f'line {line} of the template: ' if line else ''}{type(error).__name__}: {error}"


@cache
def import_jinja() -> tuple[Any, Any]:
    """Return the modules `meta` and `nodes`, looked for once: later the process may list no folders."""
    with require_extra("text"):
        from jinja2 import meta, nodes
    return meta, nodes


@cache
def make_environment() -> ImmutableSandboxedEnvironment:
    """Return the sandbox, made once."""
    from tailrace.text.templates.sandbox import GenerationTag, PlainNamespace, QuickSandbox

    extensions = [GenerationTag, "jinja2.ext.loopcontrols"]
    environment = QuickSandbox(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = to_json
    environment.globals |= {
        "raise_exception": _raise_refusal,
        "strftime_now": lambda format: datetime.now().strftime(format),
        "dict": _Dict(),
        "namespace": PlainNamespace,
    }
    return environment


def to_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `x` as JSON: the filter `tojson`, with transformers' options. Jinja's own filter escapes HTML."""
    if not ensure_ascii and indent is None and separators is None and not sort_keys:
        return PLAIN_JSON.encode(x)
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_refusal(message: str) -> None:
    raise TemplateRefusalError(message)


class _Dict:
    """`dict` for templates: a call, and `fromkeys`."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """A dict with these keys."""
        return dict.fromkeys(*args)
