"""Tools as clients declare them, in every format, with everything that needs a grammar: such a request is served, or
refused with words about the tool; never a fault of the server's. What the grammar lets through is read as a call."""

from __future__ import annotations

import json
import random
from itertools import cycle
from typing import Any

import jsonschema
import llguidance
import pytest

from api.harness import Front, LocalClient, front_of, saying
from api.submitted import PATHS, asked, refusal
from api.test_forced_tools import script_of, tool, vocabulary
from tailrace.config import ServerConfig
from tailrace.errors import ParameterError
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.llguidance_sources import rewrite_lark
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.tool_parsers import TOOL_FORMATS, tool_schemas
from tailrace.text.tool_parsers.functions import functions_of
from tailrace.text.tool_parsers.grammar import forced_grammar, optional_grammar
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter
from tailrace.text.tool_parsers.harmony import NAMES
from tool_examples import ALONE, ends_of, written

FORMS = list(TOOL_FORMATS)
TEXT = {"type": "string"}
SHAPES: dict[str, Any] = {
    "none": None,
    "empty": {},
    "object": {"type": "object"},
    "no properties": {"properties": {}},
    "nothing may be given": {"type": "object", "properties": {}, "additionalProperties": False},
    "anything may be given": {"type": "object", "additionalProperties": True},
    "texts may be given": {"type": "object", "additionalProperties": TEXT},
    "more may be given": {"properties": {"a": TEXT}, "additionalProperties": {"type": "integer"}},
    "anything besides": {"properties": {"a": TEXT}, "required": ["a"], "additionalProperties": {}},
    "one text": {"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
    "true and false": {"properties": {"a": True, "b": False, "c": {}}},
    "no types": {"properties": {"a": {"description": "x"}, "b": {"properties": {"c": {"items": {}}}}}},
    "undeclared": {"required": ["z"]},
    "undeclared too": {"properties": {"a": TEXT}, "required": ["a", "z"]},
    "reference": {
        "$ref": "#/$defs/x",
        "$defs": {"x": {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}},
    },
    "reference besides": {"$ref": "#/$defs/x", "properties": {"b": TEXT}, "$defs": {"x": {"properties": {"a": TEXT}}}},
    "reference to nothing": {"$ref": "#/$defs/x"},
    "all": {"allOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": {"type": "integer"}}}]},
    "any": {"anyOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": TEXT}, "required": ["b"]}]},
    "any required": {"properties": {"a": TEXT, "b": TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "one of": {"oneOf": [{"properties": {"k": {"const": name}, name: TEXT}, "required": ["k"]} for name in ("a", "b")]},
    "one of references": {
        "$defs": {name: {"type": "object", "properties": {"k": {"const": name}}, "required": ["k"]} for name in "ab"},
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    },
    "nested": {
        "properties": {"o": {"type": "object"}, "l": {"type": "array"}, "m": {"type": "object", "properties": {}}}
    },
    "deeper": {"properties": {"o": {"type": "object", "properties": {"a": TEXT}, "additionalProperties": TEXT}}},
    "odd names": {"properties": {"a-b": TEXT, "a b": TEXT, "a<b": TEXT, "class": TEXT, "item": TEXT, "": TEXT}},
    "counted": {"properties": {"a": {}}, "minProperties": 2, "additionalProperties": True},
    "patterns": {"type": "object", "patternProperties": {"^x": TEXT}},
    "no object": {"type": "string"},
    "types": {"type": ["object", "null"], "properties": {"a": TEXT}},
    "itself": {"properties": {"next": {"$ref": "#"}, "a": TEXT}},
    "null": {"properties": None},
}
FLAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"q": TEXT}}}}
STRICT = tool("strict", {"type": "object", "properties": {"s": TEXT}, "required": ["s"]}, strict=True)
ASKS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "single": ([], {"parallel_tool_calls": False}),
    "format": ([], {"response_format": {"type": "json_object"}}),
    "schema": ([], {"response_format": FLAT}),
    "strict beside": ([STRICT], {}),
    "allowed": (
        [STRICT],
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            }
        },
    ),
    "required": ([], {"tool_choice": "required"}),
    "named": ([STRICT], {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    "strict itself": ([], {"strict": True}),
}


def body_of(kind: str, shape: Any, ask: str) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request at an endpoint."""
    more, fields = ASKS[ask]
    fields = dict(fields)
    strict = {"strict": True} if fields.pop("strict", None) else {}
    tools = [tool("f", shape, **strict), *more]
    if kind == "messages":
        flat = [one["function"] for one in tools]
        called = [
            {"name": one["name"], "input_schema": one["parameters"]} | ({"strict": True} if one.get("strict") else {})
            for one in flat
        ]
        choices: dict[str, Any] = {
            "single": {"type": "auto", "disable_parallel_tool_use": True},
            "required": {"type": "any"},
            "named": {"type": "tool", "name": "f"},
        }
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "tools": called}
        return "/v1/messages", body | ({"tool_choice": choices[ask]} if ask in choices else {})
    path, body = PATHS[kind]
    if kind == "responses":
        tools = [{"type": "function"} | one["function"] for one in tools]
        if form := fields.pop("response_format", None):
            fields["text"] = {"format": {"type": form["type"]} | form.get("json_schema", {})}
    return path, body | {"tools": tools} | fields


async def check_served(front: Front, kind: str, shape: Any, ask: str) -> None:
    path, body = body_of(kind, shape, ask)
    answer = await front.http.post(path, json=body)
    assert answer.status_code in (200, 400), (body, answer.text)
    if answer.status_code == 400:
        message = answer.json()["error"]["message"]
        assert any(word in message for word in ("tool", "input_schema", "response_format", "text.format")), message


@pytest.mark.few(5)
@pytest.mark.parametrize("form", [*FORMS, NAMES[0]])
async def test_a_tool_of_any_shape_is_served_or_refused(form, tokenizer):
    config = ServerConfig(tool_parser=form)  # pyright: ignore
    async with front_of(LocalClient(saying(b"x")), tokenizer, config) as front:
        kinds = cycle(("chat", "responses", "messages", "chat"))
        for shape in SHAPES.values():
            for ask in ASKS:
                await check_served(front, next(kinds), shape, ask)


def any_schema(rng: random.Random, depth: int = 3) -> Any:
    """A schema of a parameter, or what a client takes for one."""
    match rng.randrange(12):
        case 0:
            return rng.choice([True, False, {}])
        case 1 | 2:
            return {"type": rng.choice(["string", "integer", "number", "boolean", "null", "object", "array"])}
        case 3:
            return {"type": ["string", rng.choice(["null", "integer"])]}
        case 4:
            return {"enum": rng.sample(["a", "</x>", 1, None, "b c"], rng.randint(1, 3))}
        case 5:
            return {"const": rng.choice(["a", 1, {"a": [1]}])}
        case 6 if depth:
            return {
                rng.choice(["anyOf", "oneOf", "allOf"]): [any_schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]
            }
        case 7 if depth:
            return {"type": "array", "items": any_schema(rng, depth - 1)}
        case 8:
            return {"$ref": rng.choice(["#/$defs/d", "#", "#/nowhere", "other.json"])}
        case 9:
            return {"type": "string"} | rng.choice([{"pattern": "^a"}, {"maxLength": 3}, {"format": "date"}])
        case _ if depth:
            return any_object(rng, depth - 1)
        case _:
            return {"description": "x"}


def any_object(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema of an object."""
    names = rng.sample(["a", "b", "c_1", "where to", "x-y", "é"], rng.randint(0, 3))
    found: dict[str, Any] = {"type": "object"} if rng.random() < 0.8 else {}
    if names or rng.random() < 0.5:
        found["properties"] = {name: any_schema(rng, depth) for name in names}
    if rng.random() < 0.5:
        found["required"] = [name for name in [*names, "z"] if rng.random() < 0.5]
    if rng.random() < 0.5:
        found["additionalProperties"] = rng.choice([True, False, {}, TEXT, any_schema(rng, 0)])
    if rng.random() < 0.2 and depth:
        found[rng.choice(["anyOf", "oneOf", "allOf"])] = [any_object(rng, 0) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.2:
        found["$ref"] = "#/$defs/d"
    return found


@pytest.mark.few(4)
@pytest.mark.parametrize("form", FORMS)
async def test_random_tools_are_served_or_refused(form, tokenizer):
    config = ServerConfig(tool_parser=form)  # pyright: ignore
    async with front_of(LocalClient(saying(b"x")), tokenizer, config) as front:
        for seed in range(60):
            rng = random.Random(f"{form} {seed}")
            shape = any_object(rng) | {"$defs": {"d": any_object(rng, 1)}}
            await check_served(front, rng.choice(["chat", "responses", "messages"]), shape, rng.choice(list(ASKS)))


@pytest.mark.few(9)
@pytest.mark.parametrize("how", ["text", "token", "special"])
@pytest.mark.parametrize("form", FORMS)
def test_a_loose_tool_may_be_called_with_any_arguments(form, how):
    """As with parallel_tool_calls false, or a strict tool beside it."""
    tools = [tool("f", {"type": "object", "properties": {"a": TEXT, "n": {"type": "object", "properties": {"k": {}}}}})]
    loose = [function._replace(loose=True) for function in functions_of(tools)]
    words = vocabulary(form, how)
    source = optional_grammar(TOOL_FORMATS[form], GrammarWriter(loose, words.tokenizer, many=False))
    called = {"a": "x </b> y", "n": {"k": [1, {"k": "v"}]}}
    if form == "minimax_m3":
        called = {"a": "x </b> y", "n": {"k": "v"}}
    for arguments in ({}, called, {"a": "x"}):
        text = written(form, [("f", arguments)])
        assert words.accepts(source, text), text
        assert not words.accepts(source, text.replace("f(", "g(").replace('"f"', '"g"') + text), text
    assert words.accepts(source, "hi")
    for seed in range(6):
        text = words.walk(source, seed, (written(form, [("f", called)]), *ends_of(form)))
        splitter = ChannelSplitter(None, TOOL_FORMATS[form], "unknown", tool_schemas(tools))
        segments = splitter.feed(text) + splitter.flush()
        calls = [s.call for s in segments if s.call is not None and s.call.name]
        assert len(calls) <= 1, text


def forced_arguments(form: str, shape: Any, seed: int) -> Any:
    """The arguments of a call that a forced grammar of the tool lets through; None if the tool is refused."""
    tools = [tool("f", shape)]
    words = vocabulary(form, "text")
    try:
        source = forced_grammar(TOOL_FORMATS[form], script_of(form, asked=tools, many=False))
        if llguidance.LLMatcher(words.ll, rewrite_lark(source)).is_error():
            return None
        text = words.walk(source, seed, ends_of(form))
    except (ParameterError, UnsupportedError):
        return None
    splitter = ChannelSplitter(None, TOOL_FORMATS[form], "unknown", tool_schemas(tools))
    segments = splitter.feed(text) + splitter.flush()
    assert [s.call.name for s in segments if s.call is not None and s.call.name] == ["f"], text
    return json.loads("".join(s.call.arguments for s in segments if s.call is not None))


@pytest.mark.few(9)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SHAPES)
def test_what_a_forced_call_of_any_shape_may_be_fits(form, name):
    """The grammar of each shape compiles, and what it lets through is a call."""
    arguments = forced_arguments(form, SHAPES[name], 1)
    # null in the place of a keyword is no keyword
    schema = {key: value for key, value in (SHAPES[name] or {}).items() if value is not None}
    if arguments is not None:
        jsonschema.validate(arguments, schema)


@pytest.mark.few(4)
@pytest.mark.parametrize("form", FORMS)
def test_what_a_forced_call_of_a_random_tool_may_be_fits(form):
    served = 0
    for seed in range(60):
        rng = random.Random(f"fits {seed}")
        shape = any_object(rng) | {"$defs": {"d": any_object(rng, 1)}}
        if (arguments := forced_arguments(form, shape, seed)) is not None:
            served += 1
            jsonschema.validate(arguments, shape)
    assert served > 10


NUMBER = {"type": "integer"}
EXACT: dict[str, tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = {
    "a tree by its root": (
        {"properties": {"n": NUMBER, "l": {"type": "array", "items": {"$ref": "#"}}}, "required": ["n"]},
        [{"n": 1, "l": [{"n": 2, "l": [{"n": 3}]}]}],
        [{"n": 1, "l": [[]]}, {"n": 1, "l": [{"l": []}]}, {"n": 1, "l": [1]}],
    ),
    "a reference to another parameter": (
        {
            "properties": {
                "p": {"type": "object", "properties": {"x": NUMBER}},
                "q": {"$ref": "#/properties/p"},
                "l": {"type": "array", "items": {"$ref": "#/properties/p"}},
            }
        },
        [{"q": {"x": 1}, "l": [{"x": 2}]}],
        [{"q": {"x": [1]}}, {"l": [{"x": [2]}]}],
    ),
    "a type beside alternatives": (
        {
            "properties": {"a": {"type": ["integer", "null"], "anyOf": [{"minimum": 5}, {"type": "null"}]}},
            "required": ["a"],
        },
        [{"a": 7}, {"a": None}],
        [{"a": 3}, {"a": True}],
    ),
    "true and false as alternatives": (
        {"properties": {"a": {"type": "integer", "anyOf": [False, True]}}},
        [{"a": 7}],
        [{"a": True}],
    ),
    "null that is not listed": (
        {"properties": {"a": {"type": ["string", "null"], "enum": ["x", "y"]}}},
        [{"a": "x"}],
        [{"a": None}],
    ),
    "undeclared names of an alternative": (
        {"properties": {"a": NUMBER}, "anyOf": [{"required": ["b"], "additionalProperties": NUMBER}]},
        [{"a": 1, "b": 2}],
        [{"a": 1, "b": True}, {"a": 1}],
    ),
}


@pytest.mark.few(20)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EXACT)
def test_a_forced_call_may_be_what_fits_and_nothing_else(form, name):
    schema, fitting, others = EXACT[name]
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, asked=[tool("f", schema)], many=False))
    words = vocabulary(form, "text")
    for arguments in (*fitting, *others):
        text = written(form, [("f", arguments)])
        assert words.accepts(source, text) == (arguments in fitting), text


