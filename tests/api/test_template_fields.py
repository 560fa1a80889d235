"""What of a chat reaches the model's template: reasoning_effort, documents, refusals, parts, calls of before."""

from __future__ import annotations

import json

import pytest

from api.harness import LocalClient, front_of, make_tokenizer, saying
from api.submitted import refusal
from tailrace.text.tokenizer import Tokenizer

READS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or () %}{{ c.function.name }}("
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}){% endfor %}<|im_end|>{% endfor %}"
    "|{{ enable_thinking }}|{{ reasoning_effort }}|{{ documents }}"
)
USER = {"role": "user", "content": "a"}


@pytest.fixture
async def front(tmp_path):
    make_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(READS)
    async with front_of(LocalClient(saying(b"x")), Tokenizer.load(tmp_path)) as front:
        yield front


async def prompt_of(front, *messages, **fields) -> str:
    """The text that the model is given."""
    answer = await front.http.post("/tokenize", json={"messages": list(messages or (USER,)), **fields})
    assert answer.status_code == 200, answer.text
    return (await front.http.post("/detokenize", json={"tokens": answer.json()["tokens"]})).json()["prompt"]


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, "||"),
        ({"reasoning_effort": "high"}, "|True|high|"),
        ({"reasoning_effort": "none"}, "|False||"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, "|False|low|"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}}, "|True|low|"),
        ({"chat_template_kwargs": {"reasoning_effort": "odd"}}, "||odd|"),
        ({"documents": [{"title": "t"}]}, "||[{'title': 't'}]"),
    ],
)
async def test_effort_and_documents_reach_the_template(front, fields, seen):
    assert seen in await prompt_of(front, **fields)


async def test_messages_reach_the_template_whole(front):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"k": "é"}'}}
    refused = {"role": "assistant", "content": None, "refusal": "never"}
    parts = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "but"}]}
    both = {"role": "assistant", "content": "well", "refusal": "no"}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    text = await prompt_of(front, USER, refused, parts, both, called, {"role": "developer", "content": "d"})
    for words in (
        "assistant\nnever<",
        "assistant\nno\nbut<",
        "assistant\nwell\nno<",
        "assistant\nf(k=é)<",
        "system\nd<",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{}]}, "tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "tool_calls[0].function.name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "function_call": {"name": "f"}}, "function_call"),
        ({"role": "assistant", "audio": {"id": "x"}}, "audio"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text"),
        ({"role": "assistant", "content": [{"type": "refusal", "text": "x"}]}, "content[0].refusal"),
        ({"role": "developer"}, "content"),
    ],
)
async def test_what_no_template_can_write_is_refused_by_its_place(front, message, place):
    error = await refusal(front, messages=[message])
    assert error["param"] == f"messages[0].{place}"
    assert error["message"].startswith(f"messages[0].{place}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
        ({"chat_template_kwargs": {"documents": []}}, "chat_template_kwargs"),
        ({"documents": "x"}, "documents"),
        ({"documents": ["x"]}, "documents[0]"),
    ],
)
async def test_bad_fields_are_named(front, fields, param):
    assert (await refusal(front, messages=[USER], **fields))["param"] == param


async def test_documents_that_no_template_reads_are_refused(tmp_path):
    async with front_of(LocalClient(saying(b"x")), make_tokenizer(tmp_path)) as front:
        error = await refusal(front, messages=[USER], documents=[{"text": "x"}])
        assert error["param"] == "documents"
        assert (await front.http.post("/tokenize", json={"messages": [USER], "documents": []})).status_code == 200


@pytest.mark.parametrize("effort", ["none", "high"])
async def test_responses_have_their_effort_in_an_object(front, effort):
    reasoning = {"effort": effort, "summary": "auto"}
    answer = await front.http.post("/v1/responses", json={"input": "a", "reasoning": reasoning, "max_output_tokens": 1})
    assert answer.status_code == 200, answer.text
    assert answer.json()["reasoning"] == reasoning
    asked = json.dumps({"input": "a", "reasoning": {"effort": "huge"}})
    error = await front.http.post("/v1/responses", content=asked, headers={"content-type": "application/json"})
    assert error.status_code == 400
    assert error.json()["error"]["param"] == "reasoning.effort"
