"""A grammar's source, by kind, in llguidance's own form: SOURCES."""

from __future__ import annotations

import json
import re
from typing import Any

from tailrace.extras import needs
from tailrace.grammar.check import UnsupportedError, parse_choice, parse_schema, parse_tag
from tailrace.grammar.gbnf import as_lark as gbnf_as_lark
from tailrace.grammar.schema import exact, patterns_of
from tailrace.grammar.tags import as_lark as tag_as_lark
from tailrace.grammar.tags import normalized, schemas
from tailrace.options import Grammar

with needs("grammar"):
    import llguidance
    from llguidance import LLMatcher

# parts of a Lark grammar in which %json is plain text; and %json itself, up to its JSON
LARK = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*|(?P<json>%json\s*)')
BLANKS = ("whitespace_flexible", "whitespace_pattern")


def unforced(text: str) -> str:
    """Switch off the library's forcing. Where only one text can come next, its masks would allow only the tokens that
    the tokenizer would choose, although it accepts others. With this option a mask allows all accepted tokens."""
    parts = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
    parts[0]["name"] = "all"
    top = {"name": "top", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: @all'}
    return json.dumps({"grammars": [top, *parts]})


def options(whitespace: int) -> Any:
    """How the library writes JSON. No \\u escapes and no \\/: with them a name could be spelled in a way that the
    schema forbids."""
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
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options(grammar.whitespace))


def exact_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in the part of the language that the library enforces exactly: see grammar/schema.py. Raises
    UnsupportedError."""
    whole = exact(schema)
    if names := [{"type": "string", "pattern": pattern} for pattern in patterns_of(whole)]:
        # The library checks only that values exist. A name that can't be spelled would be a dead end after the comma.
        names_grammar = LLMatcher.grammar_from_json_schema(
            json.dumps({"type": "array", "prefixItems": names, "minItems": len(names)})
        )
        if complaints := LLMatcher.validate_grammar(names_grammar):
            raise UnsupportedError(f"patternProperties: {complaints}"[:500])
    return whole


def lark(source: str) -> str:
    """A Lark grammar with its %json parts made exact. Of their own options only those on white space are kept."""
    parts, at = [], 0
    for found in LARK.finditer(source):
        if found.lastgroup != "json" or found.start() < at:
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(source, found.end())
        except ValueError as error:
            raise UnsupportedError(f"no JSON after %json: {error}") from error
        asked = schema.get("x-guidance") if isinstance(schema, dict) else None
        blanks = {key: asked[key] for key in BLANKS if key in asked} if isinstance(asked, dict) else {}
        whole = exact_schema(parse_schema(source[found.end() : end]))
        form = options(0 if blanks.get("whitespace_flexible") is False else 1) | blanks
        parts += [source[at : found.end()], json.dumps({**whole, "x-guidance": form})]
        at = end
    return LLMatcher.grammar_from_lark("".join([*parts, source[at:]]))


def choice(grammar: Grammar) -> str:
    """One terminal, so that the lexer sees all texts at once."""
    texts = (json.dumps(text) for text in parse_choice(grammar.source))
    return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(texts))


def structural_tag(grammar: Grammar) -> str:
    tag = normalized(parse_tag(grammar.source), grammar.whitespace)
    for content in schemas(tag):
        content["json_schema"] = exact_schema(content["json_schema"])
    return llguidance.grammar_from("lark", tag_as_lark(tag, options(grammar.whitespace)))


SOURCES = {
    "json_object": json_schema,
    "json_schema": json_schema,
    "regex": lambda grammar: LLMatcher.grammar_from_regex(grammar.source),
    "choice": choice,
    "ebnf": lambda grammar: LLMatcher.grammar_from_lark(gbnf_as_lark(grammar.source)),
    "lark": lambda grammar: lark(grammar.source),
    "structural_tag": structural_tag,
}
