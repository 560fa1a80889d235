"""An accepted JSON Schema is enforced: a value that does not validate can't be written, for any combination of
keywords.

Each case: keywords, schema, values that validate, values that don't. A schema may be refused.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from grammar.vocabularies import small
from tailrace.errors import ParameterError
from tailrace.grammar.base import Matcher
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.llguidance import GrammarCompiler
from tailrace.request.options import Grammar

CASES: list[tuple[str, Any, list[str], list[str]]] = [
    ("multipleOf", {"type": "integer", "multipleOf": 3}, ["9"], ["10"]),
    ("min int", {"type": "integer", "minimum": 3, "maximum": 20}, ["3", "20"], ["2", "21"]),
    ("min num", {"type": "number", "minimum": 3, "maximum": 20.5}, ["3", "20.5"], ["2", "21", "2.5"]),
    ("exmin num", {"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 20.5}, ["4"], ["3", "20.5", "3.0"]),
    ("exmin draft4", {"type": "integer", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
    ("exmin int", {"type": "integer", "exclusiveMinimum": 3}, ["4"], ["3"]),
    ("min no type", {"minimum": 3}, ['"a"', "4"], ["2"]),
    ("minLength", {"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"'], ['"a"', '"abcd"']),
    ("minLength no type", {"minLength": 2}, ['"ab"', "3"], ['"a"']),
    ("pattern", {"type": "string", "pattern": "^a[0-9]+$"}, ['"a1"'], ['"b1"', '"xa1"']),
    ("pattern unanch", {"type": "string", "pattern": "a[0-9]"}, ['"a1"'], ['"b1"']),
    ("pattern unanch2", {"type": "string", "pattern": "a[0-9]"}, ['"xa1y"'], ['"b1"']),
    ("pattern+len", {"type": "string", "pattern": "^a+$", "maxLength": 3}, ['"aa"'], ['"aaaaa"']),
    ("pattern no type", {"pattern": "^a+$"}, ['"aa"', "1"], ['"b"']),
    ("format date", {"type": "string", "format": "date"}, ['"2020-01-01"'], ['"hello"']),
    ("format uuid", {"type": "string", "format": "uuid"}, [], ['"hello"']),
    ("format unknown", {"type": "string", "format": "foo"}, ['"hello"'], []),
    ("format email+len", {"type": "string", "format": "email", "maxLength": 3}, [], ['"a@bcd.com"']),
    ("enum", {"enum": ["a", 1, None, {"b": 2}]}, ['"a"', "1", "null"], ['"b"']),
    ("enum+type", {"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
    ("const", {"const": "x"}, ['"x"'], ['"y"']),
    ("const obj", {"const": {"a": [1, 2]}}, [], ["{}"]),
    ("const+type conflict", {"const": "x", "type": "integer"}, [], ['"x"', "3"]),
    ("enum+minLength", {"type": "string", "enum": ["a", "abc"], "minLength": 2}, ['"abc"'], ['"a"']),
    ("uniqueItems", {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, ["[1,2]"], ["[1,1]"]),
    (
        "minItems",
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        ["[1]"],
        ["[]", "[1,2,3]"],
    ),
    ("minItems no items", {"type": "array", "minItems": 1, "maxItems": 2}, ["[1]"], ["[]", "[1,2,3]"]),
    (
        "prefixItems",
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        ['[1,"a"]'],
        ['["a"]', '[1,"a",2]'],
    ),
    (
        "prefixItems required?",
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        ['[1,"a"]'],
        ['["a"]'],
    ),
    (
        "prefixItems+minItems",
        {"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 3},
        ["[1,2,3]"],
        ["[1]"],
    ),
    (
        "items array d4",
        {"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False},
        ['[1,"a"]'],
        ['["a"]', '[1,"a",3]'],
    ),
    (
        "additionalItems schema",
        {"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "string"}},
        ['[1,"a"]'],
        ["[1,2]"],
    ),
    ("contains", {"type": "array", "items": {"type": "integer"}, "contains": {"const": 3}}, ["[3]"], ["[1]"]),
    (
        "unevaluatedItems",
        {"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
        ["[1]"],
        ["[1,2]"],
    ),
    ("required", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, ['{"a":1}'], ["{}"]),
    (
        "required undeclared",
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]},
        ['{"b":1}'],
        ['{"a":1}', "{}"],
    ),
    ("required no type", {"properties": {"a": {"type": "integer"}}, "required": ["a"]}, ['{"a":1}'], ["{}"]),
    ("properties no type", {"properties": {"a": {"type": "integer"}}}, ['{"a":1}'], ['{"a":"x"}']),
    ("minProperties", {"type": "object", "minProperties": 1}, ['{"a":1}'], ["{}"]),
    (
        "maxProperties",
        {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}},
        ['{"a":1}'],
        ['{"a":1,"b":2}'],
    ),
    ("minProps twice", {"type": "object", "minProperties": 2}, [], ['{"a":1,"a":2}']),
    (
        "minProps+props",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "minProperties": 1,
            "additionalProperties": False,
        },
        ['{"a":1}'],
        ["{}"],
    ),
    (
        "patternProperties",
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        ['{"x1":1}'],
        ['{"x1":"a"}', '{"y":1}'],
    ),
    (
        "patternProperties+props",
        {"type": "object", "properties": {"xa": {"type": "string"}}, "patternProperties": {"^x": {"type": "integer"}}},
        ['{"x1":1}'],
        ['{"x1":"a"}', '{"xa":"s"}'],
    ),
    (
        "propertyNames",
        {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": {"type": "integer"}},
        ['{"a":1}'],
        ['{"b":1}'],
    ),
    (
        "propertyNames+props",
        {"type": "object", "properties": {"zz": {"type": "integer"}}, "propertyNames": {"maxLength": 1}},
        [],
        ['{"zz":1}'],
    ),
    (
        "addl schema",
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        ['{"a":1,"b":"x"}'],
        ['{"a":1,"b":2}', '{"a":"x"}'],
    ),
    (
        "addl dup key",
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        [],
        ['{"a":1,"a":"x"}', '{"b":"x","a":"y"}'],
    ),
    ("open esc key", {"type": "object", "properties": {"a": {"type": "integer"}}}, [], ['{"\\u0061":"x"}']),
    (
        "addl esc key",
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        [],
        ['{"\\u0061":"x"}'],
    ),
    (
        "unevaluatedProperties",
        {"type": "object", "properties": {"a": {"type": "integer"}}, "unevaluatedProperties": False},
        ['{"a":1}'],
        ['{"a":1,"b":2}'],
    ),
    (
        "dependentRequired",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "dependentRequired": {"a": ["b"]},
            "additionalProperties": False,
        },
        ['{"b":1}'],
        ['{"a":1}'],
    ),
    (
        "dependencies",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "dependencies": {"a": ["b"]},
            "additionalProperties": False,
        },
        ['{"b":1}'],
        ['{"a":1}'],
    ),
    ("not", {"type": "integer", "not": {"const": 3}}, ["4"], ["3"]),
    (
        "if",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "if": {"properties": {"a": {"const": 1}}},
            "then": {"required": ["b"]},
            "additionalProperties": False,
        },
        [],
        ['{"a":1}'],
    ),
    ("anyOf", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, ['"a"', "1"], ["null"]),
    (
        "anyOf+props",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            "additionalProperties": False,
        },
        ['{"a":1}'],
        ["{}"],
    ),
    ("anyOf+type", {"type": "integer", "anyOf": [{"minimum": 3}, {"maximum": 0}]}, ["4"], ["1"]),
    ("oneOf overlap", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["1.5"], ["1"]),
    ("oneOf disjoint", {"oneOf": [{"type": "string"}, {"type": "integer"}]}, ['"a"', "1"], ["null"]),
    (
        "oneOf objs",
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
                {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]},
            ]
        },
        ['{"k":"a"}'],
        ['{"k":"c"}'],
    ),
    (
        "oneOf objs overlap",
        {
            "oneOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]},
            ]
        },
        ['{"a":1}'],
        ['{"a":1,"b":2}'],
    ),
    (
        "oneOf +siblings",
        {
            "type": "object",
            "properties": {"z": {"type": "integer"}},
            "required": ["z"],
            "oneOf": [
                {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
            ],
        },
        [],
        ['{"z":1}', '{"a":1}'],
    ),
    (
        "allOf",
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]},
            ]
        },
        ['{"a":1,"b":2}'],
        ['{"a":1}', '{"b":1}'],
    ),
    ("allOf1", {"allOf": [{"type": "integer"}]}, ["1"], ['"a"']),
    (
        "allOf1+sib",
        {"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"], "allOf": [{"required": ["a"]}]},
        [],
        ['{"z":1}', '{"a":1}'],
    ),
    (
        "allOf nums",
        {"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]},
        ["4"],
        ["6", "2"],
    ),
    ("ref", {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, ["1"], ['"a"']),
    ("ref+sib", {"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": {"type": "integer"}}}, ["6"], ["1"]),
    (
        "ref+sib props",
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/a", "maximum": 5}},
            "required": ["a"],
            "$defs": {"a": {"type": "integer"}},
        },
        ['{"a":1}'],
        ['{"a":10}'],
    ),
    ("ref external", {"$ref": "http://x.org/a.json"}, [], ['"a"']),
    ("ref anchor", {"$ref": "#foo", "$defs": {"a": {"$anchor": "foo", "type": "integer"}}}, ["1"], ['"a"']),
    ("ref id", {"$id": "http://x.org/r", "$ref": "b", "$defs": {"a": {"$id": "b", "type": "integer"}}}, ["1"], ['"a"']),
    ("ref loop", {"$ref": "#"}, [], ["1"]),
    ("ref escaped", {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}, ["1"], ['"a"']),
    ("dynamicRef", {"$dynamicRef": "#a", "$defs": {"x": {"$dynamicAnchor": "a", "type": "integer"}}}, ["1"], ['"a"']),
    ("false", {"type": "object", "properties": {"q": False}, "required": ["q"]}, [], ['{"q":1}']),
    ("true", {"type": "object", "properties": {"q": True}, "required": ["q"]}, ['{"q":1}'], ["{}"]),
    ("empty", {}, ["1"], []),
    ("type list", {"type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    ("type list+min", {"type": ["string", "integer"], "minLength": 2, "minimum": 5}, ['"ab"', "6"], ['"a"', "1"]),
    (
        "type any obj+props",
        {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        ['{"a":1}', "null"],
        ["{}"],
    ),
    ("type missing enum null", {"enum": [None]}, ["null"], ["1"]),
    ("int 1.0", {"type": "integer"}, ["1", "-5"], ["1.5", "01", "-0.5"]),
    ("num", {"type": "number"}, ["1.5e3", "-0"], ["01", ".5", "1."]),
    ("string ctrl", {"type": "string"}, ['"a\\n"'], ['"\n"', '"\x01"', '"\\x"']),
    ("unknown type", {"type": "dict"}, [], ["1", '"a"']),
    ("unknown kw", {"type": "integer", "foo": 3}, ["1"], ['"a"']),
    ("nullable", {"type": "integer", "nullable": True}, ["1"], ['"a"']),
    ("bad type val", {"type": 5}, [], ["1"]),
    ("bad props", {"type": "object", "properties": []}, [], ["1"]),
    ("required bool", {"type": "object", "properties": {"a": {"type": "string", "required": True}}}, [], []),
    ("maxLength neg", {"type": "string", "maxLength": -1}, [], ['"a"']),
    ("contentEncoding", {"type": "string", "contentEncoding": "base64"}, ['"aaaa"'], []),
    ("minimum big", {"type": "integer", "minimum": 1e30}, [], ["1"]),
    ("max<min", {"type": "integer", "minimum": 5, "maximum": 3}, [], ["4"]),
    ("float bounds int", {"type": "integer", "minimum": 1.5, "maximum": 2.5}, ["2"], ["1", "3"]),
    ("pattern esc", {"type": "string", "pattern": '^"\\\\n$'}, [], ['"a"']),
    ("pattern quote", {"type": "string", "pattern": "^[^a]$"}, ['"b"'], ['"a"', '"""']),
    ("pattern unicode", {"type": "string", "pattern": "^é$"}, ['"é"'], ['"a"']),
    ("pattern dot", {"type": "string", "pattern": "^.$"}, ['"a"'], ['"""', '"\n"', '"\\"']),
    ("pattern \\d", {"type": "string", "pattern": "^\\d+$"}, ['"12"'], ['"a"']),
    ("pattern look", {"type": "string", "pattern": "^(?!a).*$"}, ['"b"'], ['"ab"']),
    ("pattern \\b", {"type": "string", "pattern": "^a\\b$"}, [], ['"b"']),
    ("pattern alt", {"type": "string", "pattern": "^a|b$"}, ['"ac"'], ['"c"']),
    ("pattern ^ mid", {"type": "string", "pattern": "(^a$)|(^b$)"}, ['"a"'], ['"ca"']),
    ("pattern ^ mid2", {"type": "string", "pattern": "(^a$)|b"}, ['"xb"'], ['"ca"']),
]


