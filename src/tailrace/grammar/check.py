"""Checks of a grammar's source that need no library: whether it has the form of its kind."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from tailrace.errors import ParameterError, format_json
from tailrace.request.options import Grammar

MAX_DEPTH = 64  # of nested JSON
MAX_CHOICES = 10_000


class UnsupportedError(ValueError):
    """This grammar is not supported. The message says what, and where."""


@contextmanager
def shape_errors(kind: str) -> Iterator[None]:
    """Run code that reads a parsed source as if it had the right shape. An error caused by another shape is the
    client's, and becomes an UnsupportedError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise UnsupportedError(f"a {kind} of a shape it can't have ({type(error).__name__}: {error})") from error


def check_grammar(grammar: Grammar) -> None:
    """Raise ParameterError(param "grammar") unless the source has the form of its kind."""
    if "\0" in grammar.source:
        raise_grammar_error(f"a {grammar.kind} must not contain the character NUL")
    if grammar.kind == "json_object":
        if grammar.source:
            raise_grammar_error("a json_object has no source; a schema goes with json_schema")
    elif not grammar.source.strip():
        raise_grammar_error(f"a {grammar.kind} must not be empty")
    FORMS.get(grammar.kind, lambda _: None)(grammar.source)


def parse_json(source: str) -> Any:
    """Parse JSON. Raises ParameterError: not JSON (NaN and infinities are not), or nested deeper than MAX_DEPTH."""
    try:
        value = json.loads(source, parse_constant=lambda name: raise_grammar_error(f"{name} is not JSON"))
    except json.JSONDecodeError as error:
        raise_grammar_error(f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}")
    except RecursionError:
        raise_grammar_error(f"JSON nested deeper than {MAX_DEPTH}")
    except ValueError as error:  # an integer of thousands of digits
        if isinstance(error, ParameterError):
            raise
        raise_grammar_error(f"JSON with an integer of more than {sys.get_int_max_str_digits()} digits")
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise_grammar_error(f"JSON nested deeper than {MAX_DEPTH}")
        inner = [v.values() if isinstance(v, dict) else v for v in level if isinstance(v, (dict, list))]
        level, depth = [v for values in inner for v in values], depth + 1
    return value


def parse_schema(source: str) -> dict[str, Any]:
    """Return a JSON Schema as an object; `true` is {}. Raises ParameterError."""
    schema = parse_json(source)
    if schema is True:
        return {}
    if schema is False:
        raise_grammar_error("the schema false: no value validates")
    if not isinstance(schema, dict):
        raise_grammar_error(f"a schema must be a JSON object, got {format_json(schema)}")
    return schema


def parse_choice(source: str) -> list[str]:
    """Return the texts to choose from, without duplicates. Raises ParameterError."""
    texts = parse_json(source)
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise_grammar_error("a choice must be a JSON list of one or more texts, none of them empty")
    if len(texts) > MAX_CHOICES:
        raise_grammar_error(f"a choice must have at most {MAX_CHOICES} texts, got {len(texts)}")
    for text in texts:
        if "\0" in text:
            raise_grammar_error("a choice's texts must not contain the character NUL")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise_grammar_error("a choice's texts must be Unicode: half a surrogate pair was given")
    return list(dict.fromkeys(texts))


def parse_tag(source: str) -> dict[str, Any]:
    """Return a structural tag as an object. Raises ParameterError."""
    tag = parse_json(source)
    if not isinstance(tag, dict):
        raise_grammar_error(f"a structural tag must be a JSON object, got {format_json(tag)}")
    if not isinstance(tag.get("format"), dict) and not isinstance(tag.get("structures"), list):
        raise_grammar_error('a structural tag needs a "format", or "structures" and "triggers"')
    return tag


def check_regex(source: str) -> None:
    """Raise ParameterError if the last backslash escapes nothing: llguidance (1.9) would drop it."""
    if (len(source) - len(source.rstrip("\\"))) % 2:
        raise_grammar_error("a regex must not end in a backslash that escapes nothing")


FORMS = {"json_schema": parse_schema, "choice": parse_choice, "structural_tag": parse_tag, "regex": check_regex}


def raise_grammar_error(message: str) -> NoReturn:
    raise ParameterError(f"grammar: {message}", "grammar")
