"""What a tool's schema may be, what of it is enforced, and which options of a grammar go with which requests."""

from __future__ import annotations

import time
from typing import Any

import pytest

from api.asked import asked, post, refusal
from api.harness import LocalClient, front_of, saying
from api.test_forced_tools import script_of, tool, vocabulary
from tailrace.api.structured import MAX_COPIES
from tailrace.config import ServerConfig
from tailrace.errors import ParameterError
from tailrace.options import MAX_GRAMMAR
from tailrace.text.tools import TOOLS
from tailrace.text.tools.functions import functions_of
from tailrace.text.tools.grammar import forced
from tailrace.text.tools.script import plain

TOOL = [tool("f", {"properties": {"a": {"type": "integer"}}})]
JSON = {"type": "json_object"}


@pytest.fixture(params=["hermes", "qwen3_coder", "glm4", "pythonic"])
async def any_front(tokenizer, request):
    async with front_of(LocalClient(saying(b"x")), tokenizer, ServerConfig(tool_parser=request.param)) as front:
        yield front


@pytest.fixture
async def front(tokenizer):
    async with front_of(LocalClient(saying(b"x")), tokenizer, ServerConfig(tool_parser="hermes")) as front:
        yield front


def test_a_name_cannot_be_spelled_past_its_schema():
    parameters = {"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": True}
    source = forced(TOOLS["llama3_json"], script_of("llama3_json", asked=[tool("f", parameters)]))
    for inner, good in (
        ('{"a":1,"b":"x\\n\\""}', True), (r'{"a":1,"\u0061":"x"}', False), (r'{"a":1,"b":"\u000b"}', False),
    ):  # fmt: skip
        text = f'{{"name": "f", "parameters": {inner}}}'
        assert vocabulary("llama3_json", "text").accepts(source, text) == good, inner


COUNTED = {"properties": {"a": {}}, "minProperties": 2, "additionalProperties": True}


async def test_properties_that_cannot_be_counted_are_refused(front):
    for tools, more in (
        ([tool("f", COUNTED)], {"tool_choice": "required"}),
        ([tool("f", {"properties": {"o": {"$ref": "#/$defs/o"}}, "$defs": {"o": COUNTED}})], {"tool_choice": "required"}),
        ([tool("f", COUNTED, strict=True)], {}),
    ):  # fmt: skip
        error = await refusal(front, tools=tools, **more)
        assert (error["param"], "minProperties 2" in error["message"]) == ("tools", True)
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"} | COUNTED}}
    error = await refusal(front, tools=TOOL, response_format=form)
    assert (error["param"], "minProperties 2" in error["message"]) == ("response_format", True)
    # of a tool that is not strict nothing is enforced, and where the names are known they can be counted
    assert (await asked(front, tools=[tool("f", COUNTED)], parallel_tool_calls=False))[0].grammar is not None
    known = COUNTED | {"properties": {"a": {}, "b": {}}, "additionalProperties": False}
    assert (await asked(front, tools=[tool("f", known)], tool_choice="required"))[0].grammar is not None


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


BAD = [
    {"a": deep(400)}, {"a": {"type": "string", "anyOf": 5}}, {"a": {"type": "string", "enum": 5}},
    {"a": {"type": "string", "anyOf": [5]}}, {"a": {"type": "string", "minLength": "2"}},
    {"a": {"type": "string", "maxLength": -1}}, {"a": {"type": "string", "pattern": 5}}, {"a": {"type": {"x": 1}}}, {"a": 5},
]  # fmt: skip


@pytest.mark.parametrize("parameters", [*({"properties": bad} for bad in BAD), {"properties": {}, "required": [1]}])
async def test_what_is_no_schema_is_a_400_that_names_the_tools(any_front, parameters):
    error = await refusal(any_front, tools=[tool("f", parameters)], tool_choice="required")
    assert (error["param"], "tools[0].parameters" in error["message"]) == ("tools", True)


async def test_json_beside_tools_has_a_depth_too(front):
    form = {"type": "json_schema", "json_schema": {"schema": deep(400)}}
    error = await refusal(front, tools=TOOL, response_format=form)
    assert (error["param"], "deeper than 64" in error["message"]) == ("response_format", True)


