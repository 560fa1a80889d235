"""What no model here reads, such as an image: a line of text takes its place, or the request is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from api.harness import LocalClient, front_of, make_tokenizer, saying
from tailrace.api.foreign_content import KINDS
from tailrace.config import ServerConfig

LINES = (
    "{% for m in messages %}{{ m.content if m.content is string else m.content | map(attribute='text') | join }}"
    "{% endfor %}="
)
LEFT_OUT = "[image: left out, because this model reads only text]"
FUNCTION = {"name": "look", "arguments": "{}"}
IMAGE = {
    "chat": {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    "messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    "responses": {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
}
TEXT = {
    "chat": {"type": "text", "text": "a"},
    "messages": {"type": "text", "text": "a"},
    "responses": {"type": "input_text", "text": "a"},
}
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


def with_result(kind: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """A body whose tool's result has this content."""
    if kind == "chat":
        call = {"id": "c", "type": "function", "function": FUNCTION}
        turns = [{"role": "assistant", "content": "", "tool_calls": [call]}]
        return {"messages": [*turns, {"role": "tool", "tool_call_id": "c", "content": content}]}
    if kind == "messages":
        call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "c", "content": content}
        turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        return {"max_tokens": 5, "messages": [{"role": "user", "content": "u"}, *turns]}
    call = {"type": "function_call", "call_id": "c", **FUNCTION}
    return {"input": [call, {"type": "function_call_output", "call_id": "c", "output": content}]}


def from_user(kind: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """A body whose user says this content."""
    turn = {"role": "user", "content": content}
    return {"input": [turn]} if kind == "responses" else {"messages": [turn], "max_tokens": 5}


async def ask(tmp_path: Any, kind: str, body: dict[str, Any], policy: str = "auto") -> tuple[httpx.Response, str]:
    """The answer, and the prompt."""
    tokenizer, prompts = make_tokenizer(tmp_path, LINES), [""]
    encode = tokenizer.encode
    tokenizer.encode = lambda text, *args, **kwargs: (prompts.append(text), encode(text, *args, **kwargs))[1]
    config = ServerConfig(foreign_content=policy)  # pyright: ignore[reportArgumentType]
    async with front_of(LocalClient(saying(b"Hi")), tokenizer, config) as front:
        answer = await front.http.post(PATHS[kind], json=body)
    return answer, prompts[-1]


@pytest.mark.parametrize("policy", ["auto", "placeholder"])
@pytest.mark.parametrize("kind", PATHS)
async def test_an_image_in_a_result_becomes_a_line_of_text(tmp_path: Any, kind: str, policy: str):
    answer, prompt = await ask(tmp_path, kind, with_result(kind, [TEXT[kind], IMAGE[kind], TEXT[kind]]), policy)
    assert answer.status_code == 200, answer.text
    assert f"a{LEFT_OUT}a" in prompt
    assert answer.headers["warning"] == '299 tailrace "left out, because the model reads only text: image"'


@pytest.mark.parametrize("kind", PATHS)
async def test_an_image_behind_a_result_is_a_part_of_it(tmp_path: Any, kind: str):
    behind, answered = from_user(kind, [TEXT[kind], IMAGE[kind]]), with_result(kind, [TEXT[kind]])
    turns = "input" if kind == "responses" else "messages"
    answered[turns] += behind[turns]
    answer, prompt = await ask(tmp_path, kind, answered)
    assert answer.status_code == 200, answer.text
    assert f"a{LEFT_OUT}" in prompt
    answered[turns] += [{"role": "assistant", "content": "a"}, *behind[turns]]
    answer, _ = await ask(tmp_path, kind, answered)
    assert answer.status_code == 400


@pytest.mark.parametrize("kind", PATHS)
async def test_the_operator_may_allow_it_everywhere(tmp_path: Any, kind: str):
    answer, prompt = await ask(tmp_path, kind, from_user(kind, [TEXT[kind], IMAGE[kind]]), "placeholder")
    assert answer.status_code == 200, answer.text
    assert f"a{LEFT_OUT}" in prompt


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize(("make", "policy"), [(from_user, "auto"), (from_user, "refuse"), (with_result, "refuse")])
async def test_otherwise_it_is_refused_by_name(tmp_path: Any, kind: str, make: Any, policy: str):
    answer, _ = await ask(tmp_path, kind, make(kind, [TEXT[kind], IMAGE[kind]]), policy)
    assert answer.status_code == 400
    problem = answer.json()["error"]
    param = problem.get("details", problem)["param"]
    assert param.startswith("input[" if kind == "responses" else "messages["), param


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("policy", ["auto", "placeholder"])
async def test_a_type_that_nobody_knows_is_refused(tmp_path: Any, kind: str, policy: str):
    answer, _ = await ask(tmp_path, kind, with_result(kind, [{"type": "imago", "text": "a"}]), policy)
    assert answer.status_code == 400


@pytest.mark.parametrize("name", KINDS)
async def test_each_kind_is_named(tmp_path: Any, name: str):
    answer, prompt = await ask(tmp_path, "chat", with_result("chat", [{"type": name}, TEXT["chat"]]))
    assert answer.status_code == 200, answer.text
    assert f"[{KINDS[name]}: left out" in prompt


@pytest.mark.parametrize("kind", PATHS)
async def test_text_alone_causes_no_warning(tmp_path: Any, kind: str):
    answer, _ = await ask(tmp_path, kind, with_result(kind, [TEXT[kind]]))
    assert answer.status_code == 200, answer.text
    assert "warning" not in answer.headers
