"""What a tool's schema may be, what of it is enforced, and which options of a grammar go with which requests."""

from __future__ import annotations

import enum
import gc
import json
import time
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest

from api.harness import LocalClient, front_of, saying
from api.submitted import asked, post, refusal
from api.test_forced_tools import MARKS, script_of, tool, vocabulary
from tailrace.api.sampling import MAX_COPIES
from tailrace.config import ServerConfig
from tailrace.errors import ParameterError
from tailrace.request.options import MAX_GRAMMAR
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.tool_parsers import TOOL_FORMATS, tool_schemas
from tailrace.text.tool_parsers.functions import functions_of
from tailrace.text.tool_parsers.grammar import forced_grammar
from tailrace.text.tool_parsers.grammar_writer import without_options
from tool_examples import STREAMED, TREES, written

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
    source = forced_grammar(TOOL_FORMATS["llama3_json"], script_of("llama3_json", asked=[tool("f", parameters)]))
    for inner, good in (
        ('{"a":1,"b":"x\\n\\""}', True),
        (r'{"a":1,"\u0061":"x"}', False),
        (r'{"a":1,"b":"\u000b"}', False),
    ):
        text = f'{{"name": "f", "parameters": {inner}}}'
        assert vocabulary("llama3_json", "text").accepts(source, text) == good, inner


COUNTED = {"properties": {"a": {}}, "minProperties": 2, "additionalProperties": True}


async def test_properties_that_cannot_be_counted_are_refused(front):
    for tools, more in (
        ([tool("f", COUNTED)], {"tool_choice": "required"}),
        (
            [tool("f", {"properties": {"o": {"$ref": "#/$defs/o"}}, "$defs": {"o": COUNTED}})],
            {"tool_choice": "required"},
        ),
        ([tool("f", COUNTED, strict=True)], {}),
    ):
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
    {"a": deep(400)},
    {"a": {"type": "string", "anyOf": 5}},
    {"a": {"type": "string", "enum": 5}},
    {"a": {"type": "string", "anyOf": [5]}},
    {"a": {"type": "string", "minLength": "2"}},
    {"a": {"type": "string", "maxLength": -1}},
    {"a": {"type": "string", "pattern": 5}},
    {"a": {"type": {"x": 1}}},
    {"a": 5},
]


@pytest.mark.parametrize("parameters", [*({"properties": bad} for bad in BAD), {"properties": {}, "required": [1]}])
async def test_what_is_no_schema_is_a_400_that_names_the_tools(any_front, parameters):
    error = await refusal(any_front, tools=[tool("f", parameters)], tool_choice="required")
    assert (error["param"], "tools[0].function.parameters" in error["message"]) == ("tools", True)


async def test_json_beside_tools_has_a_depth_too(front):
    form = {"type": "json_schema", "json_schema": {"schema": deep(400)}}
    error = await refusal(front, tools=TOOL, response_format=form)
    assert (error["param"], "deeper than 64" in error["message"]) == ("response_format", True)


async def test_json_beside_tools_has_numbers_that_a_double_can_be(front):
    error = await refusal(front, tools=TOOL, guided_json='{"type": "integer", "maximum": 1e400}')
    assert (error["param"], error["message"][:33]) == ("guided_json", "guided_json: numbers must be in [")


@pytest.mark.parametrize("form", ["qwen3_coder", "glm4", "pythonic"])
def test_schemas_that_are_true_or_false(form):
    def source(schema: Any, required: bool = False) -> str:
        parameters = {"properties": {"a": schema, "b": {"type": "string"}}, "required": ["a"] if required else []}
        return forced_grammar(TOOL_FORMATS[form], script_of(form, asked=[tool("f", parameters)]))

    assert "arg_0_1" in source(True, required=True)
    assert "arg_0_1" not in source(False)  # the parameter can't be given
    with pytest.raises(ParameterError, match='"a"'):
        source(False, required=True)
    if form != "pythonic":
        with pytest.raises(ParameterError, match="true as an alternative"):
            source({"type": "string", "anyOf": [True]})


def test_lengths_may_be_written_as_floats():
    source = forced_grammar(
        TOOL_FORMATS["glm4"],
        script_of(
            "glm4", asked=[tool("f", {"properties": {"a": {"type": "string", "minLength": 1.0, "maxLength": 2.0}}})]
        ),
    )
    assert "{1,2}" in source


