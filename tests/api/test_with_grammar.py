"""Structured output from the request to the answer, through the engine's own grammars: a model that babbles writes what
it must."""

from __future__ import annotations

import json
import random
from functools import partial

import jsonschema
import pytest
import torch

from api.harness import EOS, VOCAB, LocalClient, events, front_of
from api.test_forced_tools import tool
from tailrace.config import GrammarConfig, ServerConfig
from tailrace.grammar.service import Grammars
from tailrace.request.options import Grammar
from tailrace.text.tool_parsers import TOOL_FORMATS as FORMS
from tailrace.text.tool_parsers.functions import functions_of
from tailrace.text.tool_parsers.grammar import forced_grammar
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA if name == "note" else None}}
    for name in ("note", "stop")
]
NAMED = {"type": "function", "function": {"name": "note"}}


def babble(ids: list[int]) -> torch.Tensor:
    """Another favourite at each place; nothing in it knows what is asked for."""
    rng = random.Random(len(ids))
    return torch.tensor([rng.gauss(0, 2) for _ in range(VOCAB)])


@pytest.fixture(scope="module")
def grammars(tokenizer):
    found = Grammars(
        GrammarConfig(), None, [tokenizer.bytes_of(i) for i in range(VOCAB)], tokenizer.special_ids, [EOS], VOCAB
    )
    yield found
    found.close()


@pytest.fixture
async def front(tokenizer, grammars):
    async with front_of(LocalClient(babble), tokenizer, ServerConfig(tool_parser="hermes")) as front:
        engine = front.client.engine
        engine.grammars = engine.lifecycle._grammars = engine.compilations._grammars = grammars
        engine.steps._new_masks = partial(engine.steps._new_masks.func, *engine.steps._new_masks.args[:1], grammars)
        yield front


async def both(front, **fields) -> tuple[dict, list[dict]]:
    """The whole answer's choice, and the stream's."""
    whole = await front.chat(max_tokens=150, **fields)
    assert whole.status_code == 200, whole.text
    *chunks, done = events((await front.chat(max_tokens=150, stream=True, **fields)).text)
    assert done == "[DONE]"
    return whole.json()["choices"][0], [chunk["choices"][0] for chunk in chunks]


async def test_the_content_is_the_json_as_it_comes(front):
    form = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": SCHEMA}}
    whole, streamed = await both(front, response_format=form)
    jsonschema.validate(json.loads(whole["message"]["content"]), SCHEMA)
    assert whole["finish_reason"] == "stop"
    pieces = [choice["delta"].get("content", "") for choice in streamed]
    assert "".join(pieces) == whole["message"]["content"]
    assert len([piece for piece in pieces if piece]) > 3
    answer = await front.http.post(
        "/v1/responses",
        json={
            "input": "hi",
            "temperature": 0,
            "max_output_tokens": 150,
            "text": {"format": {"type": "json_schema", "name": "p", "schema": SCHEMA}},
        },
    )
    jsonschema.validate(json.loads(answer.json()["output"][0]["content"][0]["text"]), SCHEMA)


@pytest.mark.parametrize(
    ("fields", "among"),
    [
        ({"guided_choice": ["red", "green"]}, {"red", "green"}),
        ({"guided_regex": "[ab]{3}c"}, {f"{a}{b}{c}c" for a in "ab" for b in "ab" for c in "ab"}),
        ({"grammar": 'root ::= "x" [0-1]'}, {"x0", "x1"}),
        ({"guided_grammar": 'start: "y" /[0-1]/'}, {"y0", "y1"}),
    ],
)
async def test_completions_too(front, fields, among):
    answer = await front.complete(max_tokens=20, **fields)
    assert answer.json()["choices"][0]["text"] in among


