"""A grammar's source, by kind, in llguidance's own form: SOURCES."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tailrace.base.extras import require_extra
from tailrace.grammar.check import UnsupportedError, parse_choice, parse_schema, parse_tag
from tailrace.grammar.gbnf import as_lark as gbnf_as_lark
from tailrace.grammar.schema import patterns_of, translate_schema
from tailrace.grammar.tags import as_lark as tag_as_lark
from tailrace.grammar.tags import list_schema_contents, normalize_tag
from tailrace.request.options import Grammar

with require_extra("grammar"):
    import llguidance
    from llguidance import LLMatcher

# parts of a Lark grammar in which %json is plain text; and %json itself, up to its JSON
LARK = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*|(?P<json>%json\s*)')
BLANKS = ("whitespace_flexible", "whitespace_pattern")


def disable_forcing(text: str) -> str:
    """Switch off the library's forcing. Where only one text can come next, its masks would allow only the tokens that
    the tokenizer would choose, although it accepts others. With this option a mask allows all accepted tokens."""
    parts = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
    parts[0]["name"] = "all"
    top = {"name": "top", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: @all'}
    return json.dumps({"grammars": [top, *parts]})


def make_json_options(whitespace: int) -> Any:
    """Return how the library writes JSON. No \\u escapes and no \\/: with them a name could be spelled in a way that
    the schema forbids."""
    form: dict[str, Any] = {
        "whitespace_flexible": whitespace > 0,
        "item_separator": ",",
        "key_separator": ":",
        "coerce_one_of": False,
        "lenient": False,
        "json_allowed_escapes": 'nrbtf\\"',
    }
    return form | ({"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{0,{whitespace}}}"} if whitespace else {})


def json_schema(grammar: Grammar) -> str:
    schema = exact_schema(parse_schema(grammar.source or '{"type": "object"}'))
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=make_json_options(grammar.whitespace))


def exact_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema in the part of the language that the library enforces exactly: see grammar/schema.py. Raises
    UnsupportedError."""
    whole = translate_schema(schema)
    if names := [{"type": "string", "pattern": pattern} for pattern in patterns_of(whole)]:
        # The library checks only that values exist. A name that can't be spelled would be a dead end after the comma.
        names_grammar = LLMatcher.grammar_from_json_schema(
            json.dumps({"type": "array", "prefixItems": names, "minItems": len(names)})
        )
        if complaints := LLMatcher.validate_grammar(names_grammar):
            raise UnsupportedError(f"patternProperties: {complaints}"[:500])
    return whole


class JsonPart(NamedTuple):
    """A %json part of a Lark grammar: the field that it is for ("": not said), its exact schema, and where its JSON
    stands."""

    field: str
    schema: dict[str, Any]
    begin: int
    end: int


def json_parts(source: str) -> Iterator[JsonPart]:
    """Yield the %json parts of a Lark grammar. Of their own options only those on white space are kept."""
    at = 0
    for found in LARK.finditer(source):
        if found.lastgroup != "json" or found.start() < at:
            continue
        try:
            schema, at = json.JSONDecoder().raw_decode(source, found.end())
        except ValueError as error:
            raise UnsupportedError(f"no JSON after %json: {error}") from error
        asked = schema.get("x-guidance") if isinstance(schema, dict) else None
        asked = asked if isinstance(asked, dict) else {}
        blanks, field = {key: asked[key] for key in BLANKS if key in asked}, str(asked.get("field", ""))
        try:
            whole = exact_schema(parse_schema(source[found.end() : at]))
        except UnsupportedError as error:
            raise UnsupportedError(f"{field}: {error}" if field else str(error)) from error
        form = make_json_options(0 if blanks.get("whitespace_flexible") is False else 1) | blanks
        yield JsonPart(field, {**whole, "x-guidance": form}, found.end(), at)


def rewrite_lark(source: str) -> str:
    """A Lark grammar with its %json parts made exact."""
    texts, at = [], 0
    for part in json_parts(source):
        texts += [source[at : part.begin], json.dumps(part.schema)]
        at = part.end
    return LLMatcher.grammar_from_lark("".join([*texts, source[at:]]))


def write_choice(grammar: Grammar) -> str:
    """Return the choice as one terminal, so that the lexer sees all texts at once."""
    texts = (json.dumps(text) for text in parse_choice(grammar.source))
    return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(texts))


def structural_tag(grammar: Grammar) -> str:
    tag = normalize_tag(parse_tag(grammar.source), grammar.whitespace)
    for content in list_schema_contents(tag):
        content["json_schema"] = exact_schema(content["json_schema"])
    return llguidance.grammar_from("lark", tag_as_lark(tag, make_json_options(grammar.whitespace)))


SOURCES = {
    "json_object": json_schema,
    "json_schema": json_schema,
    "regex": lambda grammar: LLMatcher.grammar_from_regex(grammar.source),
    "choice": write_choice,
    "ebnf": lambda grammar: LLMatcher.grammar_from_lark(gbnf_as_lark(grammar.source)),
    "lark": lambda grammar: rewrite_lark(grammar.source),
    "structural_tag": structural_tag,
}
