"""Grammars, schemas, patterns and tools that are malformed, huge, without end, or cheap to write and dear to follow."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from faults.hostile.client import EITHER, REFUSED, TOO_MUCH, Attempt, Kind, chat, complete, listed, post


def forced_text(chance: Random, i: int) -> Attempt:
    patterns = [
        "a{10000000}",
        "(abc){100000}",
        "a{1000}{1000}",
        "(a{100}b{100}){1000}",
        " {1000000}",
        "é{300000}",
        "[a]{5000000}",
        "(ab|ab){100000}",
        "a{50000}b{50000}",
        "0{1000000}",
    ]
    return complete(guided_regex=listed(chance, patterns, i))


def doubling(chance: Random, i: int) -> Attempt:
    depth, word = 40 + i, listed(chance, ["x", "ab", " ", "\\n", "é"], i % 5)
    rules = [f"a{n} ::= a{n + 1} a{n + 1}" for n in range(depth)]
    return complete(guided_grammar="\n".join(["root ::= a0", *rules, f'a{depth} ::= "{word}"']))


def forced_schema(chance: Random, i: int) -> Attempt:
    schemas = [
        {"const": "x" * 500_000},
        {"type": "string", "minLength": 10**6, "pattern": "^a*$"},
        {"enum": ["y" * 900_000]},
        {"type": "string", "pattern": "^a{1000000}$"},
        {"type": "array", "items": {"const": 1}, "minItems": 10**6},
    ]
    return complete(guided_json=schemas[i % 5])


def wild_patterns(chance: Random, i: int) -> Attempt:
    patterns = [
        "(a+)+$",
        "((a?){50}){50}",
        "(.*){100}x",
        "(a|aa|aaa)*b{1000}",
        "[\\s\\S]{1,10000}",
        "(x{0,1000}){0,1000}",
        ".*.*.*.*.*.*.*=.*",
        "(?:(?:(?:a*)*)*)*",
        "\\p{L}{1000}",
        "(a|b|c|d|e|f){5000}",
    ]
    return complete(guided_regex=listed(chance, patterns, i))


def broken_patterns(chance: Random, i: int) -> Attempt:
    patterns = ["(", "[", "a{2,1}", "*", "(?<n>", "\\", "(?P<n", "[z-a]", "a)", "(?#"]
    return complete(guided_regex=listed(chance, patterns, i), named="guided_regex")


def circles(chance: Random, i: int) -> Attempt:
    grammars = [
        "root ::= root",
        "root ::= a\na ::= b\nb ::= a",
        'root ::= root "a" | "a"',
        "root ::= (root)*",
        'root ::= root root | "a"',
        'root ::= a*\na ::= b*\nb ::= ""',
        'root ::= "a" root',
        "root ::= root?",
        'root ::= x\nx ::= x "y"',
        'root ::= ("a"*)*',
    ]
    return complete(guided_grammar=listed(chance, grammars, i))


def broken_grammars(chance: Random, i: int) -> Attempt:
    grammars = [
        "root = 'a'",
        "nonsense",
        "root ::= missing",
        'root ::= "',
        "root ::= [",
        "start: (",
        "root ::= (",
        'root ::= "a"{5,2}',
        "::= x",
        'root ::= "\\xZZ"',
    ]
    return complete(guided_grammar=listed(chance, grammars, i), named="guided_grammar")


def blank_grammars(chance: Random, i: int) -> Attempt:
    blank = listed(chance, [" ", "\n", "\t", " \n", "\r\n"], i % 5)
    return complete(guided_grammar=blank * (100_000 * (1 + i % 4)), named="guided_grammar")


def large_grammars(chance: Random, i: int) -> Attempt:
    count = 5000 * (1 + i % 4)
    rules = [f'r{n} ::= "{n}" | r{(n * 7919) % count}' for n in range(count)]
    return complete(guided_grammar="\n".join(["root ::= r0", *rules]))


def steep_numbers(chance: Random, i: int) -> Attempt:
    schemas: list[dict[str, Any]] = [
        {"type": "number", "multipleOf": 1e-300},
        {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
        {"type": "number", "minimum": 1e308, "exclusiveMaximum": 1.7e308},
        {"type": "integer", "multipleOf": 10**30},
        {"type": "number", "minimum": 0.1, "maximum": 0.1},
        {"type": "integer", "multipleOf": 0.123456789},
        {"type": "number", "multipleOf": 0},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "number", "minimum": 1e-320, "maximum": 1e-310},
        {"type": "integer", "multipleOf": 1e300},
    ]
    return complete(guided_json=listed(chance, schemas, i))


def references(chance: Random, i: int) -> Attempt:
    schemas: list[dict[str, Any]] = [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$ref": "http://169.254.169.254/"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/nowhere"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"$ref": 5},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"not": {"$ref": "#"}},
    ]
    return complete(guided_json=listed(chance, schemas, i))


def deep_schemas(chance: Random, i: int) -> Attempt:
    depth = listed(chance, [100_000, 50_000, 1000, 500, 10_000], i % 5)
    opening = listed(
        chance, ['{"type":"array","items":', '{"type":"object","properties":{"a":', '{"anyOf":[', '{"not":'], i % 4
    )
    closing = {
        '{"type":"array","items":': "}",
        '{"type":"object","properties":{"a":': "}}",
        '{"anyOf":[': "]}",
        '{"not":': "}",
    }[opening]
    text = opening * depth + "{}" + closing * depth
    name = listed(chance, ["guided_json", "json_schema"], i % 2)
    return complete(**{name: text})


def deep_formats(chance: Random, i: int) -> Attempt:
    depth = 900 if i % 3 else 20_000
    schema = '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth
    if i % 2:
        form = f'{{"type": "json_schema", "json_schema": {{"name": "x", "schema": {schema}}}}}'
        body = f'{{"messages": [{{"role": "user", "content": "x"}}], "response_format": {form}}}'
        return post("/v1/chat/completions", body.encode(), field="")
    return post(
        "/v1/completions",
        f'{{"prompt": "x", "max_tokens": 8, "structured_outputs": {{"json": {schema}}}}}'.encode(),
        field="",
    )


def wide_schemas(chance: Random, i: int) -> Attempt:
    count = 2000 * (1 + i % 5)
    schema = {
        "type": "object",
        "properties": {f"key{n}": {"type": "integer"} for n in range(count)},
        "required": [f"key{n}" for n in range(0, count, 2)],
    }
    return complete(guided_json=schema)


def long_enums(chance: Random, i: int) -> Attempt:
    count = 10_000 * (1 + i % 4)
    return complete(guided_json={"enum": [f"value {n} {'x' * (i % 3)}" for n in range(count)]})


def explosions(chance: Random, i: int) -> Attempt:
    branch = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(10)}}
    schemas: list[dict[str, Any]] = [
        {"anyOf": [branch] * 500},
        {"allOf": [{"anyOf": [{"required": [f"p{n}"]}, {"required": [f"q{n}"]}]} for n in range(30)]},
        {"oneOf": [branch] * 200},
        {"type": "array", "uniqueItems": True, "minItems": 5000},
        {"patternProperties": {f"^{'a' * n}": branch for n in range(1, 200)}},
        {"type": "string", "minLength": 99_999, "maxLength": 100_000},
        {"type": "array", "minItems": 10**9},
        {"type": "object", "minProperties": 10**9},
        {"type": "string", "pattern": "(a{1,100}){1,100}"},
        {"type": "array", "prefixItems": [branch] * 1000},
    ]
    return complete(guided_json=listed(chance, schemas, i))


def wrong_schemas(chance: Random, i: int) -> Attempt:
    schemas: list[Any] = [
        {"type": "unicorn"},
        {"type": []},
        {"type": 5},
        {"properties": []},
        {"required": "a"},
        {"enum": "a"},
        {"items": 5},
        {"minLength": "x"},
        "not json",
        {"pattern": "("},
    ]
    return complete(guided_json=listed(chance, schemas, i), named="guided_json")


def control_characters(chance: Random, i: int) -> Attempt:
    schemas = [
        {"const": "a\u001bb"},
        {"enum": ["\u0000", "\u007f"]},
        {"type": "string", "pattern": "^a\u0001b$"},
        {"type": "string", "pattern": "^\\cC$"},
        {"const": "\u2028"},
        {"type": "object", "properties": {"\u0001": {"const": 1}}, "required": ["\u0001"]},
        {"const": {"a\n": "\t"}},
        {"enum": ["\ud83d\ude00"]},
        {"const": "\u0085"},
        {"const": "\\"},
    ]
    return complete(guided_json=listed(chance, schemas, i), max_tokens=60)


def behind_a_choice(chance: Random, i: int) -> Attempt:
    """Compiling goes the short way, where nothing is wrong; what follows the other one takes the library long, and then
    too much."""
    count = listed(chance, [9000, 5000, 900, 20_000], i)
    rule = " | ".join(f'"{n:04x}"' for n in range(count))
    grammar = f'root ::= "h" ([0-4] "q" | [5-9] r)\nr ::= {rule}'
    return complete(guided_grammar=grammar, n=6, temperature=2.0)


def choices(chance: Random, i: int) -> Attempt:
    lists = [
        [f"choice {n}" for n in range(1000)],
        ["x" * 10_000] * 50,
        ["a" * n for n in range(1, 1000)],
        [""],
        ["a", ""],
        ["a", "a"],
        [],
        ["\x00"],
        [f"{n}" for n in range(50_000)],
        ["é" * 5000],
    ]
    return complete(guided_choice=listed(chance, lists, i))


def tags(chance: Random, i: int) -> Attempt:
    forms: list[Any] = [
        {"type": "structural_tag"},
        {"type": "structural_tag", "format": {}},
        {"type": "structural_tag", "format": {"type": "unicorn"}},
        {"type": "structural_tag", "structures": [], "triggers": []},
        {"type": "structural_tag", "structures": [{"begin": "", "schema": {}, "end": ""}], "triggers": [""]},
        {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<b>"]},
        {
            "type": "structural_tag",
            "structures": [{"begin": f"<{n}>", "schema": {"type": "object"}, "end": "</>"} for n in range(1000)],
            "triggers": ["<"],
        },
        {"type": "unicorn"},
        {"type": None},
        {"type": "json_schema"},
    ]
    return complete(response_format=listed(chance, forms, i))


def in_time(chance: Random, i: int) -> Attempt:
    schemas = [
        {
            "type": "object",
            "properties": {f"k{n}": {"type": "string", "minLength": 3} for n in range(20)},
            "required": [f"k{n}" for n in range(20)],
        },
        {"type": "array", "minItems": 100},
        {"type": "string", "minLength": 50},
    ]
    return complete(
        guided_json=schemas[i % 3],
        structured_outputs={"close_in_time": True, "whitespace": i % 2 * 32},
        max_tokens=listed(chance, [1, 2, 4, 40, 80], i % 5),
    )


def grammar_and_more(chance: Random, i: int) -> Attempt:
    more: list[dict[str, Any]] = [
        {"n": 16},
        {"logprobs": 20},
        {"allowed_token_ids": [5]},
        {"logit_bias": {str(n): -100 for n in range(2000)}},
        {"min_tokens": 8, "ignore_eos": True},
        {"banned_strings": ["{"]},
        {"stop": ["}"]},
        {"guidance_scale": 5.0},
        {"mirostat": 2},
        {"seed": 1, "n": 8, "best_of": 20},
    ]
    return complete(
        guided_json={"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        **listed(chance, more, i),
    )


def odd_tools(chance: Random, i: int) -> Attempt:
    lists: list[Any] = [
        [{}],
        [{"type": "function"}],
        [{"type": "function", "function": {"name": 5}}],
        [{"type": "function", "function": {"name": "f", "parameters": "x"}}],
        [{"type": "custom", "custom": {"name": 5}}],
        "x",
        [None],
        {},
        [{"type": "function", "function": {"name": ""}}],
        [{"type": "function", "function": []}],
    ]
    return chat(tools=listed(chance, lists, i), named="tools")


def tool(n: int) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    return {
        "type": "function",
        "function": {"name": f"tool_{n}", "description": "d" * 50, "parameters": parameters},
    }


def many_tools(chance: Random, i: int) -> Attempt:
    listed_tools = [tool(n) for n in range((100, 1000, 10_000, 40_000)[i % 4])]
    return chat(
        tools=listed_tools,
        tool_choice=listed(chance, ["auto", "required", {"type": "function", "function": {"name": "tool_7"}}], i % 3),
    )


def tool_choices(chance: Random, i: int) -> Attempt:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    wanted: list[Any] = [
        "x",
        5,
        {},
        {"type": "function"},
        {"type": "function", "function": {"name": "g"}},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        [],
        True,
        {"type": "function", "function": {"name": 5}},
    ]
    return chat(tools=tools, tool_choice=listed(chance, wanted, i), named="tool_choice")


def tool_names(chance: Random, i: int) -> Attempt:
    names = ['"', "</tool_call>", "a b", "\n", "é", "x" * 10_000, "{{7*7}}", "\x00", "f", "<|im_end|>"]
    name = listed(chance, names, i)
    return chat(
        tools=[{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}] * 2,
        tool_choice="required",
        max_tokens=30,
    )


def tool_schemas(chance: Random, i: int) -> Attempt:
    deep: Any = {"type": "string"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"a": deep}}
    schemas: list[Any] = [
        deep,
        {"type": "object", "properties": {f"k{n}": {"enum": [f"v{m}" for m in range(50)]} for n in range(400)}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "a{100000}"}}, "required": ["a"]},
        {"type": "object", "required": ["missing"]},
        {"type": "object", "properties": {"a": {"type": "number", "multipleOf": 1e-300}}, "required": ["a"]},
        {"type": "array"},
        {"type": "object", "properties": {"</arg_value>": {"const": "</tool_call>"}}, "required": ["</arg_value>"]},
        {"$ref": "#"},
        {"type": "object", "minProperties": 10**6},
        {"type": "object", "properties": {"a": {"const": "\u001b"}}, "required": ["a"]},
    ]
    return chat(
        tools=[
            {"type": "function", "function": {"name": "f", "parameters": listed(chance, schemas, i), "strict": True}}
        ],
        tool_choice="required",
        max_tokens=40,
    )


def many_at_once(chance: Random, i: int) -> Attempt:
    """Schemas that compile for long, many at a time: they wait for each other, not the others for them."""
    import dataclasses

    first = wide_schemas(chance, i)
    return dataclasses.replace(first, beside=tuple(long_enums(chance, n) for n in range(4)))


def as_text(chance: Random, i: int) -> Attempt:
    texts = ["", "null", "[]", "5", '"x"', "{", "true", json.dumps("x" * 900_000), "{}" * 5, "\x00"]
    return complete(
        **{listed(chance, ["guided_json", "json_schema", "structural_tag"], i % 3): listed(chance, texts, i)}
    )


KINDS = (
    Kind("forced text", forced_text, EITHER, "the whole of it was tokenized in each step of the engine"),
    Kind("a grammar that doubles", doubling, EITHER, "2^40 characters that are forced, in a kilobyte"),
    Kind("forced text in schemas", forced_schema, EITHER, "the same in JSON"),
    Kind("wild patterns", wild_patterns, EITHER, "states without end"),
    Kind("broken patterns", broken_patterns, REFUSED, "500s"),
    Kind("circles in grammars", circles, EITHER, "500 invalid_logits: a language without a word"),
    Kind("broken grammars", broken_grammars, REFUSED, "500s"),
    Kind("blank grammars", blank_grammars, REFUSED, "quadratic patterns of ours: 400 KB for 100 s"),
    Kind("large grammars", large_grammars, EITHER, "compiled for seconds"),
    Kind("steep numbers", steep_numbers, EITHER, "40 s in two backends"),
    Kind("references in circles", references, EITHER, "500 invalid_logits; fetches"),
    Kind("deep schemas", deep_schemas, EITHER, "stacks"),
    Kind("deep formats", deep_formats, EITHER, "stacks, by another door"),
    Kind("wide schemas", wide_schemas, EITHER, "compiled for seconds"),
    Kind("long enums", long_enums, EITHER, "the same"),
    Kind("exploding schemas", explosions, EITHER, "products of alternatives"),
    Kind("wrong schemas", wrong_schemas, REFUSED, "keywords of the wrong type take anything"),
    Kind("control characters", control_characters, EITHER, 'dropped: {"const": "a\\u001bb"} answered "ab"'),
    Kind(
        "behind a choice",
        behind_a_choice,
        EITHER,
        "100 ms of the engine's thread, where nobody had looked",
    ),
    Kind("choices", choices, EITHER, "a thousand alternatives, or none"),
    Kind("structural tags", tags, EITHER, "500s"),
    Kind("closed in time", in_time, EITHER, "a search for the shortest way out, in the engine"),
    Kind("a grammar and more", grammar_and_more, EITHER, "rows that nothing is left of"),
    Kind("odd tools", odd_tools, REFUSED, "accepted in silence"),
    Kind("many tools", many_tools, EITHER | TOO_MUCH, "a grammar of 16 MB is written before it is refused"),
    Kind("choices of tools", tool_choices, REFUSED, "500s"),
    Kind("names of tools", tool_names, EITHER, "markers inside of markers"),
    Kind("schemas of tools", tool_schemas, EITHER, "the grammar of a call"),
    Kind("many schemas at once", many_at_once, EITHER, "one compiler for all", limit_s=90.0),
    Kind("schemas as text", as_text, EITHER, "JSON in JSON"),
)
