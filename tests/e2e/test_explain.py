"""Why tokens came, with the default model: a record made live is the one that is made afterwards, alone or in a crowd,
from decode steps or from a prefill, guessed ahead or not."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from e2e.prompts import prompts
from tailrace.config import CacheConfig, ModelConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting import load_drafter
from tailrace.engine.engine import Engine
from tailrace.explain.record import ExplainOptions, Explanation
from tailrace.models import describe
from tailrace.params import SamplingParams
from tailrace.runners import load_runner
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import Replay, Replayed, Submit, Tokens

BLOCK, LENGTH = 16, 6
SHOWN = ExplainOptions(top=5)
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.05, "presence_penalty": 0.1},
    {"temperature": 0.0},
    {"temperature": 1.0, "min_p": 0.05, "dry_multiplier": 0.8},
    {"temperature": 0.9, "mirostat": 2},
    {"temperature": 0.7, "top_k": 40, "xtc_probability": 0.5, "forced_token_ids": (504, 253)},
)


@pytest.fixture(scope="module")
def engine_of(model_folder: Path):
    config = ModelConfig(threads=1)

    @cache
    def runner():
        return load_runner(config, model_folder, block_size=BLOCK)

    def engine(max_num_seqs: int, drafter: str = "none", overlap: str = "off") -> Engine:
        speculation = SpeculationConfig(drafter=drafter, rule="exact", adaptive=False)
        made = partial(load_drafter, speculation, config, runner(), block_size=BLOCK)
        return Engine(
            runner(),
            describe(model_folder, "small"),
            CacheConfig(num_blocks=512, block_size=BLOCK),
            SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=256, overlap=overlap),
            speculation=speculation,
            drafter=None if drafter == "none" else made,
        )

    return engine


def run(engine: Engine, asked: list[Submit]) -> tuple[dict[str, list[Explanation]], list[Replayed]]:
    """All records by request, and the messages of replays."""
    found: dict[str, list[Explanation]] = {message.id: [] for message in asked}
    replays: list[Replayed] = []
    for message in asked:
        engine.submit(message)
    while engine.has_work:
        for message in engine.step().get(b"", []):
            if isinstance(message, Tokens):
                found[message.id] += message.explanations or []
            elif isinstance(message, Replayed):
                found[message.id] += message.records
                replays.append(message)
            else:
                assert message.reason in ("length", "stop"), message
    return found, replays


@pytest.mark.long
@pytest.mark.parametrize("count", [5, pytest.param(40, marks=pytest.mark.long)])
def test_records_are_the_same_live_and_afterwards(engine_of, model_folder, count):
    texts = prompts(Tokenizer.load(model_folder), count)
    params = [SamplingParams(seed=place, max_tokens=LENGTH, **KINDS[place % len(KINDS)]) for place in range(count)]
    live = [
        Submit(f"r{place}", 0, text, msgspec.structs.replace(params[place], explain=SHOWN))
        for place, text in enumerate(texts)
    ]
    alone, _ = run(engine_of(1), live)
    crowd, _ = run(engine_of(32, overlap="on"), live)
    guessed, _ = run(engine_of(32, drafter="ngram"), live)
    assert crowd == alone
    for id, records in guessed.items():
        plain = [
            msgspec.structs.replace(record, draft=None, origin=alone[id][i].origin) for i, record in enumerate(records)
        ]
        assert plain == alone[id]
    afterwards = [
        Submit(f"r{place}", 0, text, params[place], replay=Replay(output, list(range(len(output))), SHOWN))
        for place, text in enumerate(texts)
        if (output := [record.token_id for record in alone[f"r{place}"]])
    ]
    for world in (engine_of(1), engine_of(32, overlap="on")):
        again, messages = run(world, afterwards)
        assert again == alone
        assert all(message.difference is None for message in messages)
