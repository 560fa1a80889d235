"""best_of, entropies, and what a request is told of its sampling."""

from __future__ import annotations

import math

import pytest
import torch

from api.harness import VOCAB, LocalClient, front_of

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
USER = {"messages": [{"role": "user", "content": "hi"}]}


def varied(ids: list[int]) -> torch.Tensor:
    """A few letters, one likelier than the others."""
    logits = torch.full((VOCAB,), -20.0)
    logits[97:105] = torch.linspace(2.0, 0.0, 8)
    return logits


@pytest.fixture
async def front(tokenizer):
    async with front_of(LocalClient(varied), tokenizer) as made:
        yield made


async def test_best_of_keeps_the_sequences_with_the_best_mean_logprob(front):
    fields = {"prompt": "x=", "max_tokens": 6, "seed": 5, "temperature": 1.5}
    every = (await front.http.post(COMPLETE, json=fields | {"n": 8, "logprobs": 0})).json()["choices"]
    ranked = sorted(every, key=lambda c: sum(c["logprobs"]["token_logprobs"]) / 6, reverse=True)
    answer = (await front.http.post(COMPLETE, json=fields | {"n": 3, "best_of": 8})).json()
    assert [c["text"] for c in answer["choices"]] == [c["text"] for c in ranked[:3]]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert all(c["logprobs"] is None for c in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 8 * 6


async def test_best_of_with_logprobs_keeps_them(front):
    answer = await front.http.post(COMPLETE, json={"prompt": "x=", "max_tokens": 2, "best_of": 3, "logprobs": 2})
    assert len(answer.json()["choices"][0]["logprobs"]["tokens"]) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"best_of": 1, "n": 2}, "at least n"),
        ({"best_of": 3, "stream": True}, "streamed"),
        ({"best_of": 2000}, "[1, 1024]"),
    ],
)
async def test_what_best_of_cant_be(front, fields, words):
    answer = await front.http.post(COMPLETE, json={"prompt": "x="} | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "best_of"
    assert words in answer.json()["error"]["message"]


async def test_entropies_come_with_the_logprobs_that_ask_for_them(front):
    p = torch.softmax(varied([]).double(), 0)
    entropy = float(-(p * p.log()).sum())
    varentropy = float((p * (p.log() + entropy) ** 2).sum())
    fields = {"max_tokens": 2, "report_entropy": True}
    chat = (await front.http.post(CHAT, json=USER | fields | {"logprobs": True})).json()
    for entry in chat["choices"][0]["logprobs"]["content"]:
        assert entry["entropy"] == pytest.approx(entropy, abs=1e-5)
        assert entry["varentropy"] == pytest.approx(varentropy, abs=1e-4)
    text = (await front.http.post(COMPLETE, json={"prompt": "x=", "logprobs": 1} | fields)).json()
    assert text["choices"][0]["logprobs"]["entropy"] == pytest.approx([entropy] * 2, abs=1e-5)
    plain = (await front.http.post(CHAT, json=USER | {"max_tokens": 1, "logprobs": True})).json()
    assert "entropy" not in plain["choices"][0]["logprobs"]["content"][0]
    refused = await front.http.post(CHAT, json=USER | fields)
    assert refused.json()["error"]["param"] == "report_entropy"


@pytest.mark.parametrize("path", [CHAT, COMPLETE])
@pytest.mark.parametrize("stream", [False, True])
async def test_case_12_the_effective_parameters_are_told_on_request(front, path, stream):
    body = (USER if path == CHAT else {"prompt": "x="}) | {
        "max_tokens": 2,
        "preset": "creative",
        "min_p": 0.2,
        "stream": stream,
    }
    answer = await front.http.post(path, json=body | {"return_sampling_params": True})
    if stream:
        import json

        first = answer.text.split("\n\n")[0].removeprefix("data: ")
        told = json.loads(first)["sampling_params"]
        assert answer.text.count("sampling_params") == 1
    else:
        told = answer.json()["sampling_params"]
    assert (told["temperature"], told["min_p"], told["xtc_probability"]) == (1.1, 0.2, 0.3)
    assert "sampling_params" not in (await front.http.post(path, json=body)).text


async def test_forced_tokens_are_said_with_their_true_logprobs(front):
    answer = await front.http.post(
        COMPLETE, json={"prompt": "x=", "max_tokens": 3, "forced_token_ids": [98, 50, 99], "logprobs": 1}
    )
    choice = answer.json()["choices"][0]
    assert choice["text"] == "b2c"
    p = torch.log_softmax(varied([]).double(), 0)
    assert choice["logprobs"]["token_logprobs"] == pytest.approx([float(p[98]), float(p[50]), float(p[99])], abs=1e-4)
    assert math.isfinite(choice["logprobs"]["token_logprobs"][1])


SEEDED = {
    "chat": (CHAT, USER | {"max_tokens": 40}),
    "completion": (COMPLETE, {"prompt": "x=", "max_tokens": 40}),
    "response": ("/v1/responses", {"input": "hi", "max_output_tokens": 40}),
    "message": ("/v1/messages", USER | {"max_tokens": 40}),
    "native": ("/generate", {"text": "x="}),
}


def said(answer: dict) -> str:
    """The text of an answer of any endpoint."""
    if "choices" in answer:
        choice = answer["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"]
    if "output" in answer:
        return answer["output"][0]["content"][0]["text"]
    return answer["text"] if "text" in answer else answer["content"][0]["text"]


@pytest.mark.parametrize("endpoint", SEEDED)
async def test_seed_minus_one_is_no_seed_and_other_negative_seeds_are(front, endpoint):
    """ "Regenerate" in a user interface sends −1 again and again."""
    path, body = SEEDED[endpoint]

    async def answer(seed: int) -> str:
        more = {"seed": seed}
        if endpoint == "native":
            more = {"sampling_params": {"max_new_tokens": 40, "sampling_seed": seed}}
        told = await front.http.post(path, json=body | more)
        assert told.status_code == 200, told.text
        return said(told.json())

    assert len({await answer(-1) for _ in range(3)}) == 3
    assert await answer(-2) == await answer(-2)
    assert await answer(7) == await answer(7)


async def test_seed_minus_one_is_told_as_no_seed(front):
    fields = {"prompt": "x=", "max_tokens": 1, "return_sampling_params": True}
    seeds = [
        (await front.http.post(COMPLETE, json=fields | {"seed": seed})).json()["sampling_params"].get("seed")
        for seed in (-1, -2)
    ]
    assert seeds == [None, -2]