@pytest.mark.parametrize(("limit", "text"), [(6, "abcdef"), (5, "")])
async def test_what_matched_where_a_grammar_ended_the_text(front, limit, text):
    forms = {"regex": "(abcdef)?", "close_in_time": True}
    sampling = {"structured_outputs": forms, "max_new_tokens": limit, "logit_bias": {"a": 100}}
    asked = {"text": "x", "sampling_params": sampling}
    whole = (await front.http.post("/generate", json=asked)).json()
    *_, streamed, _ = events((await front.http.post("/generate", json=asked | {"stream": True})).text)
    for found in (whole, streamed):
        assert (found["text"], found["output_ids"]) == (text, list(text.encode()))
        matched = {"matched": found["output_ids"][-1]} if text else {}
        assert found["meta_info"]["finish_reason"] == {"type": "stop"} | matched


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
async def test_a_forced_call_is_made(front, choice, reason):
    whole, streamed = await both(front, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    (call,) = whole["message"]["tool_calls"]
    assert whole["message"]["content"] is None
    assert whole["finish_reason"] == streamed[-1]["finish_reason"] == reason
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "note":
        jsonschema.validate(arguments, SCHEMA)
    else:
        assert (call["function"]["name"], arguments) == ("stop", {})
    assert choice == "required" or call["function"]["name"] == "note"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
            "response_format",
        ),
        ({"ebnf": "root ::= missing"}, "ebnf"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"properties": {"a": {"$ref": "#/no"}}}},
                    }
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)
async def test_what_cannot_be_compiled_is_a_400_under_the_clients_name(front, fields, param):
    for stream in (False, True):
        answer = await front.chat(stream=stream, **fields)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["message"].startswith(param)) == (param, True)
    assert not front.client.engine.requests


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("json-pointer", "/a", "nonsense"),
        ("relative-json-pointer", "0/a", "nonsense"),
        ("uri-reference", "a/b", "a b"),
        ("date", "2024-02-29", "2023-02-29"),
        ("int32", "by the standard an annotation", None),
    ],
)
def test_formats_bind_in_forced_calls_as_they_do_elsewhere(tokenizer, grammars, name, good, bad):
    functions = functions_of([tool("f", {"properties": {"a": {"type": "string", "format": name}}, "required": ["a"]})])
    source = forced_grammar(FORMS["hermes"], GrammarWriter(functions, tokenizer, many=False))
    compiled = grammars.compile(Grammar(kind="lark", source=source)).result(60)
    for text, fits in ((good, True), (bad, False)):
        if text is not None:
            call = f'<tool_call>\n{{"name": "f", "arguments": {json.dumps({"a": text})}}}\n</tool_call>'
            ids = tokenizer.encode(call, add_special_tokens=False)
            assert (compiled.matcher().prefix(ids) == len(ids)) == fits, text


@pytest.mark.parametrize("name", ["regex", "iri", "idn-email"])
async def test_formats_that_cannot_be_enforced_are_refused_in_forced_calls(front, name):
    answer = await front.chat(
        tools=[tool("f", {"properties": {"a": {"type": "string", "format": name}}})], tool_choice="required"
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "tools")
    assert name in error["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
async def test_a_reference_to_nothing_in_a_forced_tool_is_named_tools(front, choice):
    answer = await front.chat(tools=[tool("f", {"properties": {"a": {"$ref": "#/$defs/b"}}})], tool_choice=choice)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "tools")
    assert "#/$defs/b" in error["message"]


@pytest.mark.parametrize("forced", [[5], [ord("a"), 5], [EOS], [ord("a"), EOS], [*b"abc", ord("d")]])
async def test_forced_tokens_that_the_grammar_does_not_allow_are_refused(front, forced):
    body = {"prompt": "x", "max_tokens": 20, "regex": "abc", "forced_token_ids": forced}
    for stream in (False, True):
        answer = await front.http.post("/v1/completions", json=body | {"stream": stream})
        assert answer.status_code == 400
        assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (
            "forced_token_ids",
            "invalid_value",
        )


async def test_forced_tokens_that_the_grammar_allows_begin_the_output(front):
    body = {"prompt": "x", "max_tokens": 20, "regex": "[a-z]{6}", "forced_token_ids": [*b"abc"]}
    text = (await front.http.post("/v1/completions", json=body)).json()["choices"][0]["text"]
    assert len(text) == 6
    assert text.startswith("abc")


async def test_anthropics_messages_are_held_to_the_same(front):
    tools = [
        {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"] or {"type": "object"}}
        for tool in TOOLS
    ]
    ask = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "temperature": 0, "tools": tools}
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "note"}):
        answer = (await front.http.post("/v1/messages", json=ask | {"tool_choice": choice})).json()
        assert [block["type"] for block in answer["content"]] == ["tool_use"], answer
        assert answer["stop_reason"] == "tool_use"
        if answer["content"][0]["name"] == "note":
            jsonschema.validate(answer["content"][0]["input"], SCHEMA)
    form = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "tools": []}
    answer = (await front.http.post("/v1/messages", json=ask | form)).json()
    jsonschema.validate(json.loads(answer["content"][0]["text"]), SCHEMA)
    wrong = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}
    refused = await front.http.post("/v1/messages", json=ask | wrong)
    assert refused.json()["error"]["details"]["param"] == "output_config.format"