GEMINI = {"type": "OBJECT", "properties": {"a": {"type": "STRING"}, "n": {"type": "INTEGER", "nullable": True}}}
SMALL = {"type": "object", "properties": {"a": TEXT, "n": {"type": ["integer", "null"]}}}
ODD: list[Any] = [
    {"type": ["object", "null"], "properties": {"a": TEXT}},
    {"type": None, "properties": {"a": {"type": None}}},
    {"type": "null"},
    {"type": "string"},
    {"type": "any", "properties": {"a": {"type": "str"}}},
    {"properties": {"a": {"properties": None}}},
    {"properties": [], "required": "a"},
    {"$ref": "#/nowhere"},
    {"oneOf": 3},
    GEMINI,
]


@pytest.mark.few(5)
@pytest.mark.parametrize("form", [*FORMS, NAMES[0]])
async def test_a_tool_that_is_not_enforced_may_have_any_schema(form, tokenizer):
    reasoning = {"reasoning_parser": form} if form in NAMES else {}  # this format's calls are channels
    config = ServerConfig(tool_parser=form, **reasoning)  # pyright: ignore
    async with front_of(LocalClient(saying(b"x")), tokenizer, config) as front:
        for schema in ODD:
            for ask in ("single", "strict beside", *(() if form in ALONE else ("format",))):
                more, fields = ASKS[ask]
                params, _ = await asked(front, tools=[tool("f", schema), *more], **fields)
                assert params.grammar is not None
        choice = {"type": "function", "function": {"name": "strict"}}  # another function is forced
        await asked(front, tools=[tool("f", {"type": "string"}), STRICT], tool_choice=choice)


