"""Logprobs of prompts: `prompt_logprobs` in vLLM's shape, and `echo` with `logprobs` in OpenAI's; however they are
chunked."""

from __future__ import annotations

import asyncio
import math
from functools import partial

import pytest
import torch

from api.harness import VOCAB, LocalClient, events, front_of
from api.harness import random_row as row
from tailrace.api.logprobs import FLOOR
from tailrace.api.prompt_scores import PromptScores
from tailrace.engine import scheduler, scored_rows
from tailrace.params import SamplingParams
from tailrace.wire.messages import PromptLogprobs, TokenLogprobs

PROMPT = "The price = 4 €"


@pytest.fixture
async def front(tokenizer):
    async with front_of(LocalClient(row), tokenizer) as front:
        yield front


def expected(ids: list[int]) -> list[float]:
    return [float(row(ids[:i]).double().log_softmax(0)[ids[i]]) for i in range(1, len(ids))]


async def test_echo_with_logprobs(front):
    ids = list(PROMPT.encode())
    answer = (await front.complete(PROMPT, echo=True, logprobs=2, max_tokens=3)).json()["choices"][0]
    lists = answer["logprobs"]
    assert answer["text"].startswith(PROMPT)
    assert len(lists["tokens"]) == len(ids) + 3
    assert lists["token_logprobs"][0] is lists["top_logprobs"][0] is None
    assert lists["token_logprobs"][1 : len(ids)] == pytest.approx(expected(ids), abs=1e-5)
    assert all(2 <= len(top) <= 3 for top in lists["top_logprobs"][1:])
    for at, name in zip(lists["text_offset"], lists["tokens"], strict=True):
        if not name.startswith("bytes:"):
            assert answer["text"][at : at + len(name)] == name


@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_logprobs(front, stream):
    ids = list(PROMPT.encode())
    fields = {"prompt_logprobs": 3, "max_tokens": 2, "n": 2}
    if stream:
        chunks = events((await front.complete(PROMPT, stream=True, **fields)).text)[:-1]
        found = [c["prompt_logprobs"] for chunk in chunks for c in chunk["choices"] if "prompt_logprobs" in c]
    else:
        found = [c["prompt_logprobs"] for c in (await front.complete(PROMPT, **fields)).json()["choices"]]
    assert len(found) == 2
    assert found[0] == found[1]
    assert found[0][0] is None
    for place, (entry, logprob) in enumerate(zip(found[0][1:], expected(ids), strict=True), start=1):
        mine = entry[str(ids[place])]
        assert mine["logprob"] == pytest.approx(logprob, abs=1e-5)
        order = row(ids[:place]).argsort(descending=True).tolist()
        assert mine["rank"] == order.index(ids[place]) + 1
        assert [str(i) for i in order[:3]] == list(entry)[:3]


async def test_of_a_chat(front):
    answer = (await front.chat(prompt_logprobs=0, max_tokens=1, return_token_ids=True)).json()
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])
    assert all(len(entry) == 1 for entry in answer["prompt_logprobs"][1:])


async def test_from_a_place_on_and_at_a_temperature(front):
    ids, start = list(PROMPT.encode()), 4
    fields = {"prompt_logprobs": 1, "prompt_logprob_start": start, "prompt_logprobs_temperature": 0.7, "max_tokens": 1}
    [choice] = (await front.complete(PROMPT, **fields)).json()["choices"]
    entries = choice["prompt_logprobs"]
    assert entries[: start + 1] == [None] * (start + 1)
    assert len(entries) == len(ids)
    for place, entry in enumerate(entries[start + 1 :], start=start + 1):
        cooled = (row(ids[:place]).double() / 0.7).log_softmax(0)
        assert entry[str(ids[place])]["logprob"] == pytest.approx(float(cooled[ids[place]]), abs=1e-5)
    assert "prompt_token_id_logprobs" not in choice


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [None, 3])
async def test_of_given_tokens_in_vllms_shape(front, stream, budget, monkeypatch):
    """Row i is of the prompt's token start + i + 1; empty rows cost no row of logits."""
    scored: list[int] = []
    if budget is not None:
        monkeypatch.setattr(scheduler, "MAX_SCORED", budget)
    replay = scored_rows.replay
    monkeypatch.setattr(scored_rows, "replay", lambda rows, *args: scored.append(len(rows)) or replay(rows, *args))
    ids, start, asked = list(PROMPT.encode()), 2, [[5, 6], [], [7], [], [], [8, 9, 10]]
    fields = {"prompt_logprob_token_ids": asked, "prompt_logprob_start": start, "max_tokens": 2, "n": 2}
    if stream:
        chunks = events((await front.complete(PROMPT, stream=True, **fields)).text)[:-1]
        name = "prompt_token_id_logprobs"
        found = [c[name] for chunk in chunks for c in chunk["choices"] if name in c]
    else:
        choices = (await front.complete(PROMPT, **fields)).json()["choices"]
        found = [choice["prompt_token_id_logprobs"] for choice in choices]
        assert not any("prompt_logprobs" in choice for choice in choices)
    assert found[0] == found[1]
    assert sum(scored) == sum(map(bool, asked))
    for i, wanted in enumerate(asked):
        logprobs = row(ids[: start + i + 1]).double().log_softmax(0)[wanted].tolist()
        assert found[0][i] == pytest.approx(logprobs, abs=1e-5)


