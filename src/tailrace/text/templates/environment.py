"""Compilation of a template to a program, in the environment that templates expect: transformers' names and filters, in
Jinja's sandbox, within limits. Knows nothing of messages.

Rebuilt from the behaviour of transformers 5 (`utils/chat_template_utils.py`), whose output it must equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from tailrace.base.extras import require_extra
from tailrace.errors import ModelLoadError
from tailrace.text.templates.limits import CALL, Budget, TemplateLimitError, check_operands, check_value_length

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

BUDGET = " budget"  # the space keeps these names out of templates
COUNTED, CHECKED = " counted", " checked"
FILE = "<template>"  # Jinja's name for a template's frames in tracebacks
WIDTHS = 1_000_000  # largest width to which text may be padded


class TemplateRefusalError(Exception):
    """A template's own refusal (`raise_exception`). Its message is meant for the caller."""


class TemplateProgram:
    """A compiled template.

    Attributes:
        variables: the names that it reads and does not set itself, without Jinja's own.
        constants: the string constants in it.
    Raises:
        ModelLoadError: Jinja can't read the template. `where` names it in the message.
        MissingExtraError: Jinja is not installed.
    """

    def __init__(self, source: str, where: str = "the chat template") -> None:
        with require_extra("text"):
            from jinja2 import meta, nodes
            from jinja2.exceptions import TemplateError
        environment = _make_environment()
        self.source = source
        try:
            tree = environment.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(tree))
            self.constants = frozenset(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
            _add_limits(tree)
            code: Any = environment.compile(tree, filename=FILE)
            self._template = environment.template_class.from_code(environment, code, environment.make_globals(None))
        # SyntaxError: a statement at a place where Python does not allow it, such as a break in a block
        except (TemplateError, SyntaxError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            place = f"line {line}: " if line else ""
            raise ModelLoadError(f"{where} can't be read: {place}{error or type(error).__name__}") from error

    def run(self, values: Mapping[str, Any]) -> str:
        """Return the text.

        Raises:
            Exception: any exception of the template. `describe_failure` describes it.
        """
        return self._template.render({**values, BUDGET: Budget()})


def describe_failure(error: Exception) -> str:
    """Describe the failure of a rendering: by the template's own message, or by Python's with the line."""
    if isinstance(error, TemplateRefusalError):
        return str(error)
    line, trace = 0, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == FILE else line
        trace = trace.tb_next
    place = f"line {line} of the template: " if line else ""
    kind = "" if isinstance(error, TemplateLimitError) else f"{type(error).__name__}: "
    return f"{place}{kind}{error}"


@cache
def _make_environment() -> ImmutableSandboxedEnvironment:
    """Return the sandbox, made once. (More than 40 lines: Jinja is an extra, so its subclasses are made here.)"""
    with require_extra("text"):
        from jinja2 import nodes, pass_context
        from jinja2.exceptions import SecurityError
        from jinja2.ext import Extension, loopcontrols
        from jinja2.runtime import LoopContext
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.utils import Namespace

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
                _check_name(name)
            Namespace.__init__(args[0], given)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            super().__setitem__(name, value)

    def _check_name(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace takes no name that begins with an underscore, got {name!r}")

    class TemplateEnvironment(ImmutableSandboxedEnvironment):
        """The sandbox, with every call counted and every operator measured."""

        intercepted_binops = frozenset({"+", "*", "**", "%"})

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, as in Jinja
            __context.parent[BUDGET].spend(CALL + (len(args[0]) if isinstance(__obj, LoopContext) and args else 0))
            if isinstance(getattr(__obj, "__self__", None), str):
                for value in args:
                    if isinstance(value, int) and value > WIDTHS:
                        raise TemplateLimitError(f"it asks for a width of {value}")
            return super().call(__context, __obj, *args, **kwargs)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            check_operands(operator, left, right)
            return super().call_binop(context, operator, left, right)

    environment = TemplateEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    environment.filters["tojson"] = to_json
    environment.filters[COUNTED] = pass_context(lambda context, items: context.parent[BUDGET].count_items(items))
    environment.filters[CHECKED] = check_value_length
    environment.globals |= {
        "raise_exception": _raise_refusal,
        "strftime_now": lambda format: datetime.now().strftime(format),
        "dict": _Dict(),
        "namespace": PlainNamespace,
    }
    return environment


def _add_limits(tree: Any) -> None:
    """Count the items of loops, and measure values that get a name."""
    with require_extra("text"):
        from jinja2 import nodes

    for loop in list(tree.find_all(nodes.For)):
        loop.iter = _apply_filter(loop.iter, COUNTED)
    for assignment in list(tree.find_all(nodes.Assign)):
        assignment.node = _apply_filter(assignment.node, CHECKED)


def _apply_filter(node: Any, name: str) -> Any:
    with require_extra("text"):
        from jinja2 import nodes

    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


def to_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `x` as JSON: the filter `tojson`, with transformers' options. Jinja's own filter escapes HTML."""
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