@pytest.mark.long
def test_eight_times_as_many_tools_take_no_square_of_the_time():
    def seconds(count: int) -> float:
        begin = time.process_time()
        functions = functions_of([tool(f"f{i}", {}) for i in range(count)])
        forced_grammar(TOOL_FORMATS["hermes"], script_of("hermes", asked=[tool(f"f{i}", {}) for i in range(count)]))
        assert len(functions) == count
        return time.process_time() - begin

    seconds(100)
    gc.disable()  # collections take longer the more there is
    try:
        few, many = (min(seconds(count) for _ in range(4)) for count in (1000, 8000))
    finally:
        gc.enable()
    assert many < 32 * few  # eight times where it is linear, 64 where it is not


def test_options_of_the_library_are_left_out_and_values_stay():
    schema = {
        "type": "object",
        "properties": {"format": {"type": "string", "format": "int32", "x-guidance": {"lenient": True}}},
        "enum": [{"format": "int32", "x-guidance": 1}],
    }
    assert without_options(schema) == schema | {"properties": {"format": {"type": "string", "format": "int32"}}}


ODD: dict[str, tuple[Any, list[Any]]] = {
    "numbers": ({"type": "number"}, ["1e4273219", "0.974E332", "-0", "1E5", "1e-5", "36893488147419103232", "-1e400"]),
    "anything": (
        {},
        ['["</arg_value>", "</parameter>", "</tool_call>"]', '{"a": "\\"</arg_value>"}', '"</parameter>"', "1e999"],
    ),
    "texts": ({"type": "array", "items": {"type": "string"}}, ['["</arg_value>"]', '["<arg_key>", "\\\\", "é😀"]']),
}


@pytest.mark.few(20)
@pytest.mark.parametrize("how", ["text", "token", "special"])
@pytest.mark.parametrize("form", [form for form in TOOL_FORMATS if form not in (*TREES, "kimi_k3")])
@pytest.mark.parametrize("kind", ODD)
def test_odd_values_are_called_as_they_are_written(form, how, kind):
    """What the grammar lets through is read back to exactly that, whatever its numbers and markers."""
    schema, values = ODD[kind]
    asked = [
        tool("paint", {"properties": {"where": {"type": "string"}, "rooms": schema}, "required": ["where", "rooms"]})
    ]
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, how, asked))
    for value in values:
        text = written(form, [("paint", {"where": "a", "rooms": []})])
        text = text.replace('"rooms": []', f'"rooms": {value}') if form in STREAMED else text.replace("[]", value)
        [(name, arguments)], said = written_calls(form, text, asked)
        assert (name, said) == ("paint", "")
        assert read_exactly(arguments) == {"where": "a", "rooms": read_exactly(value)}
        if how == "text" or not any(mark in value for mark in MARKS[form]):  # else the tokenizer makes markers of it
            assert vocabulary(form, how).accepts(source, text), text


def read_exactly(text: str) -> Any:
    """With numbers as they are written."""
    return json.loads(text, parse_float=str, parse_int=str)


def written_calls(form: str, text: str, asked: list[dict]) -> tuple[list[tuple[str, str]], str]:
    """The calls with their arguments as text, and what else was said, whether it comes at once or in pieces."""
    found = []
    for pieces in ([text], list(text)):
        splitter = ChannelSplitter(None, TOOL_FORMATS[form], "unknown", tool_schemas(asked))
        segments = [s for piece in pieces for s in splitter.feed(piece)] + splitter.flush()
        calls: list[tuple[str, str]] = []
        for call in [s.call for s in segments if s.call is not None]:
            calls = [*calls, (call.name, "")] if call.name else calls
            calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
        found.append((calls, "".join(s.text for s in segments if s.channel == "content")))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("form", ["qwen3_coder", "glm4"])
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "enum": ["a", "bb", None]}, ["a", "bb"], ["null", "b"]),
        ({"type": "string", "enum": ["a", "bb"], "maxLength": 1}, ["a"], ["bb"]),
        ({"type": "string", "enum": ["a", "bb"], "const": "bb"}, ["bb"], ["a"]),
        ({"type": ["string", "null"], "enum": ["a1", "b", None], "pattern": "[0-9]"}, ["a1", "null"], ["b"]),
        ({"enum": ["1", "x"]}, ["1", "x"], ['"1"', "2"]),
        ({"type": "string", "anyOf": [{"const": "k"}, {"type": "null"}]}, ["k"], ["null"]),
    ],
)
def test_listed_texts_fit_what_stands_beside_them(form, schema, good, bad):
    asked = [tool("f", {"properties": {"a": schema}, "required": ["a"]})]
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, asked=asked))
    around = {
        "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>",
        "glm4": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    }[form]
    for text in good:
        assert vocabulary(form, "text").accepts(source, around.format(text)), text
        [(_, arguments)], _ = written_calls(form, around.format(text), asked)
        jsonschema.validate(json.loads(arguments), asked[0]["function"]["parameters"])
    assert not any(vocabulary(form, "text").accepts(source, around.format(text)) for text in bad)


