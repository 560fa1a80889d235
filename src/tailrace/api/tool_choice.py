"""Which tools the model may or must call: tool_choice, parallel_tool_calls, `strict` → a grammar in the model's tool
format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from tailrace.api.channels import Channels, reasoning_before
from tailrace.api.foreign_tools import REASONS, find_base
from tailrace.api.json_place import make_range_error
from tailrace.api.schema.structured import StructuredOutputs
from tailrace.api.structured import Constraint, check_no_options, constraint_of, to_grammar
from tailrace.errors import ParameterError, format_json
from tailrace.request.options import MAX_GRAMMAR, Grammar
from tailrace.text.tool_parsers import ToolFormat
from tailrace.text.tool_parsers.functions import NO_GRAMMARS, Function, functions_of
from tailrace.text.tool_parsers.grammar import forced_grammar, optional_grammar
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter
from tailrace.text.tool_parsers.harmony import HARMONY, harmony_grammar
from tailrace.text.tool_parsers.lark_source import LarkGrammar
from tailrace.text.tool_parsers.schemas import check_counts, check_depth

if TYPE_CHECKING:
    from tailrace.api.schema.chat import ChatRequest
    from tailrace.api.service import Service

FORMS = (
    'tool_choice must be "none", "auto", "required", {"type": "function", "function": {"name": …}}, '
    '{"type": "custom", "custom": {"name": …}} or '
    '{"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": […]}}'
)
UNENFORCED = "tools: strict has no effect, because no grammar of this model's calls is known (--tool-parser names one)"
WHITESPACE = 8  # characters in a row, as in options.Grammar


class ToolChoice(NamedTuple):
    """mode: "named" is one function by name. names: those that may be called, None is all. many: more than one call.
    custom: the functions that stand for custom tools → the Lark grammar of their text, if it has one."""

    mode: Literal["none", "auto", "required", "named"]
    names: tuple[str, ...] | None = None
    many: bool = True
    custom: Mapping[str, LarkGrammar | None] = NO_GRAMMARS

    @property
    def must(self) -> bool:
        """A call is forced."""
        return self.mode in ("required", "named")


ANY_TOOL = ToolChoice("auto")


def chat_grammar(
    service: Service,
    ask: ChatRequest,
    choice: ToolChoice,
    tools: list[dict[str, Any]] | None,
    channels: Channels,
    format_field: str = "response_format",
) -> tuple[Grammar | None, str]:
    """The grammar of the output and the field it came from; None without one. format_field: see
    structured.constraint_of.

    Raises:
        ParameterError: see structured.constraint_of, structured.check_no_options and `make_tool_constraint`.
    """
    options = ask.structured_outputs or StructuredOutputs()
    whitespace = WHITESPACE if options.whitespace is None else options.whitespace
    content = constraint_of(ask, format_field)
    wanted = make_tool_constraint(service, choice, tools, content, whitespace)
    if wanted is None:
        check_no_options(ask)
        return None, "grammar"
    of_calls = wanted is not content
    return to_grammar(ask, wanted, reasoning_before(service, ask, channels, of_calls)), wanted.field


def choice_of(wanted: Any, tools: Sequence[Any] | None, parallel: bool | None) -> ToolChoice:
    """A request's tool_choice, in the form of Chat or of Responses.

    Raises:
        ParameterError: the value has another form, needs tools but gets none, or names an unknown tool.
    """
    many = parallel is not False
    if wanted is None or wanted in ("none", "auto"):
        return ToolChoice(wanted or "auto", None, many)
    if not tools:
        raise ParameterError("tool_choice: there is no tool to call; give tools, or leave it out", "tool_choice")
    if wanted == "required":
        return ToolChoice("required", None, many)
    match wanted:
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": ("auto" | "required") as mode, "tools": [*allowed]},
        } | {"type": "allowed_tools", "mode": ("auto" | "required") as mode, "tools": [*allowed]} if allowed:
            return ToolChoice(mode, tuple(read_tool_name(tool, tools) for tool in allowed), many)
        case {"type": "allowed_tools"}:
            raise ParameterError(
                'tool_choice: allowed_tools need a "mode", "auto" or "required", and "tools" with one tool or more',
                "tool_choice",
            )
    return ToolChoice("named", (read_tool_name(wanted, tools),), many=False)


def read_tool_name(wanted: Any, tools: Sequence[Any]) -> str:
    """Return the name of the tool that a choice names.

    Raises:
        ParameterError: the value has another form, or there is no such tool.
    """
    match wanted:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            known = [part for tool in tools for part in (tool, tool.get("function")) if part]
        case {"type": "custom", "custom": {"name": str(name)}}:
            known = [part for tool in tools if (part := tool.get("custom"))]
        case {"type": str(kind)} if find_base(kind) in REASONS:
            raise ParameterError(f"tool_choice: there is no tool of type {format_json(kind)}", "tool_choice")
        case _:
            raise ParameterError(FORMS, "tool_choice")
    if all(part.get("name") != name for part in known):
        kind = "custom tool" if wanted["type"] == "custom" else "tool"
        raise ParameterError(f"tool_choice: there is no {kind} {format_json(name)}", "tool_choice")
    return name


def make_tool_constraint(
    service: Service,
    choice: ToolChoice,
    tools: list[dict[str, Any]] | None,
    content: Constraint | None,
    whitespace: int,
) -> Constraint | None:
    """Return the constraint of the tool choice, combined with the constraint of the content; None if there is neither.

    Raises:
        ParameterError: a call is forced, but the model's tool format is not known, or can't express it; or calls can't
            be told apart from this content.
    """
    only_strict = content is None and choice.many and choice.names is None
    free = service.tools is None and not choice.must and (service.template is None or only_strict)
    if choice.mode == "none" or not tools or free:
        return content
    if choice.must and content is not None:
        raise ParameterError(
            f"{content.field} and tool_choice both say what the output must be; give one of them", content.field
        )
    if not choice.must and only_strict and not any(map(is_strict, tools)):
        return None
    form = get_tool_format(service)
    functions = allowed_functions(functions_of(tools, choice.names, choice.must, choice.custom), choice)
    if choice.must:
        writer = GrammarWriter(functions, service.tokenizer, choice.many, whitespace)
        source = harmony_grammar(writer, True) if form is HARMONY else forced_grammar(form, writer)
        check_grammar_size(source, functions)
        return Constraint("tools", "lark", source)
    writer = GrammarWriter(functions, service.tokenizer, choice.many, whitespace)
    if content is None:
        source = optional_source(form, writer)
        check_grammar_size(source, functions)
        return Constraint("tools", "lark", source)
    if content.kind not in ("json_object", "json_schema"):
        raise ParameterError(
            f'{content.field}: together with tools it must be JSON; or give tool_choice "none"', content.field
        )
    schema = schema_of(content)
    return Constraint(content.field, "lark", optional_source(form, writer, schema))


def get_tool_format(service: Service) -> ToolFormat:
    """Return the format that grammars write. Raise ParameterError if the model has none."""
    if service.tools is None and service.template is not None:
        raise ParameterError(
            "tool_choice: no grammar follows from the checkpoint's response template, so calls can't be forced or "
            "limited (--tool-parser may name a format that has a grammar)",
            "tool_choice",
        )
    if service.tools is None:
        raise ParameterError(
            "tool_choice: how this model writes tool calls is not known (--tool-parser names it)", "tool_choice"
        )
    return service.tools


def check_grammar_size(source: str, functions: Sequence[Function]) -> None:
    """Raise ParameterError if the functions are too many, or their schemas too large, to be enforced in one answer."""
    if len(source) > MAX_GRAMMAR:
        name, size = max(((one.name, len(msgspec.json.encode(one.parameters))) for one in functions), key=itemgetter(1))
        raise ParameterError(
            f"tools: the {len(functions)} functions are too large to be enforced together: their rules take "
            f"{len(source)} of at most {MAX_GRAMMAR} characters. The largest schema is that of {format_json(name)}, "
            f"with {size} characters",
            "tools",
        )


def optional_source(tools: ToolFormat, writer: GrammarWriter, content: dict[str, Any] | None = None) -> str:
    """The grammar of an answer with optional calls. content: see grammar.optional_grammar."""
    if tools is HARMONY:
        return harmony_grammar(writer, False, content)
    return optional_grammar(tools, writer, content)


def schema_of(content: Constraint) -> dict[str, Any]:
    """The constraint of the content as a JSON schema.

    Raises:
        ParameterError: the schema can't be part of a grammar.
    """
    if not content.source:
        return {"type": "object"}
    try:
        schema = msgspec.json.decode(content.source)
    except RecursionError as error:
        raise ParameterError(f"{content.field}: {error}", content.field) from error
    except msgspec.ValidationError as error:  # a number that no double can be
        raise make_range_error(content.field, "") from error
    check_depth(schema, content.field, content.field)
    check_counts(schema, content.field, content.field)
    return schema


def is_strict(tool: dict[str, Any]) -> bool:
    """The tool is strict, in the form of Chat or of Responses."""
    function = tool.get("function")
    return tool.get("strict") is True or (isinstance(function, dict) and function.get("strict") is True)


def allowed_functions(functions: list[Function], choice: ToolChoice) -> list[Function]:
    """The functions that may be called."""
    if choice.names is None:
        return functions
    known = {function.name: function for function in functions}
    return [known[name] for name in dict.fromkeys(choice.names)]
