"""Tools, grammars, limited thoughts and MTP drafts together: of thousands of calls none is lost or wrong."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from e2e.scripted_calls import ScriptedBatch, check_chat, make_front
from tailrace.drafting import draft_sampler
from tailrace.drafting.adaptive import DraftLengthController

TOGETHER = 80
FAMILIES = ("deepseek", "qwen3_5")


async def run_chats(family: str, folder: Path, numbers: range) -> tuple[list[str], dict[str, int]]:
    """What is wrong in the answers to these chats, and the engine's counts."""
    client, front_end = make_front(family, folder)
    async with front_end as front:
        gate, wrong = asyncio.Semaphore(TOGETHER), []

        async def ask(number: int) -> None:
            async with gate:
                if found := await check_chat(front, number):
                    wrong.append(found)

        await asyncio.gather(*map(ask, numbers))
        await front.until(client.idle)
        assert client.engine.speculator.failures == 0
        counters = client.engine.counters
        return wrong, {"drafted": counters.drafted_tokens, "accepted": counters.accepted_tokens}


@pytest.mark.parametrize(
    ("family", "numbers"),
    [
        ("deepseek", range(24)),
        ("qwen3_5", range(24, 48)),
        *(
            pytest.param(FAMILIES[part % 2], range(250 * part, 250 * part + 250), marks=pytest.mark.long)
            for part in range(40)
        ),
    ],
)
def test_no_call_is_lost_or_wrong(family, numbers, tmp_path, monkeypatch):
    """Ten thousand chats in all. How many drafts are verified is drawn at random: calls must not depend on it."""
    rng = random.Random(5)
    monkeypatch.setattr(draft_sampler, "DraftBatch", ScriptedBatch)
    monkeypatch.setattr(
        DraftLengthController, "select", lambda self, offers: [rng.randint(0, offer.count) for offer in offers]
    )
    wrong, counts = asyncio.run(run_chats(family, tmp_path, numbers))
    assert not wrong, (len(wrong), wrong[:5])
    assert 0.3 * counts["drafted"] < counts["accepted"] < counts["drafted"]
    assert counts["accepted"] > 20 * len(numbers)