LIBRARY = GrammarCompiler(small())
D4, D7 = ({"$schema": f"http://json-schema.org/draft-0{n}/schema#"} for n in (4, 7))
LOOP = {"type": "object", "properties": {"a": {"$ref": "#/$defs/loop"}}, "required": ["a"]}

# schema, what of these can be written; None: it is refused
MORE: list[tuple[Any, dict[str, bool] | None]] = [
    ({"type": "string", "pattern": r"^\cC$"}, None),
    ({"type": "string", "pattern": "^[\x00-\x08]$"}, {'"\\b"': True, '"\x01"': False, '""': False}),
    ({"type": "string", "pattern": r"^a(\cC|b)$"}, {'"ab"': True, '"a"': False, '"a\x03"': False}),
    (
        {"type": "object", "properties": {"a\x1b": {}}, "additionalProperties": False},
        {'{"a\\u001b":1}': True, '{"a":1}': False},
    ),
    ({"type": "object", "patternProperties": {"^a\x01$": {}}}, None),
    ({"$ref": "#"}, None),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}, None),
    ({"anyOf": [{"$ref": "#"}, {"type": "string"}]}, None),
    ({"$ref": "#/$defs/loop", "$defs": {"loop": LOOP}}, None),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, None),
    # what can't end is left out, and what can stays
    ({"type": "array", "items": {"$ref": "#/$defs/loop"}, "$defs": {"loop": LOOP}}, {"[]": True, '[{"a"': False}),
    ({"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "null"}], "$defs": {"loop": LOOP}}, {"null": True, "{": False}),
    (
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {'{"a":{"a":null}}': True, '{"a":1}': False},
    ),
    (
        {
            "type": ["object", "null"],
            "properties": {"a": {"$ref": "#/$defs/loop"}},
            "required": ["a"],
            "$defs": {"loop": LOOP},
        },
        {"null": True, "{": False},
    ),
    ({"type": []}, None),
    ({"type": "dict"}, None),
    ({"enum": []}, None),
    ({"properties": []}, None),
    ({"maxLength": -1}, None),
    ({"type": "integer", "multipleOf": 0.123456789}, None),
    ({"type": "number", "multipleOf": 1e-300}, None),
    ({"allOf": [{"multipleOf": 65537}, {"multipleOf": 65539}]}, None),
    ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, {"12": True, "4": False, '"a"': True}),
    ({"const": 9007199254740993}, None),
    ({"enum": [1e400]}, None),
    ({"const": 2**53}, {str(2**53): True, str(2**53 - 1): False}),
    ({"type": "integer", "maximum": 2**63 - 1}, {str(2**63 - 1): True, str(2**63): False}),
    ({"minProperties": 1}, {"{}": False, "1": True}),
    ({"maxProperties": 1}, {'{"a":1,"b":2}': False, '{"a":1}': True, "[]": True}),
    ({"propertyNames": {"pattern": "^a"}}, {'{"ab":1}': True, '{"b":1}': False, "1": True}),
    (
        {"propertyNames": {"maxLength": 2}, "additionalProperties": {"type": "null"}},
        {'{"ab":null}': True, '{"abc":null}': False, '{"a":1}': False},
    ),
    ({"propertyNames": {"enum": ["a", "b"]}}, {'{"b":1}': True, '{"c":1}': False}),
    (
        {"propertyNames": {"minLength": 2.0, "maxLength": 3.0}},
        {'{"ab":1}': True, '{"a":1}': False, '{"a{2.0,3.0}":1}': False, '{"abcd"': False},
    ),
    *(
        ({"propertyNames": names}, None)
        for names in ({"minLength": 2.5}, {"maxLength": True}, {"pattern": 1}, {"enum": "ab"})
    ),
    ({"propertyNames": False}, {"{}": True, '{"a":1}': False}),
    (
        {**D4, "propertyNames": {"minLength": 2}, "properties": {"a": {}}},
        None,
    ),  # draft 4 had none: it would be passed over
    ({**D7, "$ref": "#/definitions/a", "minimum": 5, "definitions": {"a": {"type": "integer"}}}, {"1": True}),
    ({**D7, "dependentRequired": {"a": ["b"]}}, None),
    ({"$schema": "http://example.org/mine"}, None),
    (
        {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "integer"}, "a~1b%25": {"type": "string"}}},
        {"1": True, '"a"': False},
    ),
    (
        {"properties": {"a": {"$ref": "#/x/y"}}, "x": {"y": {"$ref": "#/x/z"}, "z": {"type": "null"}}},
        {'{"a":null}': True, '{"a":1}': False},
    ),
    (
        {"patternProperties": {"^x": {"type": "null"}}, "anyOf": [{}], "additionalProperties": False},
        {'{"x":null}': True, '{"y":1}': False},
    ),
    # Pydantic's Decimal; with max_digits and decimal_places; beside a number
    (
        {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"},
        dict.fromkeys(('"0"', '"-1.5"', '"+.5"', '"007."'), True)
        | dict.fromkeys(('""', '"-"', '"."', '"+."', '"1.5.5"', '"a"', '"1a"', '"--1"'), False),
    ),
    (
        {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d{0,2}(?:\.\d{0,2}0*)?$", "maxLength": 7},
        {'"12.34"': True, '"-.5"': True, '"1.5000"': True, '"-."': False, '"123.4"': False, '"1.234"': False},
    ),
    (
        {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]},
        {"15": True, '"1.5"': True, '"-"': False, "true": False},
    ),
    ({"type": "string", "pattern": "^(?![ab]*$)c|d"}, None),
    ({"type": "string", "pattern": "^(?![^ab]*$)c"}, None),
    ({"type": "string", "pattern": "^(?![ab]*$)c(?=d)"}, None),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, {"[1]": True, "[1,1]": False}),
    ({"type": "array", "maxItems": 2**31 - 1}, {"[1]": True}),
    ({"type": "array", "maxItems": 2**30}, None),
    *(({key: 10**400}, None) for key in ("minimum", "exclusiveMaximum", "const", "multipleOf", "minLength")),
    ({"maxLength": 10**400}, {'"ab"': True}),
    ({"enum": [-(10**400)]}, None),
    ({"if": {"type": "string"}, "then": {"minLength": 2}}, None),
    ({"if": {}, "then": {"type": "null"}}, {"null": True, "1": False}),
]