@pytest.mark.parametrize("form", ["qwen3_coder", "glm4", "pythonic"])
def test_schemas_that_are_true_or_false(form):
    def source(schema: Any, required: bool = False) -> str:
        parameters = {"properties": {"a": schema, "b": {"type": "string"}}, "required": ["a"] if required else []}
        return forced(TOOLS[form], script_of(form, asked=[tool("f", parameters)]))

    assert "arg_0_1" in source(True, required=True)
    assert "arg_0_1" not in source(False)  # the parameter can't be given
    with pytest.raises(ParameterError, match="'a'"):
        source(False, required=True)
    if form != "pythonic":
        with pytest.raises(ParameterError, match="true as an alternative"):
            source({"type": "string", "anyOf": [True]})


def test_lengths_may_be_written_as_floats():
    source = forced(
        TOOLS["glm4"],
        script_of("glm4", asked=[tool("f", {"properties": {"a": {"type": "string", "minLength": 1.0, "maxLength": 2.0}}})]),
    )  # fmt: skip
    assert "{1,2}" in source


def test_many_tools_take_no_long():
    begin = time.process_time()
    functions = functions_of([tool(f"f{i}", {}) for i in range(8000)])
    forced(TOOLS["hermes"], script_of("hermes", asked=[tool(f"f{i}", {}) for i in range(8000)]))
    assert len(functions) == 8000
    assert time.process_time() - begin < 1.0


def test_annotations_are_left_out_and_values_stay():
    schema = {"type": "object", "properties": {"format": {"type": "string", "format": "int32", "x-guidance": {"lenient": True}}},
              "enum": [{"format": "int32", "x-guidance": 1}]}  # fmt: skip
    assert plain(schema) == schema | {"properties": {"format": {"type": "string"}}}


# ---- options


async def test_options_go_with_calls_too(front):
    more: dict[str, Any]
    for more in ({"tool_choice": "required"}, {"parallel_tool_calls": False}):
        grammar = (await asked(front, tools=TOOL, structured_outputs={"whitespace": 2}, **more))[0].grammar
        assert grammar is not None
        assert (grammar.whitespace, "{1,2}" in grammar.source) == (2, True)


@pytest.mark.parametrize("kind", ["chat", "text", "responses"])
async def test_options_alone_are_refused_whatever_they_are_called(front, kind):
    for fields in ({"structured_outputs": {"whitespace": 2}}, {"guided_decoding_backend": "xgrammar"}):
        error = await refusal(front, kind, **fields)
        assert (error["param"], "no effect" in error["message"]) == (next(iter(fields)), True)
    assert (await post(front, kind, guided_decoding_backend="auto")).status_code == 200
    if kind == "chat":  # free: nothing is enforced
        assert (await refusal(front, tools=TOOL, structured_outputs={"whitespace": 2}))["param"] == "structured_outputs"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"structured_outputs": {"backend": "xgrammar"}}, "structured_outputs.backend"),
        ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend"),
    ],
)
async def test_a_backend_that_cannot_match_calls_is_named(front, fields, field):
    more: dict[str, Any]
    for more in ({"tool_choice": "required"}, {"parallel_tool_calls": False}, {"response_format": JSON}):
        error = await refusal(front, tools=TOOL, **fields, **more)
        assert (error["param"], field in error["message"], "tool calls" in error["message"]) == (field, True, True)
    grammar = (await asked(front, tools=TOOL, tool_choice="none", response_format=JSON, **fields))[0].grammar
    assert grammar is not None
    assert grammar.backend == "xgrammar"


async def test_nothing_to_say_and_a_grammar_of_it(front):
    error = await refusal(front, "text", max_tokens=0, echo=True, guided_regex="a")
    assert (error["param"], "max_tokens 0" in error["message"]) == ("guided_regex", True)


async def test_the_copies_of_a_grammar_are_bounded(front):
    pattern = "a" * MAX_GRAMMAR
    most = MAX_COPIES // MAX_GRAMMAR
    error = await refusal(front, "text", prompt=["x"] * (most + 1), guided_regex=pattern)
    assert (error["param"], str(MAX_COPIES) in error["message"]) == ("guided_regex", True)
    assert (await asked(front, "text", prompt=["x"] * most, guided_regex=pattern))[0].grammar is not None
