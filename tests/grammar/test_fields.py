"""A schema of a tool that no output fits is refused before anything is written, with the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from api.test_forced_tools import script_of, tool
from grammar.vocabularies import small
from tailrace.errors import ParameterError
from tailrace.grammar import fields
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.llguidance import GrammarCompiler
from tailrace.grammar.llguidance_errors import TOO_MANY_STATES
from tailrace.request.options import Grammar
from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.text.tool_parsers.grammar import forced_grammar

COMPILER = GrammarCompiler(small())
SHAPES = ["hermes", "glm4", "qwen3_coder", "deepseek_v32", "gemma4", "minimax_m3", "pythonic"]
NOTHING: list[dict[str, Any]] = [
    {"type": "string", "enum": ["ab", "ac"], "pattern": "^a[0-9]"},
    {"enum": ["abc"], "pattern": "^z"},
    {"const": "abc", "pattern": "^z"},
    {"type": ["string", "null"], "enum": ["q"], "pattern": "^z"},
    {"type": "string", "anyOf": [{"const": "x", "pattern": "^y"}]},
    {"allOf": [{"enum": ["a"]}, {"pattern": "^b"}]},
    {"type": "string", "enum": ["a", "bb"], "minLength": 3},
    {"type": "string", "enum": ["a"], "format": "date"},
    {"type": "string", "pattern": "^a$", "minLength": 3},
    {"type": "string", "pattern": "^a$", "format": "date"},
    {"type": "string", "minLength": 5, "maxLength": 3},
    {"type": "integer", "const": 5, "minimum": 10},
    {"enum": [1, 2], "maximum": 0},
    {"type": "integer", "minimum": 5, "maximum": 3},
    {"const": "x", "type": "integer"},
    {"type": "array", "items": {"enum": ["a"], "pattern": "b"}, "minItems": 1},
    {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 1},
    {"type": "object", "properties": {"k": {"enum": ["a"], "pattern": "b"}}, "required": ["k"]},
]


def compile_tool(form: str, how: str, unit: dict[str, Any]) -> None:
    parameters = {"properties": {"n": {"type": "integer"}, "unit": unit}, "required": ["n", "unit"]}
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, how, asked=[tool("f", parameters)]))
    COMPILER.compile(Grammar(kind="lark", source=source))


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("schema", NOTHING)
def test_a_parameter_that_no_value_fits_is_named(form, schema):
    with pytest.raises((ParameterError, UnsupportedError), match=r"f\.unit|f: .*'unit'"):
        compile_tool(form, "text", schema)


@pytest.mark.parametrize("how", ["text", "special"])
@pytest.mark.parametrize("form", SHAPES)
def test_a_parameter_that_some_value_fits_is_accepted(form, how):
    for schema in (
        {"type": "string", "enum": ["ab", "z1"], "pattern": "^z"},
        {"type": "string", "pattern": "^a+$", "minLength": 3, "maxLength": 5},
        {"enum": [1, 2], "maximum": 1},
    ):
        compile_tool(form, how, schema)


def test_lengths_that_are_too_much_together_are_named():
    texts = {f"p{i}": {"type": "string", "maxLength": 900 + i} for i in range(6)}
    source = forced_grammar(TOOL_FORMATS["glm4"], script_of("glm4", asked=[tool("store", {"properties": texts})]))
    found = fields.with_field(Grammar(kind="lark", source=source), TOO_MANY_STATES)
    assert found.startswith("store.p0, store.p1, store.p2 and 3 more: too much to match")
