"""One request while it is generated: joining of events, ends, counts."""

from __future__ import annotations

import asyncio

import pytest

from api.harness import LocalClient, endless, front_of, saying
from tailrace.api import generation as module
from tailrace.api.generation import Generation
from tailrace.config import ServerConfig
from tailrace.errors import NotReadyError
from tailrace.params import SamplingParams
from tailrace.wire.messages import TokenLogprobs, Tokens


def one(index: int, token: int, with_logprobs: bool) -> Tokens:
    entry = [TokenLogprobs(-float(token), 1, [], [])] if with_logprobs else None
    return Tokens("id", 1, index, [token], entry)


async def gathered(generation: Generation) -> list:
    return [item async for item in generation.deltas()]


async def test_every_choice_ends_once_and_all_is_counted(tokenizer):
    client = LocalClient(saying(b"Hi"))
    client.patient = True  # tokens that come together have no gap
    async with front_of(client, tokenizer) as front:
        params = SamplingParams(n=2, temperature=0)
        generation = Generation(front.service, "g", [[*b"a="], [*b"bb="]], params)
        deltas = await gathered(generation)
        assert sorted(choice for choice, d in deltas if d.finish_reason) == [0, 1, 2, 3]
        usage = generation.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 12, 17)
        assert not front.service.open_requests
        assert front.metric('tailrace_request_finished_total{finish_reason="stop"}') == 4
        assert front.metric("tailrace_time_to_first_token_seconds_count") == 2  # one per prompt
        assert front.metric("tailrace_inter_token_latency_seconds_count") == 8  # three tokens have two gaps
        assert front.metric("tailrace_e2e_request_latency_seconds_count") == 1


async def test_a_slow_reader_gets_larger_pieces(tokenizer):
    async with front_of(LocalClient(saying(b"x" * 100)), tokenizer) as front:
        generation = Generation(front.service, "g", [[*b"a="]], SamplingParams(temperature=0))
        texts = []
        async for _, delta in generation.deltas():
            texts.append(delta.text)
            await asyncio.sleep(0.05)
        assert "".join(texts) == "x" * 100
        assert len(texts) < 50


@pytest.mark.parametrize("ours", [True, False])
async def test_our_own_work_on_a_piece_is_not_the_clients_slowness(tokenizer, monkeypatch, ours):
    monkeypatch.setattr(module, "SLOW_AFTER_S", 0.0)
    config = ServerConfig(slow_readers="cut")
    async with front_of(LocalClient(saying(b"x" * 50), tick_s=0.001), tokenizer, config) as front:
        generation = Generation(front.service, "g", [[*b"a="]], SamplingParams(temperature=0))
        reasons = []
        async for _, delta in generation.deltas():
            if ours:  # the engine says more than may wait
                await generation.run(generation._on_backlog, 0)
            else:
                generation._on_backlog()
            reasons.append(delta.finish_reason)
        assert reasons[-1] == ("stop" if ours else "abort")


async def test_abort_and_closing_give_everything_back(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.001), tokenizer) as front:
        for end in ("abort", "close"):
            generation = Generation(front.service, "g", [[1], [2]], SamplingParams(n=2, ignore_eos=True))
            deltas = generation.deltas()
            await anext(deltas)
            if end == "abort":
                generation.abort("disconnect")
                generation.abort("disconnect")
            await deltas.aclose()
            await front.until(front.client.idle)
        assert front.metric('tailrace_request_aborted_total{cause="disconnect"}') == 1
        assert front.metric('tailrace_request_aborted_total{cause="closed"}') == 1


async def test_fail_reaches_whoever_iterates(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.001), tokenizer) as front:
        generation = Generation(front.service, "g", [[1], [2]], SamplingParams())
        task = asyncio.create_task(gathered(generation))
        await front.until(lambda: front.client.engine.counters.generated_tokens > 2)
        generation.fail(NotReadyError("closing"), "shutdown")
        with pytest.raises(NotReadyError, match="closing"):
            await task
        await front.until(front.client.idle)


async def test_nothing_is_submitted_while_the_engine_is_not_ready(tokenizer):
    async with front_of(LocalClient(endless), tokenizer) as front:
        front.service.supervisor.drain()
        with pytest.raises(NotReadyError):
            await gathered(Generation(front.service, "g", [[1]], SamplingParams()))
        assert not front.service.open_requests