async def test_of_given_tokens_in_a_chat_beside_the_prompts_own(front):
    fields = {"prompt_logprob_token_ids": [[5], [6]], "prompt_logprobs": 0, "max_tokens": 1, "return_token_ids": True}
    answer = (await front.chat(**fields)).json()
    ids = answer["prompt_token_ids"]
    assert len(answer["prompt_logprobs"]) == len(ids)
    expect = [float(row(ids[: i + 1]).double().log_softmax(0)[token]) for i, token in enumerate((5, 6))]
    assert [value for [value] in answer["prompt_token_id_logprobs"]] == pytest.approx(expect, abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprob_start": 3}, "prompt_logprob_start"),
        ({"prompt_logprobs_temperature": 0.5}, "prompt_logprobs_temperature"),
        ({"prompt_logprobs": 0, "prompt_logprobs_temperature": 0}, "prompt_logprobs_temperature"),
        ({"prompt_logprobs": 0, "prompt_logprob_start": 16}, "prompt_logprob_start"),
        ({"prompt_logprob_token_ids": [[]]}, "prompt_logprob_token_ids"),
        ({"prompt_logprob_token_ids": [[VOCAB]]}, "prompt_logprob_token_ids"),
        ({"prompt_logprob_token_ids": [[1]] * 17}, "prompt_logprob_token_ids"),
        ({"prompt_logprob_token_ids": [[1] * 129]}, "prompt_logprob_token_ids"),
        ({"echo": True, "logprobs": 1, "prompt_logprob_start": 1}, "prompt_logprob_start"),
    ],
)
async def test_what_cannot_be_scored_is_said(front, fields, param):
    response = await front.complete(PROMPT, max_tokens=1, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("stop", [None, "a"])
async def test_the_prompt_alone(front, stop):
    """max_tokens 0 says nothing, and does not count what was drawn to get there."""
    ask = {"echo": True, "logprobs": 2, "return_token_ids": True, "stop": stop, "n": 2}
    whole = (await front.complete(PROMPT, max_tokens=0, **ask)).json()
    longer = (await front.complete(PROMPT, max_tokens=1, **ask | {"stop": None})).json()
    for choice, other in zip(whole["choices"], longer["choices"], strict=True):
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (PROMPT, "length", None)
        assert choice["token_ids"] == []
        assert choice["logprobs"]["token_logprobs"] == other["logprobs"]["token_logprobs"][:-1]
    count = len(PROMPT.encode())
    assert (whole["usage"]["completion_tokens"], whole["usage"]["total_tokens"]) == (0, count)
    streamed = await front.complete(PROMPT, max_tokens=0, stream=True, stream_options={"include_usage": True}, **ask)
    told = [event for event in events(streamed.text) if event != "[DONE]"]
    for i in range(2):
        assert "".join(c["text"] for event in told for c in event["choices"] if c["index"] == i) == PROMPT
    assert told[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("fields", [{}, {"echo": False}, {"echo": True, "min_tokens": 1}, {"echo": True, "best_of": 2}])
async def test_nothing_at_all_is_refused(front, fields):
    answer = await front.complete(PROMPT, max_tokens=0, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (
        400,
        next((n for n in fields if n != "echo"), "max_tokens"),
    )


@pytest.mark.parametrize("rows", [1, 3, 5])
async def test_chunks_beside_others_and_after_the_prefix_is_cached(front, monkeypatch, rows):
    monkeypatch.setattr(scheduler, "MAX_SCORED", rows)
    ids = list(PROMPT.encode())
    await front.complete(PROMPT, max_tokens=2)  # its blocks are cached now
    several = (await front.complete([PROMPT, "x" * 40, PROMPT], prompt_logprobs=0, max_tokens=2)).json()["choices"]
    for choice, text in zip(several, (ids, [ord("x")] * 40, ids), strict=True):
        own = [
            entry[str(token)]["logprob"] for entry, token in zip(choice["prompt_logprobs"][1:], text[1:], strict=True)
        ]
        assert own == pytest.approx(expected(text), abs=1e-5)
    await front.until(front.client.idle)


async def test_a_prompt_of_one_token(front):
    answer = (await front.complete("a", prompt_logprobs=1, echo=True, logprobs=1, max_tokens=1)).json()["choices"][0]
    assert answer["prompt_logprobs"] == [None]
    assert answer["logprobs"]["token_logprobs"][0] is None


@pytest.mark.parametrize("value", [-1, 21, "many"])
async def test_out_of_range(front, value):
    answer = await front.complete(PROMPT, prompt_logprobs=value)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprobs")


HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "Hello", "prompt_logprobs": 0}),
        ("/v1/completions", {"prompt": "Hello", "echo": True, "logprobs": 1}),
        ("/v1/chat/completions", {"messages": HI, "prompt_logprobs": 0}),
    ],
)
async def test_cut_before_the_prompt_is_scored(tokenizer, path, fields):
    client = LocalClient(row)
    async with front_of(client, tokenizer) as front:
        client.hold = True
        answer = (await front.http.post(path, json=fields | {"deadline_s": 0.05})).json()
        assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]) == ("abort", "deadline")
        client.hold = False
        await front.until(client.idle)


