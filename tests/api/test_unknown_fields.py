"""Fields that nobody knows are named in the answer's header, or refused with the nearest name."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from api.harness import LocalClient, front_of, make_tokenizer, saying
from tailrace.config import ServerConfig

LINES = "{% for m in messages %}{{ m.content }}{% endfor %}="
USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi=", "max_tokens": 5},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
    "/generate": {"text": "hi="},
    "/tokenize": {"prompt": "hi"},
}


async def post(tmp_path: Any, path: str, fields: dict[str, Any], **settings: Any) -> httpx.Response:
    tokenizer = make_tokenizer(tmp_path, LINES)
    async with front_of(LocalClient(saying(b"Hi")), tokenizer, ServerConfig(**settings)) as front:
        return await front.http.post(path, json=BODIES[path] | fields)


@pytest.mark.parametrize("path", BODIES)
async def test_a_header_names_what_was_ignored(tmp_path: Any, path: str):
    answer = await post(tmp_path, path, {"temprature": 0.5, "wurble": 1})
    assert answer.status_code == 200
    expected = '299 tailrace "ignored, because no such field is known: temprature, wurble"'
    assert answer.headers.get_list("warning") == [expected]


@pytest.mark.parametrize("path", BODIES)
async def test_known_fields_cause_no_warning(tmp_path: Any, path: str):
    answer = await post(tmp_path, path, {"user": "someone"})
    assert answer.status_code == 200, answer.text
    assert "warning" not in answer.headers


async def test_names_of_other_servers_are_known(tmp_path: Any):
    answer = await post(tmp_path, "/v1/completions", {"repeat_penalty": 1.1}, unknown_fields="refuse")
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", ["naïve", "line\nbreak", 'quo"te', "x" * 65, ""])
async def test_a_name_that_no_header_may_hold_is_not_written_there(tmp_path: Any, name: str):
    answer = await post(tmp_path, "/v1/completions", {name: 1})
    assert answer.headers["warning"] == '299 tailrace "ignored, because no such field is known: some names"'


@pytest.mark.parametrize("path", BODIES)
async def test_the_operator_may_refuse_them(tmp_path: Any, path: str):
    answer = await post(tmp_path, path, {"modle": "m", "wurble": 1}, unknown_fields="refuse")
    assert answer.status_code == 400
    problem = answer.json()["error"]
    problem = problem.get("details", problem) | {"message": problem["message"]}
    assert problem["message"] == "modle: unknown field (did you mean model?)"
    assert problem["param"] == "modle"


async def test_a_refusal_does_not_repeat_a_whole_name(tmp_path: Any):
    answer = await post(tmp_path, "/v1/completions", {"x" * 100_000: 1}, unknown_fields="refuse")
    assert answer.status_code == 400
    assert len(answer.text) < 500
