"""What a reader of the code found: each as the request that showed it."""

from __future__ import annotations

import asyncio

import pytest
import torch

from api.harness import EOS, VOCAB, LocalClient, endless, front_of, saying
from tailrace.config import ServerConfig

HI = [{"role": "user", "content": "hi"}]


def row(ids: list[int]) -> torch.Tensor:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(sum(ids)))
    logits[EOS] = -50.0
    return logits


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


async def test_a_user_who_writes_the_marker_has_not_opened_it(tokenizer):
    config = ServerConfig(reasoning_parser="think")
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, config) as front:
        message = (await front.chat(content="What does <think> do?")).json()["choices"][0]["message"]
        assert message["content"] == "Hello"


@pytest.fixture
async def slow(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer) as front:
        yield front


async def test_responses_deleted_or_left_on_the_way(slow):
    running = asyncio.ensure_future(
        slow.http.post("/v1/responses", json={"input": "hi", "request_id": "a/b-c", "max_output_tokens": 40})
    )
    await slow.until(lambda: len(slow.app.state.front.responses) == 1)
    id = next(iter(slow.service.open_requests)).id
    assert (await slow.http.delete(f"/v1/responses/{id}")).json()["deleted"]
    assert (await running).json()["status"] == "incomplete"
    assert len(slow.app.state.front.responses) == 0
    running = asyncio.ensure_future(slow.http.post("/v1/responses", json={"input": "hi", "request_id": "x-y"}))
    await slow.until(lambda: len(slow.app.state.front.responses) == 1)
    assert (await slow.http.delete("/v1/requests/y")).status_code == 404
    assert (await slow.http.delete("/v1/requests/x-y")).status_code == 200
    answer = (await running).json()
    assert (answer["status"], answer["output"][0]["status"]) == ("cancelled", "incomplete")
    assert answer["usage"]["output_tokens"] == len(answer["output"][0]["content"][0]["text"])


async def test_a_response_can_be_cancelled_before_its_first_token(slow):
    slow.client.hold = True
    running = asyncio.ensure_future(
        slow.http.post("/v1/responses", json={"input": "hi", "request_id": "early", "store": False})
    )
    await slow.until(lambda: slow.service.open_requests)
    id = next(iter(slow.service.open_requests)).id
    assert (await slow.http.post(f"/v1/responses/{id}/cancel")).json()["cancelled"]
    slow.client.hold = False
    assert (await running).json()["status"] == "cancelled"


async def test_only_the_instructions_end_with_their_turn(front):
    items = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    first = (
        await front.http.post("/v1/responses", json={"input": items, "instructions": "Shout.", "temperature": 0})
    ).json()
    second = (
        await front.http.post(
            "/v1/responses", json={"input": "and?", "previous_response_id": first["id"], "temperature": 0}
        )
    ).json()
    messages = [*items, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "and?"}]
    counted = (await front.http.post("/tokenize", json={"messages": messages})).json()["count"]
    assert second["usage"]["input_tokens"] == counted