def test_types_in_capitals_are_types():
    for form in FORMS:
        sources = [
            forced_grammar(TOOL_FORMATS[form], script_of(form, asked=[tool("f", schema)])) for schema in (GEMINI, SMALL)
        ]
        assert sources[0] == sources[1], form
    text = written("qwen3_coder", [("f", {"a": "12", "n": 12})])
    splitter = ChannelSplitter(None, TOOL_FORMATS["qwen3_coder"], "unknown", tool_schemas([tool("f", GEMINI)]))
    segments = splitter.feed(text) + splitter.flush()
    arguments = json.loads("".join(s.call.arguments for s in segments if s.call is not None))
    assert arguments == {"a": "12", "n": 12}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["object", "null"], "properties": {"a": TEXT}},
        {"type": "object", "nullable": True, "properties": {"a": TEXT}},
        {"type": None, "properties": {"a": TEXT}},
    ],
)
def test_the_arguments_of_a_forced_call_are_never_null(schema):
    plain = [tool("f", {"type": "object", "properties": {"a": TEXT}})]
    for form in FORMS:
        sources = [
            forced_grammar(TOOL_FORMATS[form], script_of(form, asked=tools)) for tools in ([tool("f", schema)], plain)
        ]
        assert sources[0] == sources[1], form


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "null"}, {"type": ["string", "null"]}])
async def test_an_enforced_tool_that_takes_no_object_is_refused(schema, tokenizer):
    async with front_of(LocalClient(saying(b"x")), tokenizer, ServerConfig(tool_parser="hermes")) as front:
        for fields, tools in (
            ({"tool_choice": "required"}, [tool("f", schema)]),
            ({}, [STRICT, tool("f", schema, strict=True)]),
        ):
            error = await refusal(front, tools=tools, **fields)
            assert error["param"] == "tools"
            assert f"tools[{len(tools) - 1}].function.parameters (f) must be" in error["message"]


async def test_what_is_too_much_for_one_answer_is_said_of_the_tools(tokenizer):
    async with front_of(LocalClient(saying(b"x")), tokenizer, ServerConfig(tool_parser="qwen3_coder")) as front:
        schema = {"properties": {f"p{j}": {"enum": [f"{j}" * 900]} for j in range(50)}}
        tools = [tool(f"f{i}", schema, strict=True) for i in range(30)]
        for fields in ({"tool_choice": "required"}, {}):
            error = await refusal(front, tools=tools, **fields)
            assert error["param"] == "tools"
            assert "the 30 functions are too large" in error["message"]


def test_many_optional_texts_can_be_forced():
    for form in FORMS:
        texts = [TEXT, {"type": ["string", "null"]}, {"enum": ["a", "y"]}]
        properties = {f"parameter_{i}": texts[i % 3] | {"description": f"number {i}"} for i in range(250)}
        tools = [tool("f", {"properties": properties})]
        source = forced_grammar(TOOL_FORMATS[form], script_of(form, asked=tools))
        assert len(source) < 100_000, form
        text = written(form, [("f", {"parameter_6": "x", "parameter_200": "y"})])
        assert vocabulary(form, "text").accepts(source, text), form