@pytest.mark.parametrize("form", ["qwen3_coder", "glm4"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "enum": []} | {"type": "string"},
        {"type": "string", "enum": ["a"], "minLength": 2},
        {"oneOf": [{"type": "string"}, {"const": "a", "type": "string"}]},
        {"type": ["string", "null"], "enum": ["null", None]},
    ],
)
def test_listed_texts_of_which_none_fits_or_some_twice_are_refused(form, schema):
    with pytest.raises(ParameterError, match="can't be enforced"):
        forced_grammar(TOOL_FORMATS[form], script_of(form, asked=[tool("f", {"properties": {"a": schema}})]))


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_required_names_are_declared_or_refused(form):
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, asked=[tool("f", {"required": ["b"]})]))
    assert vocabulary(form, "text").accepts(source, vocabulary(form, "text").walk(source, 1))
    with pytest.raises(ParameterError, match='"b" is required'):
        script_of(form, asked=[tool("f", {"required": ["b"], "additionalProperties": False})])


@pytest.mark.parametrize(
    "schema",
    [
        {"const": "a\x1bb"},
        {"enum": [1, ["\x7f"]]},
        {"type": "string", "pattern": "^a\\u0001b$"},
        {"type": "string", "pattern": "\\cC"},
        {"type": "object", "properties": {"\x01": {}}},
    ],
)
def test_control_characters_that_calls_cannot_write_are_refused(schema):
    with pytest.raises(ParameterError, match="control characters"):
        forced_grammar(TOOL_FORMATS["hermes"], script_of("hermes", asked=[tool("f", {"properties": {"a": schema}})]))


# ---- options


async def test_options_go_with_calls_too(front):
    more: dict[str, Any]
    for more in ({"tool_choice": "required"}, {"parallel_tool_calls": False}):
        grammar = (await asked(front, tools=TOOL, structured_outputs={"whitespace": 2}, **more))[0].grammar
        assert grammar is not None
        assert (grammar.whitespace, "{1,2}" in grammar.source) == (2, True)


@pytest.mark.parametrize("kind", ["chat", "text", "responses"])
async def test_options_alone_are_refused_whatever_they_are_called(front, kind):
    for fields in ({"structured_outputs": {"whitespace": 2}}, {"guided_decoding_backend": "llguidance"}):
        error = await refusal(front, kind, **fields)
        assert (error["param"], "no effect" in error["message"]) == (next(iter(fields)), True)
    assert (await post(front, kind, guided_decoding_backend="auto")).status_code == 200
    if kind == "chat":  # free: nothing is enforced
        assert (await refusal(front, tools=TOOL, structured_outputs={"whitespace": 2}))["param"] == "structured_outputs"


async def test_nothing_to_say_and_a_grammar_of_it(front):
    error = await refusal(front, "text", max_tokens=0, echo=True, guided_regex="a")
    assert (error["param"], "max_tokens 0" in error["message"]) == ("guided_regex", True)


async def test_the_copies_of_a_grammar_are_bounded(front):
    pattern = "a" * MAX_GRAMMAR
    most = MAX_COPIES // (MAX_GRAMMAR + 1024)
    error = await refusal(front, "text", prompt=["x"] * (most + 1), guided_regex=pattern)
    assert (error["param"], str(MAX_COPIES) in error["message"]) == ("guided_regex", True)
    assert (await asked(front, "text", prompt=["x"] * most, guided_regex=pattern))[0].grammar is not None


# ---- what pydantic writes


class Year(str, enum.Enum):  # noqa: UP042, as most write them
    NEW = "2024"
    OLD = "x"


class Point(pydantic.BaseModel):
    x: int
    label: str | None = None


class Asked(pydantic.BaseModel):
    """As agents declare tools: references, alternatives, enums and literals."""

    point: Point | None = None
    year: Year
    kind: Literal["1", 2] = "1"
    many: list[Point] = []
    name: Annotated[str, pydantic.Field(max_length=5)] = ""
    twin: Point | str = ""


AROUND = {
    "qwen3_coder": ("<tool_call>\n<function=f>\n", "<parameter={}>\n{}\n</parameter>\n", "</function>\n</tool_call>"),
    "glm4": ("<tool_call>f\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</tool_call>"),
}