def taken(schema: Any) -> Any:
    """None: it is refused."""
    try:
        return LIBRARY.load(LIBRARY.compile(Grammar(kind="json_schema", source=json.dumps(schema), whitespace=0)))
    except (UnsupportedError, ParameterError):
        return None


@pytest.mark.parametrize(("schema", "written"), MORE, ids=lambda value: json.dumps(value)[:60])
def test_each_kind_that_was_wrong(schema: Any, written: dict[str, bool] | None):
    compiled = taken(schema)
    assert (compiled is None) == (written is None)
    if written is None:
        return
    for text, fits in written.items():
        whole = text[-1] in '"]}' or text.isalnum()
        assert (spells if whole else begins)(compiled.matcher(), text) == fits, text


def begins(matcher: Matcher, text: str) -> bool:
    return all(matcher.accept(byte) for byte in text.encode())


@settings(max_examples=examples(60), deadline=None)
@given(
    low=st.decimals(-50, 50, places=2),
    high=st.decimals(-50, 50, places=2),
    strict=st.booleans(),
    whole=st.booleans(),
    tried=st.lists(st.decimals(-60, 60, places=3), max_size=20),
)
def test_bounds_are_kept(low: Decimal, high: Decimal, strict: bool, whole: bool, tried: list[Decimal]):
    names = ("exclusiveMinimum", "exclusiveMaximum") if strict else ("minimum", "maximum")
    compiled = taken({"type": "integer" if whole else "number", names[0]: float(low), names[1]: float(high)})
    for value in [low, high, *tried]:
        text = f"{value.normalize():f}"
        fits = (low < value < high if strict else low <= value <= high) and (value == int(value) or not whole)
        assert fits == (compiled is not None and spells(compiled.matcher(), text)), text


def spells(matcher: Matcher, text: str) -> bool:
    """Can this be the whole output?"""
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(small().eos[0])


@pytest.mark.few(54)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].replace(" ", "-"))
def test_what_does_not_validate_cannot_be_written(case: tuple[str, Any, list[str], list[str]]):
    _, schema, good, bad = case
    grammar = Grammar(kind="json_schema", source=json.dumps(schema))
    try:
        compiled = LIBRARY.load(LIBRARY.compile(grammar))
    except (UnsupportedError, ParameterError):
        return
    assert not [value for value in bad if spells(compiled.matcher(), value)]
    assert not [value for value in good if not spells(compiled.matcher(), value)]


def test_a_schema_whose_alternatives_multiply_beyond_the_librarys_limit_is_refused():
    """500 equal objects: the beginning is accepted, and only a later mask meets the limit, where the matcher reports
    it."""
    branch = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10)}}
    library = GrammarCompiler(small())
    with pytest.raises(UnsupportedError, match="items"):
        library.compile(Grammar(kind="json_schema", source=json.dumps({"anyOf": [branch] * 500})))
