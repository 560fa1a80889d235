"""Structured output: the fields of OpenAI, vLLM, SGLang and llama.cpp → one Grammar, and the field that asked for it.

Checks the form of the fields only. The engine compiles the grammar and finds out whether it can be served.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tailrace.api.error_handlers import of_json, rename_grammar_error
from tailrace.api.schema.structured import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    StructuredOutputs,
    TextFormat,
)
from tailrace.errors import ParameterError, format_json
from tailrace.request.options import MAX_GRAMMAR, Grammar, GrammarKind

if TYPE_CHECKING:
    from tailrace.api.schema.common import GenerateRequest

# the language of a grammar shows in how its first rule is defined
EBNF = re.compile(r"^[ \t]*root\s*::=", re.MULTILINE)
LARK = re.compile(r"^[ \t]*\??start[ \t]*(\[[^\]\n]*\][ \t]*)?:(?!:)", re.MULTILINE)

BACKENDS = ("auto", "llguidance", "guidance")  # names of one library; the last is vLLM's name for it


class Constraint(NamedTuple):
    """One constraint: the field it came in, and the kind and source of its Grammar."""

    field: str
    kind: GrammarKind
    source: str = ""


# ---- one field's value → the constraint, if it is one


def read_schema(field: str, value: dict[str, Any] | str) -> Constraint:
    """A JSON schema, as an object or as text."""
    return Constraint(field, "json_schema", json_object(field, value))


def any_object(field: str, value: bool) -> Constraint | None:
    """Any JSON object, if true."""
    return Constraint(field, "json_object") if value else None


def read_regex(field: str, value: str) -> Constraint:
    """A pattern of the whole output."""
    return Constraint(field, "regex", require_text(field, value))


def read_choice(field: str, value: list[str]) -> Constraint:
    """One of these texts."""
    if not value or not all(value):
        raise ParameterError(f"{field} must be a list of one or more non-empty strings", field)
    return Constraint(field, "choice", in_json(value))


def read_ebnf(field: str, value: str) -> Constraint:
    """A grammar in GBNF."""
    return Constraint(field, "ebnf", require_text(field, value))


def read_gbnf(field: str, value: str) -> Constraint | None:
    """llama.cpp's field; its clients send an empty one where they mean none."""
    return read_ebnf(field, value) if value else None


def read_grammar(field: str, value: str) -> Constraint:
    """A grammar in EBNF or Lark."""
    if EBNF.search(value):
        return Constraint(field, "ebnf", value)
    if LARK.search(value):
        return Constraint(field, "lark", value)
    raise ParameterError(
        f"{field} must define either root ::= … (then it is EBNF as in GBNF) or start: … (then it is Lark)", field
    )


def structural_tag(field: str, value: dict[str, Any] | str) -> Constraint:
    """xgrammar's structural tag, as an object or as text."""
    return Constraint(field, "structural_tag", json_object(field, value))


def response_format(field: str, value: ResponseFormat) -> Constraint | None:
    """OpenAI's field."""
    match value:
        case TextFormat():
            return None
        case JsonObjectFormat(schema=None):
            return Constraint(field, "json_object")
        case JsonObjectFormat():
            return read_schema(field, value.schema or {})
        case JsonSchemaFormat():
            return read_schema(field, schema_within(field, value))
    if (value.format is None) == (value.structures is None) or (value.structures is None) != (value.triggers is None):
        raise ParameterError(f'{field}: a structural_tag needs either "format", or "structures" and "triggers"', field)
    return structural_tag(field, msgspec.to_builtins(value))


def schema_within(field: str, value: JsonSchemaFormat) -> dict[str, Any]:
    """Return the schema of a format, from one of its two places.

    Raises:
        ParameterError: the schema is missing, or the two places have different schemas.
    """
    inner = value.json_schema.schema if value.json_schema is not None else None
    if inner is not None and value.schema not in (None, inner):
        raise ParameterError(f"{field}.schema and {field}.json_schema are two schemas; give one", f"{field}.schema")
    found = value.schema if inner is None else inner
    if found is None:
        raise ParameterError(f"{field}.json_schema: required, but missing", f"{field}.json_schema")
    return found


