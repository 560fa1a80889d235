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


HI = [{"role": "user", "content": "hi"}]
KINDS = {
    "/v1/completions": ({"prompt": "x=" * 4}, "max_tokens", "prompt"),
    "/v1/chat/completions": ({"messages": HI}, "max_completion_tokens", "messages"),
    "/v1/responses": ({"input": "hi"}, "max_output_tokens", "input"),
    "/v1/messages": ({"messages": HI}, "max_tokens", "messages"),
}
# the name → whether the answer counts, too
CUT_AT = {"truncation_length": True, "max_context_length": True, "num_ctx": False, "n_ctx": False}


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.parametrize("name", CUT_AT)
async def test_a_length_at_which_a_peer_cuts_the_prompt_is_refused_where_it_would(front, path, name):
    """Prompts that fit are served; a prompt that other servers would cut is never answered whole without a word."""
    body, limit, field = KINDS[path]
    counts = CUT_AT[name] and path != "/v1/messages"  # whose max_tokens may be more than the context has room for
    body = body | {limit: 3}
    first = await front.http.post(path, json=body | {name: CONTEXT})
    assert first.status_code == 200, first.text
    usage = first.json()["usage"]
    size = usage.get("prompt_tokens", usage.get("input_tokens"))
    least = size + 3 if counts else size
    for value in (least, 0, -1, None):
        answer = await front.http.post(path, json=body | {name: value})
        assert answer.status_code == 200, (value, answer.text)
    answer = await front.http.post(path, json=body | {name: least - 1})
    error = answer.json()["error"]
    assert answer.status_code == 400
    words = f"{name}: the prompt has {size} tokens" + (f" and {limit} is 3" if counts else "")
    assert error["message"] == (
        f"{words}, more than {least - 1}, and no prompt is cut here; shorten {field}, or leave {name} out (or 0)"
    )
    if path != "/v1/messages":  # whose errors have no place for it
        assert error["param"] == name


async def test_a_length_at_which_a_peer_cuts_the_prompt_counts_no_answer_without_a_limit(front):
    assert (await front.complete("x=x=", truncation_length=4)).status_code == 200
    assert (await front.complete("x=x=", truncation_length=3)).status_code == 400
    answer = await front.http.post("/generate", json={"text": "x=x=", "sampling_params": {"truncation_length": 4}})
    assert answer.status_code == 200, answer.text
    answer = await front.http.post("/generate", json={"text": "x=x=", "sampling_params": {"max_context_length": 3}})
    assert "max_context_length: the prompt has 4 tokens, more than 3" in answer.json()["error"]["message"]


async def test_two_names_of_such_a_length_agree(front):
    answer = await front.complete("x=", truncation_length=100, max_context_length=200)
    assert "are two names of one field" in answer.json()["error"]["message"]
    for wrong in ("8", 1.5, True, []):
        answer = await front.complete("x=", truncation_length=wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "truncation_length")
