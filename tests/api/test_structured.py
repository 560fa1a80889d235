"""What the output must be: every field of every dialect → one Grammar, and errors by the client's own name of the
field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.harness import TEMPLATE, LocalClient, front_of, make_tokenizer, saying
from api.submitted import asked, post, refusal
from tailrace.api.channels import channels_of, reasoning_before
from tailrace.api.openapi import build_document
from tailrace.api.schema.chat import ChatRequest
from tailrace.api.structured import EBNF, FIELDS, LARK, PARTS
from tailrace.config import ServerConfig
from tailrace.request.options import MAX_GRAMMAR, Grammar, MarkedSpan
from tailrace.text.reasoning import REASONING_FORMATS
from tailrace.text.tokenizer import Tokenizer

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}, "required": ["b"]}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}
OLDER = {"type": "structural_tag", "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f>"]}
GBNF = 'root ::= "a" | "b"'
LARKED = 'start: "a" | "b"'

# what is sent → kind and source; for all endpoints that know the field
SAID: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_object"}}, "json_object", ""),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", TEXT),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema", TEXT),
    (
        {"response_format": {"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}}},
        "json_schema",
        TEXT,
    ),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}, "json_schema", TEXT),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": False}}},
        "json_schema",
        TEXT,
    ),
    ({"response_format": TAG}, "structural_tag", json.dumps(TAG, separators=(",", ":"))),
    ({"response_format": OLDER}, "structural_tag", json.dumps(OLDER, separators=(",", ":"))),
    ({"guided_json": SCHEMA}, "json_schema", TEXT),
    ({"guided_json": TEXT}, "json_schema", TEXT),
    ({"guided_json_object": True}, "json_object", ""),
    ({"guided_regex": "[0-9]+"}, "regex", "[0-9]+"),
    ({"guided_choice": ["yes", "né"]}, "choice", '["yes","né"]'),
    ({"guided_grammar": GBNF}, "ebnf", GBNF),
    ({"guided_grammar": LARKED}, "lark", LARKED),
    ({"structural_tag": TAG}, "structural_tag", json.dumps(TAG, separators=(",", ":"))),
    ({"grammar": GBNF}, "ebnf", GBNF),
    ({"json_schema": SCHEMA}, "json_schema", TEXT),
    ({"json_schema": TEXT}, "json_schema", TEXT),
    ({"regex": "a|b"}, "regex", "a|b"),
    ({"ebnf": GBNF}, "ebnf", GBNF),
    ({"structured_outputs": {"json": SCHEMA}}, "json_schema", TEXT),
    ({"structured_outputs": {"json_object": True}}, "json_object", ""),
    ({"structured_outputs": {"regex": "a"}}, "regex", "a"),
    ({"structured_outputs": {"choice": ["a"]}}, "choice", '["a"]'),
    ({"structured_outputs": {"grammar": LARKED}}, "lark", LARKED),
    ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "structural_tag", json.dumps(TAG)),
]
NOTHING: list[dict[str, Any]] = [
    {},
    {"response_format": None},
    {"response_format": {"type": "text"}},
    {"guided_json": None},
    {"guided_json_object": False},
    {"grammar": ""},
    {"structured_outputs": {}},
    {"structured_outputs": {"json_object": False}},
    {"guided_decoding_backend": "auto"},
]


@pytest.fixture
async def front(tokenizer):
    async with front_of(LocalClient(saying(b'{"a": 1}')), tokenizer) as front:
        yield front


def name_of(fields: dict[str, Any]) -> str:
    """What an error about these fields must be called."""
    field, value = next(iter(fields.items()))
    return f"{field}.{next(iter(value))}" if field == "structured_outputs" else field


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize(("fields", "form", "source"), SAID)
async def test_every_dialect_says_one_grammar_and_hears_of_it_by_its_own_name(front, kind, fields, form, source):
    for stream in (False, True):
        params, error = await asked(front, kind, stream=stream, **fields)
        assert params.grammar == Grammar(kind=form, source=source)
        assert (error["param"], error["message"]) == (name_of(fields), f"{name_of(fields)}: too large")


@pytest.mark.parametrize("fields", NOTHING)
async def test_what_asks_for_nothing(front, fields):
    for kind in ("chat", "text"):
        assert (await asked(front, kind, **fields))[0].grammar is None


def test_every_field_is_in_this_test():
    assert {next(iter(fields)) for fields, _, _ in SAID} == {*FIELDS, "structured_outputs"}
    assert {name_of(fields) for fields, _, _ in SAID if "structured_outputs" in fields} == {
        f"structured_outputs.{p}" for p in PARTS
    }


@pytest.mark.parametrize(
    ("form", "kind", "source"),
    [
        ({"type": "json_object"}, "json_object", ""),
        ({"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}, "json_schema", TEXT),
    ],
)
async def test_responses_have_their_own_form(front, form, kind, source):
    params, error = await asked(front, "responses", text={"format": form})
    assert params.grammar == Grammar(kind=kind, source=source)
    assert error["param"] == "text.format"
    assert (await asked(front, "responses", text={"format": {"type": "text"}, "verbosity": "low"}))[0].grammar is None
    answer = await post(front, "responses", text={"format": {"type": "text"}})
    assert answer.json()["text"] == {"format": {"type": "text"}}


async def test_options(front):
    more: dict[str, Any] = {"structured_outputs": {"whitespace": 0, "close_in_time": True, "backend": "guidance"}}
    params, error = await asked(front, guided_regex="a", **more)
    assert params.grammar == Grammar(kind="regex", source="a", whitespace=0, close_in_time=True)
    assert error["param"] == "guided_regex"
    for name in ("auto", "llguidance", "guidance"):
        params, _ = await asked(front, guided_regex="a", guided_decoding_backend=name)
        assert params.grammar == Grammar(kind="regex", source="a")


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format.type", '"yaml"'),
    ({"response_format": {}}, "response_format.type", "missing"),
    ({"response_format": "json_object"}, "response_format", "expected `object | null`"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    (
        {"response_format": {"type": "json_schema", "schema": {"type": "null"}, "json_schema": {"schema": SCHEMA}}},
        "response_format.schema",
        "are two schemas",
    ),
    ({"response_format": {"type": "json_schema", "schema": 5}}, "response_format.schema", "expected `object"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        "response_format.json_schema.schema",
        "missing",
    ),
    ({"response_format": {"type": "structural_tag"}}, "response_format", '"triggers"'),
    ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format", '"triggers"'),
    ({"response_format": TAG | {"structures": [], "triggers": []}}, "response_format", '"triggers"'),
    ({"guided_json": ""}, "guided_json", "a JSON object"),
    ({"guided_json": "[1]"}, "guided_json", "a JSON object"),
    ({"guided_json": [1]}, "guided_json", "`str | object | null`"),
    ({"guided_json_object": "yes"}, "guided_json_object", "`bool | null`"),
    ({"guided_regex": " "}, "guided_regex", "non-empty"),
    ({"guided_regex": 5}, "guided_regex", "`str | null`"),
    ({"guided_regex": "a" * (MAX_GRAMMAR + 1)}, "guided_regex", str(MAX_GRAMMAR)),
    ({"guided_choice": []}, "guided_choice", "one or more"),
    ({"guided_choice": ["a", ""]}, "guided_choice", "non-empty"),
    ({"guided_choice": "a"}, "guided_choice", "`array | null`"),
    ({"guided_grammar": "a"}, "guided_grammar", "root ::="),
    ({"guided_grammar": ""}, "guided_grammar", "start:"),
    ({"structural_tag": "x"}, "structural_tag", "a JSON object"),
    ({"ebnf": ""}, "ebnf", "non-empty"),
    ({"regex": ""}, "regex", "non-empty"),
    ({"json_schema": "null"}, "json_schema", "a JSON object"),
    ({"structured_outputs": {"json": "x"}}, "structured_outputs.json", "a JSON object"),
    ({"structured_outputs": {"lark": "x"}}, "structured_outputs", "`lark`"),
    ({"structured_outputs": {"regex": "a", "whitespace": 33}}, "structured_outputs.whitespace", "<= 32"),
    ({"structured_outputs": {"whitespace": 3}}, "structured_outputs", "no effect"),
    ({"guided_regex": "a", "guided_decoding_backend": "outlines"}, "guided_decoding_backend", '"outlines"'),
    (
        {"guided_regex": "a", "guided_decoding_backend": "xgrammar"},
        "guided_decoding_backend",
        "there are auto, llguidance, guidance",
    ),
    ({"structured_outputs": {"regex": "a", "backend": "xgrammar"}}, "structured_outputs.backend", '"xgrammar"'),
    ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend", '"xgrammar"'),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "response_format"),
    ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "guided_json"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a"}, "grammar": "b"}, "structured_outputs.regex", "grammar"),
]


@pytest.mark.few(36)
@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize(("fields", "param", "words"), BAD)
async def test_a_bad_constraint_is_a_400_that_names_the_field(front, kind, fields, param, words):
    error = await refusal(front, kind, **fields)
    assert error["param"] == param
    assert param in error["message"]
    assert words in error["message"]


@pytest.mark.parametrize("fields", [{"guided_regex": "a"}, {"response_format": {"type": "json_object"}}])
async def test_not_with_a_beam_search(front, fields):
    assert (await refusal(front, "text", use_beam_search=True, **fields))["param"] == next(iter(fields))


def test_which_language_a_grammar_is_in():
    for text in ("root ::= x", "# a\nws ::= y\n  root   ::= ws"):
        assert EBNF.search(text)
        assert not LARK.search(text)
    for text in ("start: x", 'X: "a"\n?start : X', "start[capture]: X"):
        assert LARK.search(text)
        assert not EBNF.search(text)
    for text in ("start ::= x", "restart: x", "x: start", ""):
        assert not LARK.search(text)
        assert not EBNF.search(text)


# ---- thinking is free


TAIL = TEMPLATE + "{% if enable_thinking %}{% endif %}{{ tail }}"


def thinking(folder, mark: bool) -> Tokenizer:
    """Bytes, with the opening marker as a token or not; the template lets a request say what it ends with."""
    make_tokenizer(folder)
    whole = Tokenizer.load(folder)
    if mark:
        whole.backend.add_tokens(["<think>"])
    return Tokenizer(whole.backend, TAIL)


@pytest.mark.parametrize(
    ("tail", "kwargs", "wanted"),
    [
        ("<think>\n", {}, (MarkedSpan("<think>", "</think>", True), False)),
        ("", {}, (MarkedSpan("<think>", "</think>"), True)),
        ("<think>\n\n</think>\n\n", {}, (None, False)),  # how templates say that there is to be none
        ("", {"enable_thinking": False}, (None, False)),
        ("", {"enable_thinking": True}, (MarkedSpan("<think>", "</think>"), True)),
        ("", {"thinking": False}, (None, False)),  # another name of the template's switch
    ],
)
async def test_a_grammar_begins_after_the_thinking(tmp_path, tail, kwargs, wanted):
    tokenizer = thinking(tmp_path, mark=True)
    async with front_of(LocalClient(saying(b"x")), tokenizer, ServerConfig(reasoning_parser="think")) as front:
        params, _ = await asked(front, guided_regex="a", chat_template_kwargs=kwargs | {"tail": tail})
        assert params.grammar is not None
        openings = ((tokenizer.backend.token_to_id("<think>"),),) if wanted[1] else ()
        assert (params.grammar.after, params.grammar.opening_token_ids) == (wanted[0], openings)
        assert (await asked(front, "text", guided_regex="a"))[0].grammar == Grammar(kind="regex", source="a")


@pytest.mark.parametrize("name", ["think", "granite"])
async def test_the_opening_marker_may_be_several_tokens_and_have_several_spellings(tmp_path, name):
    tokenizer, form = thinking(tmp_path, mark=False), REASONING_FORMATS[name]
    async with front_of(LocalClient(saying(b"x")), tokenizer, ServerConfig(reasoning_parser=name)) as front:
        for end, opened in ((b"assistant\n", False), (form.opening.encode(), True)):
            channels = channels_of(front.service, ChatRequest(messages=[]), list(end))
            fields = reasoning_before(front.service, ChatRequest(messages=[]), channels, of_calls=False)
            assert fields["after"] == MarkedSpan(form.opening, form.closing, opened)
            assert fields["other_closings"] == form.closings[1:]
            spelt = tuple(tuple(opening.encode()) for opening in form.openings)
            assert fields.get("opening_token_ids", ()) == (() if opened else spelt)


def test_the_document_shows_the_fields():
    schemas = json.loads(build_document())["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest"):
        assert {*FIELDS, "structured_outputs", "guidance_scale", "negative_prompt", "speculation"} <= set(
            schemas[name]["properties"]
        )
    assert "json_schema" in json.dumps(schemas["TextOptions"])
    assert schemas["StructuredOutputs"]["properties"]["whitespace"]["anyOf"][0]["maximum"] == 32
