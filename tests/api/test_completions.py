"""POST /v1/completions."""

from __future__ import annotations

import pytest

from api.harness import NAME, VOCAB, LocalClient, events, front_of, make_tokenizer, saying
from tailrace.engine.token_bytes import TokenBytes


async def test_the_whole_answer(front):
    body = (await front.complete("x=")).json()
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", NAME)
    choice = {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert body["choices"] == [choice]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 6


async def test_stream(front):
    *chunks, last, done = events((await front.complete(stream=True, stream_options={"include_usage": True})).text)
    assert done == "[DONE]"
    choices = [c["choices"][0] for c in chunks]
    assert "".join(c["text"] for c in choices) == "Hello"
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert choices[-1]["text"] == ""
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 8


@pytest.mark.parametrize(
    ("prompt", "num_prompts", "num_tokens"),
    [
        ("ab=", 1, 3),
        (["ab=", "c="], 2, 5),
        ([*b"ab="], 1, 3),
        ([[*b"ab="], [*b"c="]], 2, 5),
        (["ab="], 1, 3),
    ],
)
async def test_every_form_of_prompt(front, prompt, num_prompts, num_tokens):
    body = (await front.complete(prompt)).json()
    assert [c["text"] for c in body["choices"]] == ["Hello"] * num_prompts
    assert body["usage"]["prompt_tokens"] == num_tokens
    assert body["usage"]["completion_tokens"] == 6 * num_prompts


async def test_choices_are_numbered_prompt_by_prompt(front):
    body = (await front.complete(["a=", "b="], n=2, echo=True)).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in body["choices"]] == ["a=Hello", "a=Hello", "b=Hello", "b=Hello"]
    assert body["usage"]["prompt_tokens"] == 4  # each prompt once, whatever n is
    streamed = events((await front.complete(["a=", "b="], n=2, echo=True, stream=True)).text)[:-1]
    texts = ["", "", "", ""]
    for chunk in streamed:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == [c["text"] for c in body["choices"]]


async def test_a_character_that_begins_in_the_prompt_comes_whole(tmp_path):
    client = LocalClient(saying("😀 ok".encode()))
    tokenizer = make_tokenizer(tmp_path)
    client.token_bytes = TokenBytes.of(tokenizer, VOCAB)
    async with front_of(client, tokenizer) as front:
        prompt = [*b"=", *"😀".encode()[:2]]
        for asked, text in (({}, "😀 ok"), ({"stop": ["😀"]}, ""), ({"stop": [" "]}, "😀"), ({"logprobs": 1}, "😀 ok")):
            choice = (await front.complete(prompt, **asked)).json()["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == (text, "stop")
        assert front.metric("tailrace_wasted_tokens_total") == 0
        choice = (await front.complete(prompt, banned_strings=["😀"])).json()["choices"][0]
        assert "😀" not in choice["text"]


async def test_echo_of_ids_is_spelt(front):
    assert (await front.complete([*"é=".encode()], echo=True)).json()["choices"][0]["text"] == "é=Hello"


async def test_logprobs(front):
    body = (await front.complete(logprobs=2)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["H", "e", "l", "l", "o", "<|im_end|>"]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert all(-1e-6 < x <= 0 for x in logprobs["token_logprobs"])
    for token, alternatives in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert token in alternatives
        assert len(alternatives) == 2


async def test_the_drawn_token_is_listed_even_with_no_alternatives(front):
    logprobs = (await front.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    assert [list(d) for d in logprobs["top_logprobs"]] == [[token] for token in logprobs["tokens"]]


async def test_prompt_ids_are_reported(front):
    body = (await front.complete(["a=", "b="], return_token_ids=True)).json()
    assert [c["prompt_token_ids"] for c in body["choices"]] == [[*b"a="], [*b"b="]]
    assert body["choices"][0]["token_ids"] == [*b"Hello", 257]