@pytest.mark.few(7)
@pytest.mark.parametrize("form", AROUND)
@pytest.mark.parametrize(
    ("fields", "value", "forced"),
    [
        ({"point": '{"x": 1}', "year": "2024"}, {"point": {"x": 1}, "year": "2024"}, True),
        ({"point": "null", "year": "x"}, {"point": None, "year": "x"}, True),
        ({"point": "{'x': 1, 'label': None}", "year": "x"}, {"point": {"x": 1, "label": None}, "year": "x"}, False),
        ({"year": "2024", "kind": "1"}, {"year": "2024", "kind": "1"}, False),
        ({"year": "2024", "kind": '"1"'}, {"year": "2024", "kind": "1"}, True),
        ({"year": "2024", "kind": "2"}, {"year": "2024", "kind": 2}, True),
        (
            {"year": "2024", "many": '[{"x": 2, "label": "5"}]'},
            {"year": "2024", "many": [{"x": 2, "label": "5"}]},
            True,
        ),
        ({"year": "2024", "name": "12"}, {"year": "2024", "name": "12"}, True),
        ({"year": "2024", "twin": "12"}, {"year": "2024", "twin": "12"}, False),
        ({"year": "2024", "twin": '{"x": 3}'}, {"year": "2024", "twin": {"x": 3}}, True),
    ],
)
def test_schemas_as_pydantic_writes_them(form, fields, value, forced):
    schema = Asked.model_json_schema()
    asked = [tool("f", schema)]
    head, field, tail = AROUND[form]
    text = head + "".join(field.format(*one) for one in fields.items()) + tail
    [(_, arguments)], _ = written_calls(form, text, asked)
    assert json.loads(arguments) == value
    Asked.model_validate_json(arguments)
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, asked=asked))
    assert vocabulary(form, "text").accepts(source, text) == forced
    for seed in range(3):
        walked = vocabulary(form, "text").walk(source, seed)
        for _, arguments in written_calls(form, walked, asked)[0]:
            Asked.model_validate_json(arguments)


@pytest.mark.few(9)
@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_an_optional_model_can_be_forced(form):
    asked = [tool("f", Asked.model_json_schema())]
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, asked=asked))
    for seed in range(5):
        for _, arguments in written_calls(form, vocabulary(form, "text").walk(source, seed), asked)[0]:
            Asked.model_validate_json(arguments)


def test_nullable_is_a_type():
    asked = [tool("f", {"properties": {"a": {"type": "string", "nullable": True}}, "required": ["a"]})]
    for form, text in (
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": null}}\n</tool_call>'),
        *((form, head + field.format("a", "null") + tail) for form, (head, field, tail) in AROUND.items()),
    ):
        assert vocabulary(form, "text").accepts(forced_grammar(TOOL_FORMATS[form], script_of(form, asked=asked)), text)
        assert json.loads(written_calls(form, text, asked)[0][0][1]) == {"a": None}


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog", "hound"] = "dog"
    name: str


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


class Pets(pydantic.BaseModel):
    one: Pet
    maybe: Pet | None = None
    many: list[Pet]


class Only(pydantic.RootModel[Pet]):
    pass


class Again(pydantic.RootModel[Only]):
    pass


@pytest.mark.few(9)
@pytest.mark.parametrize("form", TOOL_FORMATS)
@pytest.mark.parametrize("kind", [Pets, Only, Again])
def test_a_discriminated_union_can_be_forced(form: str, kind: type[pydantic.BaseModel]):
    schema = kind.model_json_schema()
    asked = [tool("f", schema)]
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, asked=asked))
    kinds = set()
    for seed in range(4):
        [(_, arguments), *_], _ = written_calls(form, vocabulary(form, "text").walk(source, seed), asked)
        kind.model_validate_json(arguments)
        jsonschema.validate(json.loads(arguments), schema)
        kinds |= {name for name in ("cat", "dog", "hound") if f'"{name}"' in arguments}
    assert kinds


@pytest.mark.parametrize("form", AROUND)
def test_the_branches_of_a_functions_arguments_are_not_mixed(form: str):
    asked = [tool("f", Only.model_json_schema())]
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, asked=asked))
    head, field, tail = AROUND[form]
    for fields, fits in (
        ({"kind": "cat", "lives": "9"}, True),
        ({"kind": "hound", "name": "rex"}, True),
        ({"kind": "cat", "name": "rex"}, False),
        ({"kind": "dog", "lives": "9"}, False),
        ({"kind": "cat"}, False),
        ({"name": "rex"}, False),
    ):
        text = head + "".join(field.format(*one) for one in fields.items()) + tail
        assert vocabulary(form, "text").accepts(source, text) == fits, fields
