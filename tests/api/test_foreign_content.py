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


@pytest.mark.parametrize(
    ("audio", "said"),
    [
        ({"id": "a", "transcript": "Good day"}, "Good day"),
        ({"id": "a"}, "[audio: left out, because this model reads only text]"),
        ({"id": "a", "transcript": 3}, "[audio: left out, because this model reads only text]"),
    ],
)
async def test_what_a_model_has_spoken_is_text(tmp_path: Any, audio: dict[str, Any], said: str):
    user = {"role": "user", "content": "u"}
    body = {"messages": [user, {"role": "assistant", "content": None, "audio": audio}, user], "max_tokens": 5}
    answer, prompt = await ask(tmp_path, "chat", body)
    assert answer.status_code == 200, answer.text
    assert prompt == f"u{said}u="
    assert answer.headers["warning"] == '299 tailrace "left out, because the model reads only text: audio"'
    answer, _ = await ask(tmp_path, "chat", body, "refuse")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[1].audio")
    body["messages"][1]["role"] = "user"
    answer, _ = await ask(tmp_path, "chat", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[1].audio")


@pytest.mark.parametrize("kind", ["chat", "messages"])
async def test_an_image_of_the_model_becomes_a_line_of_text(tmp_path: Any, kind: str):
    user = {"role": "user", "content": "u"}
    turns = [user, {"role": "assistant", "content": [TEXT[kind], IMAGE[kind]]}, user]
    answer, prompt = await ask(tmp_path, kind, {"messages": turns, "max_tokens": 5})
    assert answer.status_code == 200, answer.text
    assert f"a{LEFT_OUT}" in prompt


PLAIN = {"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
FOUND = {"type": "search_result", "title": "t", "source": "http://a", "content": [{"type": "text", "text": "words"}]}
TABS = {"type": "browser_state", "tabs": [{"tab_id": 1, "url": "http://a", "active": True}]}


def of_model(kind: str, parts: list[Any]) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": parts}, {"role": "user", "content": "u"}], "max_tokens": 5}


@pytest.mark.parametrize("policy", ["auto", "refuse"])
@pytest.mark.parametrize("make", [from_user, with_result, of_model])
@pytest.mark.parametrize(
    ("block", "line"),
    [
        (PLAIN, '{"title":"t","source":{"type":"text","media_type":"text/plain","data":"words"}}'),
        (FOUND, '{"content":[{"type":"text","text":"words"}],"title":"t","source":"http://a"}'),
        (TABS, '{"tabs":[{"tab_id":1,"url":"http://a","active":true}]}'),
    ],
)
async def test_blocks_that_are_all_text_are_read(tmp_path: Any, block: Any, line: str, make: Any, policy: str):
    answer, prompt = await ask(tmp_path, "messages", make("messages", [TEXT["messages"], block]), policy)
    assert answer.status_code == 200, answer.text
    behind = "\n\n" if make is of_model else ""  # a paragraph of its own
    assert f"a{behind}[{block['type']}: {line}]" in prompt
    assert "warning" not in answer.headers