Reader = Callable[[str, Any], Constraint | None]
FIELDS: dict[str, Reader] = {
    "response_format": response_format,
    # vLLM's
    "guided_json": read_schema,
    "guided_json_object": any_object,
    "guided_regex": read_regex,
    "guided_choice": read_choice,
    "guided_grammar": read_grammar,
    "structural_tag": structural_tag,
    # llama.cpp's and SGLang's
    "grammar": read_gbnf,
    "json_schema": read_schema,
    "regex": read_regex,
    "ebnf": read_ebnf,
}
PARTS: dict[str, Reader] = {
    "json": read_schema,
    "json_object": any_object,
    "regex": read_regex,
    "choice": read_choice,
    "grammar": read_grammar,
    "structural_tag": structural_tag,
}


def constraint_of(ask: GenerateRequest, format_field: str = "response_format") -> Constraint | None:
    """Return the constraint that the request gives. format_field: the client's name of response_format.

    Raises:
        ParameterError: naming the field; or two constraints, naming both; or a library that is not here.
    """
    check_backends(ask)
    found = list(iter_constraints(ask, format_field))
    if len(found) > 1:
        first, second = found[0].field, found[1].field
        text = f"{second} and {first} both say what the output must be; give one of them"
        raise ParameterError(text, second, mentions=[first])
    return found[0] if found else None


def iter_constraints(ask: GenerateRequest, format_field: str) -> Iterator[Constraint]:
    """All constraints of the request."""
    for name, read in FIELDS.items():
        value, field = getattr(ask, name, None), format_field if name == "response_format" else name
        if value is not None and (one := read(field, value)) is not None:
            yield one
    for name, read in PARTS.items():
        value = getattr(ask.structured_outputs, name, None)
        if value is not None and (one := read(f"structured_outputs.{name}", value)) is not None:
            yield one


def check_no_options(ask: GenerateRequest) -> None:
    """Refuse options of structured output in a request without a constraint. The backend "auto" is vLLM's default, and
    no option.

    Raises:
        ParameterError: there are options.
    """
    options, field = ask.structured_outputs or StructuredOutputs(), "structured_outputs"
    given = any(option is not None for option in (options.backend, options.whitespace, options.close_in_time))
    if not given and ask.guided_decoding_backend not in (None, "auto"):
        given, field = True, "guided_decoding_backend"
    if given:
        raise ParameterError(f"{field}: options without a constraint have no effect", field)


def to_grammar(
    ask: GenerateRequest,
    wanted: Constraint,
    free: Mapping[str, Any] | None = None,
) -> Grammar:
    """The constraint with the request's options. free: fields of Grammar about the text before it.

    Raises:
        ParameterError: it is too long.
    """
    options = ask.structured_outputs or StructuredOutputs()
    chosen = {"whitespace": options.whitespace, "close_in_time": options.close_in_time}
    more: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    more |= free or {}
    try:
        return Grammar(kind=wanted.kind, source=wanted.source, **more)
    except ParameterError as error:
        raise rename_grammar_error(str(error), wanted.field) from error


def check_backends(ask: GenerateRequest) -> None:
    """Raise ParameterError if a request names a library that is not installed."""
    options = ask.structured_outputs or StructuredOutputs()
    named = {"guided_decoding_backend": ask.guided_decoding_backend, "structured_outputs.backend": options.backend}
    for field, name in named.items():
        if name is not None and name not in BACKENDS:
            raise ParameterError(
                f"{field}: there is no backend {format_json(name)} here; there are {', '.join(BACKENDS)}", field
            )


# ---- texts


def require_text(field: str, value: str) -> str:
    """The text, which must not be empty."""
    if not value.strip():
        raise ParameterError(f"{field} must be a non-empty string", field)
    return value


def json_object(field: str, value: dict[str, Any] | str) -> str:
    """A JSON object as text."""
    if isinstance(value, dict):
        return in_json(value)
    if len(value) > MAX_GRAMMAR:
        raise ParameterError(f"{field} must have at most {MAX_GRAMMAR} characters, got {len(value)}", field)
    try:
        msgspec.json.decode(value, type=msgspec.Raw)  # checked, but not decoded: that is the compiler's work
    except (msgspec.DecodeError, RecursionError) as error:
        reason = of_json(error, value.encode(errors="replace"))
        raise ParameterError(f"{field} must be a JSON object, or one as a string: {reason}", field) from error
    if not value.lstrip().startswith("{"):
        raise ParameterError(f"{field} must be a JSON object, or one as a string, got {format_json(value)}", field)
    return value


def in_json(value: Any) -> str:
    """A value as JSON text."""
    return msgspec.json.encode(value).decode()
