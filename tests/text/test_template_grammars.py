"""Grammars that follow from response templates: each text of the grammar is a call for transformers' ResponseParser,
and the call fits the schema."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from api.test_forced_tools import Vocabulary, tool
from tailrace.errors import ParameterError
from tailrace.text.response_templates.template import ResponseTemplate, load_template
from tailrace.text.tool_parsers import ToolFormat, tool_schemas
from tailrace.text.tool_parsers.functions import functions_of
from tailrace.text.tool_parsers.grammar import forced_grammar
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter
from text.test_early_calls import split_calls
from text.test_response_templates import NAMED

chat_parsing = pytest.importorskip("transformers.utils.chat_parsing")

QWEN = {"open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>]+)>", "close_pattern": r"</function>\s*</tool_call>"}
JSON_OR_TEXT = {"name": "json", "args": {"allow_non_json": True}}


def tags(pattern: str, **options: Any) -> dict[str, Any]:
    return {"content": "xml-inline", "content_args": {"tag_pattern": pattern, **options}, "transform": NAMED}


def dialect(**options: Any) -> dict[str, Any]:
    return {"content": "json", "content_args": options}


NAME = {"open_pattern": r"<\|tool>call:(?P<name>\w+)\s*:", "close": "<tool|>"}
GLM = {"open_pattern": r"<tool_call>(?P<name>[^<\n]+)\n", "close": "</tool_call>"}
ARG = r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
LINES = r"<parameter=(?P<key>[^>]+)>\n?(?P<value>.*?)\n?</parameter>"
SPACES = r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"
CONTENT = {"transform": {"function": {"name": "{content.tool}", "arguments": "{content.input}"}}}
FIELDS: dict[str, dict[str, Any]] = {
    "lines": QWEN | tags(LINES),
    "spaces": QWEN | tags(SPACES),
    "values": GLM | tags(ARG, value_parser=JSON_OR_TEXT),
    "only json": GLM | tags(ARG, value_parser={"name": "json"}),
    "texts": GLM | tags(ARG, value_parser={"name": "text"}),
    "merged": QWEN | tags(LINES, merge_duplicates=True),
    "marks": NAME | dialect(unquoted_keys=True, string_delims=[['<|"|>', '<|"|>']]) | {"transform": NAMED},
    "marks and keys": NAME | dialect(string_delims=[["<q>", "</q>"]]) | {"transform": NAMED},
    "bare": NAME | dialect(unquoted_keys=True) | {"transform": NAMED},
    "bare object": {"open": "<call>", "close": "</call>"} | dialect(unquoted_keys=True) | CONTENT,
    "marked object": {"open": "<call>", "close": "</call>"} | dialect(string_delims=[["<q>", "<q>"]]) | CONTENT,
    "gemma": {"open_pattern": r"<\|tool>call:(?P<name>\w+)", "close": "<tool|>"}
    | dialect(unquoted_keys=True, string_delims=[['<|"|>', '<|"|>']])
    | {"transform": NAMED},
    "glm": {"open_pattern": r"<tool_call>(?P<name>[^<\n]+)", "close": "</tool_call>"} | tags(ARG),
    "json or text": NAME | dialect(allow_non_json=True) | {"transform": NAMED},
    "no transform": {"open": "<call>", "close": "</call>", "content": "json"},
    "list": {"open": "<call>", "close": "</call>", "content": "json", "transform_each": True}
    | {"transform": {"function": {"name": "{name}", "arguments": "{arguments}"}}},
}
NEWER = ("bare", "bare object")  # transformers 5.23 changes texts that look like keys
TEXTS = [{}, {"minLength": 2}, {"maxLength": 3}, {"pattern": "^[a-c <]+$"}, {"enum": ["red", "null", "a <b", "12"]}]
SCHEMAS = st.recursive(
    st.one_of(
        st.sampled_from([{"type": "string", **more} for more in TEXTS]),
        st.sampled_from([{"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}]),
        st.sampled_from([{"type": "integer", "minimum": 2, "maximum": 40}, {"type": "boolean"}, {"type": "null"}]),
        st.sampled_from([{"type": "number", "minimum": 0, "maximum": 9}, {"type": ["integer", "null"], "maximum": 3}]),
        st.sampled_from([{"type": "integer", "enum": [1, 2]}, {"const": "c"}, {"type": "object"}, {"type": "array"}]),
    ),
    lambda inner: st.one_of(
        inner.map(lambda one: {"type": "array", "items": one, "maxItems": 2}),
        st.dictionaries(st.sampled_from("xyz"), inner, min_size=1, max_size=2).map(
            lambda ones: {
                "type": "object",
                "properties": ones,
                "required": list(ones)[:1],
                "additionalProperties": False,
            }
        ),
    ),
    max_leaves=3,
)
PARAMETERS = st.dictionaries(st.sampled_from(["a", "b", "name", "item"]), SCHEMAS, max_size=3)


def load(name: str) -> tuple[ResponseTemplate, dict[str, Any]]:
    spec = {"start_anchor": "assistant:", "fields": {"tool_calls": {"repeats": True, **FIELDS[name]}, "content": {}}}
    return load_template(spec, "template"), spec


INNER = ("<parameter=", "</parameter>", "<arg_key>", "</arg_value>", '<|"|>', "</q>")


def vocabulary(name: str, form: ToolFormat, how: str) -> Vocabulary:
    texts = (*form.marks, *(text for text in INNER if text in str(FIELDS[name])))
    words = Vocabulary(texts if how != "text" else (), how == "special", "".join(texts))
    words.ends = ('"', *texts, "\n</parameter>", "<q>", "</function>", "</")
    return words


def read_theirs(spec: dict[str, Any], text: str, asked: list[dict[str, Any]]) -> list[Any]:
    parser = chat_parsing.ResponseParser(spec, prefix="", tools=asked)
    parser.feed(text)
    message, _ = parser.finalize()
    return [
        call["function"] for value in message["tool_calls"] for call in (value if isinstance(value, list) else [value])
    ]


@pytest.mark.parametrize("how", ["text", "token", "special"])
@pytest.mark.parametrize("name", FIELDS)
@settings(max_examples=8, deadline=None)
@given(parameters=PARAMETERS, seed=st.integers(0, 99))
def test_every_text_is_a_call_that_fits(name: str, how: str, parameters: dict[str, Any], seed: int) -> None:
    schema = {
        "type": "object",
        "properties": parameters,
        "required": list(parameters)[:2],
        "additionalProperties": False,
    }
    template, spec = load(name)
    form = template.make_tools()
    assert form is not None
    words, asked = vocabulary(name, form, how), [tool("f", schema), tool("stop", {"properties": {}})]
    text = words.walk(forced_grammar(form, GrammarWriter(functions_of(asked), words.tokenizer)), seed)
    assume(not re.search(r"[eE]\+?\d{3}", text))  # a number that no float holds
    ours = split_calls(spec, [text], tool_schemas(asked))
    assert not ours["content"].strip(), text
    assert split_calls(spec, list(text), tool_schemas(asked)) == ours
    found = [(called, json.loads(arguments)) for called, arguments in ours["calls"]]
    assert found
    theirs = (
        [(one["name"], one["arguments"]) for one in read_theirs(spec, text, asked)] if can_ask(name, found) else found
    )
    assert found == theirs, text
    for called, arguments in theirs:
        jsonschema.validate(arguments, schema if called == "f" else {"maxProperties": 0})


def can_ask(name: str, found: Any) -> bool:
    """transformers ends a region at a closing marker within a JSON string, and 5.23 changes texts like keys."""
    if name in ("no transform", "list"):
        return "</call>" not in json.dumps(found)
    return name not in NEWER or chat_parsing.content_parsers.__dict__.get("_python_call_list") is not None


def write_grammar(name: str, parameters: dict[str, Any], **function: Any) -> str:
    template, _ = load(name)
    form = template.make_tools()
    assert form is not None
    asked = [tool("f", {"type": "object", "properties": parameters, **function})]
    return forced_grammar(form, GrammarWriter(functions_of(asked), vocabulary(name, form, "text").tokenizer))


@pytest.mark.parametrize("name", ["lines", "values", "marks"])
@pytest.mark.parametrize("seed", range(3))
def test_a_type_that_the_schema_names_elsewhere_counts(name: str, seed: int) -> None:
    """transformers does not look there, and reads a text."""
    parameters = {"a": {"enum": [1, 2]}, "b": {"$ref": "#/$defs/n"}, "c": {"allOf": [{"type": "boolean"}]}}
    schema = {"properties": parameters, "required": ["a", "b"], "$defs": {"n": {"type": "integer", "maximum": 9}}}
    template, spec = load(name)
    form = template.make_tools()
    assert form is not None
    words, asked = vocabulary(name, form, "text"), [tool("f", schema)]
    text = words.walk(forced_grammar(form, GrammarWriter(functions_of(asked), words.tokenizer)), seed)
    for _, arguments in split_calls(spec, [text], tool_schemas(asked))["calls"]:
        jsonschema.validate(json.loads(arguments), schema)


@pytest.mark.parametrize(
    ("name", "parameters", "says"),
    [
        ("lines", {"a": {"type": ["string", "integer"]}}, "f.a: a value that may be integer or string"),
        ("marks", {"a": {"type": ["boolean", "integer"]}}, "f.a: a value that may be boolean or integer"),
        ("lines", {"a>b": {"type": "string"}}, 'f: the name "a>b"'),
        ("lines", {"a": {"enum": ["</parameter>"]}}, "an enum of other than strings, or with a tag in one"),
        ("bare", {"a b": {"type": "string"}}, 'f: the name "a b"'),
    ],
)
def test_what_the_template_would_read_otherwise_is_refused(name: str, parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(says)):
        write_grammar(name, parameters)


@pytest.mark.parametrize(
    "field",
    [
        QWEN | tags(r"<parameter=(?P<key>[^>]+)>(?P<value>[^<]*)</parameter>"),
        QWEN | tags(LINES, value_parser={"name": "kv-lines"}),
        QWEN | tags(r"<parameter=(?P<key>.*)>(?P<value>.*?)</parameter>"),
        NAME | dialect(string_delims=[["<q>", "<q>"], ["'", "'"]]) | {"transform": NAMED},
        NAME | {"content": "kv-lines", "transform": NAMED},
        NAME | dialect() | {"close_pattern": r"<tool\|>$", "transform": NAMED},
    ],
)
def test_a_template_with_other_parts_has_no_grammar(field: dict[str, Any]) -> None:
    field = {key: value for key, value in field.items() if key != "close" or "close_pattern" not in field}
    template = load_template({"start_anchor": "a:", "fields": {"tool_calls": field, "content": {}}}, "template")
    assert template.make_tools() is None


WRITTEN = {  # a call with a text, as the grammar has it
    "lines": "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>",
    "spaces": "<tool_call>\n<function=f>\n<parameter=a>{}</parameter></function></tool_call>",
    "values": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    "marks": '<|tool>call:f:{{a:<|"|>{}<|"|>}}<tool|>',
    "bare": '<|tool>call:f:{{a:"{}"}}<tool|>',
}


def accepts(name: str, how: str, schema: dict[str, Any], said: str) -> bool:
    template, _ = load(name)
    form = template.make_tools()
    assert form is not None
    words, asked = vocabulary(name, form, how), [tool("f", {"properties": {"a": schema}, "required": ["a"]})]
    grammar = forced_grammar(form, GrammarWriter(functions_of(asked), words.tokenizer))
    return words.accepts(grammar, WRITTEN[name].format(said))


@pytest.mark.parametrize("how", ["text", "token", "special"])
@pytest.mark.parametrize("name", WRITTEN)
def test_texts_between_the_markers_are_free(name: str, how: str) -> None:
    """Only what would be read otherwise can't be said: not a similar tag, a quote or another text."""
    said = 'def f():\n    return "</b>" < 1, x\\n, {a: 1}  # é'
    assert accepts(
        name, how, {"type": "string"}, json.dumps(said, ensure_ascii=False)[1:-1] if name == "bare" else said
    )


@pytest.mark.parametrize(
    ("name", "schema", "said"),
    [
        ("lines", {"type": "string"}, "a</parameter>b"),
        ("lines", {"type": "string"}, "a</function>\n</tool_call>"),
        ("spaces", {"type": "string"}, "a "),
        ("spaces", {"type": "string"}, "\u00a0a"),
        ("values", {"type": "string"}, "12"),
        ("values", {"type": "string"}, "null"),
        ("values", {"type": "string"}, "[1]"),
        ("values", {"type": "array"}, '["</arg_value>"]'),
        ("values", {"type": "array", "items": {"type": "string"}}, '["a</tool_call>"]'),
        ("marks", {"type": "string"}, 'a<|"|>,b:<|"|>'),
        ("marks", {"type": "string"}, "a<tool|>"),
        ("bare", {"type": "string"}, "a<tool|>"),
    ],
)
def test_a_text_that_would_be_read_otherwise_is_not_admitted(name: str, schema: dict[str, Any], said: str) -> None:
    assert not accepts(name, "text", schema, said)
