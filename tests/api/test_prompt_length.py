"""What is too long or too much is refused before it costs anything."""

from __future__ import annotations

import pytest

from api.harness import CONTEXT, LocalClient, front_of, saying
from tailrace.config import ServerConfig

LONG = "x" * 100_000  # in a vocabulary whose longest token is <|im_start|>


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["a", LONG]}, "prompt"),
        ("/v1/completions", {"prompt": "a", "negative_prompt": LONG, "guidance_scale": 2}, "negative_prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/v1/responses", {"input": LONG}, "input"),
    ],
)
async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(front, monkeypatch, path, body, field):
    encode = front.service.tokenizer.encode
    monkeypatch.setattr(
        front.service.tokenizer, "encode", lambda text, *a, **k: encode(text, *a, **k) if len(text) < 1000 else 1 / 0
    )
    answer = await front.http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, field, "context_length_exceeded")
    assert f"maximum context length is {CONTEXT} tokens" in error["message"]


async def test_the_items_of_a_body_are_bounded_and_its_texts_are_not(tokenizer):
    config = ServerConfig(max_body_items=40)
    async with front_of(LocalClient(saying(b"x")), tokenizer, config) as front:
        commas = '[{:,"\\' * 30
        answer = await front.complete("a=", user=commas)
        assert answer.status_code == 200
        asks = (
            [[[]] * 41],
            ["a"] * 41,
            {"a": 1, "b": 2} | {str(i): 1 for i in range(39)},
            [1] * 400,
            [10**2000],
            [1e-20 / 3] * 41,
        )
        for body in ({"prompt": [[1]] * 41}, *({"prompt": "a", "x": [commas, ask]} for ask in asks)):
            answer = await front.http.post("/v1/completions", json=body)
            message = answer.json()["error"]["message"]
            assert (answer.status_code, "at most 40 objects" in message, "--max-body-items" in message) == (
                400,
                True,
                True,
            )


async def test_the_fields_of_a_body_are_bounded(front):
    answer = await front.complete("a=", **{f"unknown {i}": 1 for i in range(1100)})
    assert (answer.status_code, "at most 1024 fields" in answer.json()["error"]["message"]) == (400, True)


async def test_what_all_prompts_carry_is_bounded(front):
    bias = {str(i): 1.5 for i in range(20_000)}
    answer = await front.complete(["a="] * 1000, logit_bias=bias)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], "bytes of parameters" in error["message"]) == (400, "prompt", True)


@pytest.mark.parametrize(
    "fields",
    [
        {"bad_words": ["a" * 900] * 40},
        {"sequence_bias": [["a" * 900, 1]] * 40},
        {"logit_bias": {f"a{i}" * 90: 1 for i in range(500)}},
    ],
)
async def test_words_are_bounded_in_all(front, fields):
    answer = await front.complete("a=", **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(fields)))
    assert "characters in all" in answer.json()["error"]["message"]