async def test_echo_with_best_of_and_with_entropies(tokenizer):
    async with front_of(LocalClient(row), tokenizer) as front:
        answer = (await front.complete("Hello", echo=True, best_of=2, max_tokens=2, temperature=1)).json()
        assert answer["choices"][0]["text"].startswith("Hello")
        refused = await front.complete("Hello", echo=True, best_of=2, logprobs=1)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "best_of")
        lists = (await front.complete("Hello", echo=True, logprobs=1, report_entropy=True, max_tokens=2)).json()[
            "choices"
        ][0]["logprobs"]
        assert len(lists["entropy"]) == len(lists["tokens"]) == 7
        assert lists["entropy"][:5] == [None] * 5
        assert all(entropy > 0 for entropy in lists["entropy"][5:])


async def test_a_prompt_that_cannot_be_scored_is_nobody_elses_business(tokenizer):
    def script(ids: list[int]) -> torch.Tensor:
        logits = row(ids)
        if ids[0] == ord("!") and len(ids) == 3:
            logits[7] = float("nan")
        return logits

    async with front_of(LocalClient(script), tokenizer) as front:
        bad, good = await asyncio.gather(
            front.complete("!bad one", prompt_logprobs=0, max_tokens=3, n=2), front.complete("good one", max_tokens=3)
        )
        assert (bad.status_code, bad.json()["error"]["code"]) == (500, "invalid_logits")
        assert good.status_code == 200
        await front.until(front.client.idle)


async def test_siblings_need_no_scores_of_their_own(tokenizer):
    async with front_of(LocalClient(row), tokenizer) as front:
        await front.complete("Hello", prompt_logprobs=0, n=3, max_tokens=30, stream=True)
        assert all(not sequence.scoring for sequence in front.client.engine.running)
        answer = (await front.complete("Hello", prompt_logprobs=0, n=3, max_tokens=30)).json()
        assert [len(choice["prompt_logprobs"]) for choice in answer["choices"]] == [5] * 3


async def test_too_many_scores_are_refused(tokenizer):
    async with front_of(LocalClient(row), tokenizer) as front:
        answer = await front.complete(["x" * 200] * 30, prompt_logprobs=20, n=10)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprobs")


@pytest.mark.parametrize("path", ["chat", "complete"])
async def test_too_many_scores_of_given_tokens_are_refused(tokenizer, monkeypatch, path):
    monkeypatch.setattr("tailrace.api.sampling.MAX_SCORES", 3)
    async with front_of(LocalClient(row), tokenizer) as front:
        ask = front.chat if path == "chat" else partial(front.complete, "some text")
        assert (await ask(prompt_logprob_token_ids=[[5, 6], [7]], max_tokens=1)).status_code == 200
        answer = await ask(prompt_logprob_token_ids=[[5, 6], [7, 8]], max_tokens=1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprob_token_ids")


def test_a_token_that_cannot_come_has_a_number():
    params = SamplingParams(prompt_logprob_token_ids=((5, 6),))
    scores, entry = PromptScores(params, 3), TokenLogprobs(-1.0, 1, [], [])
    scores.keep(PromptLogprobs("r", 0, params.scored_places(3)[0], entries=[entry], named=[[-1.0, -math.inf]]))
    assert scores.named == [[-1.0, FLOOR]]
