"""Greedy tokens equal transformers' `generate`, however the engine schedules the work.

Twenty prompts of different lengths (in `make test` five, in float32 and half as far); alone, batched together, with
chunked prefill, with prefix reuse, with preemption forced by a tiny cache, and with n = 3. In float32 the tokens must
be equal; in bfloat16 two arithmetic orders may part at a near-tie, so a divergence is allowed only where transformers'
own logits put the two tokens closer than BF16_MARGIN, and every one is printed with its margin.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tailrace.config import CacheConfig, SchedulerConfig
from tailrace.engine.engine import Engine
from tailrace.models import describe
from tailrace.params import SamplingParams
from tailrace.wire.in_process_client import InProcessClient
from tailrace.wire.messages import Failed, Finished, Tokens

pytestmark = pytest.mark.model

NUM_TOKENS = 16
BF16_MARGIN = 0.5  # logits are around 16 … 32, where neighbouring bf16 values lie 0.125 apart
SEED_TEXT = (
    "The river ran down from the hills past the old mill, where the wheel had turned for two hundred years. "
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n"
    "In 1969 three people flew to the moon; what they found there was dust, rock and silence. "
    "Once upon a time, in a small village by the sea, there lived a fisherman who could not swim. "
)


@dataclass(frozen=True)
class World:
    """How one run is scheduled."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    num_blocks: int = 512
    few_blocks: int = 512  # with the few prompts of make test
    prefix_reuse: bool = False


WORLDS = {
    "batched": World(),
    "alone": World(max_num_seqs=1),
    "chunked": World(max_num_batched_tokens=32),
    "preempted": World(num_blocks=40, few_blocks=14, max_num_batched_tokens=64),
    "prefix reuse": World(prefix_reuse=True),
}


LENGTHS = (1, 2, 3, 5, 7, 11, 15, 16, 17, 23, 31, 32, 33, 47, 48, 64, 80, 100, 128, 200)


@dataclass(frozen=True)
class Scene:
    """What is asked."""

    dtype: str
    lengths: tuple[int, ...] = LENGTHS  # of prompts
    num_tokens: int = NUM_TOKENS

    def greedy(self, n: int = 1) -> SamplingParams:
        """min_tokens = max_tokens bans EOS throughout, as generate's min_new_tokens does."""
        return SamplingParams(temperature=0.0, n=n, max_tokens=self.num_tokens, min_tokens=self.num_tokens)


SCENES = [
    pytest.param(Scene("float32", (1, 15, 16, 33, 100), 8), id="float32, few"),
    pytest.param(Scene("float32"), id="float32", marks=pytest.mark.long),
    pytest.param(Scene("bfloat16"), id="bfloat16", marks=pytest.mark.long),
]


@pytest.fixture(scope="module", params=SCENES)
def scene(request: pytest.FixtureRequest) -> Scene:
    return request.param


@pytest.fixture(scope="module")
def prompts(model_folder: Path, scene) -> list[list[int]]:
    from tailrace.text.tokenizer import Tokenizer

    ids = Tokenizer.load(model_folder).encode(SEED_TEXT * 3)
    return [ids[i * 3 : i * 3 + length] for i, length in enumerate(scene.lengths)]


@pytest.fixture(scope="module")
def dtype(scene: Scene) -> str:
    return scene.dtype


@pytest.fixture(scope="module")
def reference(reference_of, dtype: str):
    return reference_of(dtype)


@pytest.fixture(scope="module")
def expected(reference, prompts: list[list[int]], scene: Scene) -> list[list[int]]:
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=scene.num_tokens,
                min_new_tokens=scene.num_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        outputs.append(out[0, len(prompt) :].tolist())
    return outputs


@pytest.fixture(scope="module")
def engine_parts(model_folder: Path, runner_of, scene: Scene):
    """Engines over one loaded runner: loading is the slow part."""

    def engine(world: World) -> Engine:
        blocks = world.num_blocks if scene.lengths == LENGTHS else world.few_blocks
        return Engine(
            runner_of(scene.dtype),
            describe(model_folder, "smollm2"),
            CacheConfig(num_blocks=blocks, prefix_reuse=world.prefix_reuse),
            SchedulerConfig(max_num_seqs=world.max_num_seqs, max_num_batched_tokens=world.max_num_batched_tokens),
        )

    return engine


def collect(stream: Iterable) -> dict[int, list[int]]:
    """Token ids per sequence of a stream, checking that each ends in exactly one Finished."""
    tokens: dict[int, list[int]] = {}
    ended: list[int] = []
    for events in stream:
        for event in events:
            assert not isinstance(event, Failed), event
            if isinstance(event, Tokens):
                tokens.setdefault(event.index, []).extend(event.token_ids)
            elif isinstance(event, Finished):
                ended.append(event.index)
    assert sorted(ended) == sorted(set(ended)) == sorted(tokens)
    return tokens


def margin(reference, prompt: list[int], theirs: list[int], ours: list[int]) -> float:
    """By how much transformers prefers its token to ours where the two first part; 0 where they don't."""
    at = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b), None)
    if at is None:
        return 0.0
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + theirs[:at]])).logits[0, -1].float()
    gap = (logits[theirs[at]] - logits[ours[at]]).item()
    print(f"prompt of {len(prompt)}: tokens part at {at} ({theirs[at]} against {ours[at]}), margin {gap:.4f}")
    return gap


def check(reference, dtype: str, prompts, expected, outputs: list[list[int]]) -> None:
    for prompt, theirs, ours in zip(prompts, expected, outputs, strict=True):
        if dtype == "float32":
            assert ours == theirs, f"prompt of {len(prompt)}: {margin(reference, prompt, theirs, ours)}"
        else:
            assert abs(margin(reference, prompt, theirs, ours)) <= BF16_MARGIN


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "alone" else ()) for name in WORLDS]
)
def test_greedy_equals_generate(name, engine_parts, reference, dtype, prompts, expected, scene):
    engine = engine_parts(WORLDS[name])
    client = InProcessClient(engine)
    client.start()
    streams = [client.submit(prompt, scene.greedy()) for prompt in prompts]
    outputs = [collect(stream)[0] for stream in streams]
    check(reference, dtype, prompts, expected, outputs)
    stats = engine.stats()
    assert stats.running == stats.waiting == stats.blocks_used == 0
    if name == "preempted":
        assert stats.preemptions > 0
    if name == "prefix reuse":
        again = [collect(client.submit(prompt, scene.greedy()))[0] for prompt in prompts]
        check(reference, dtype, prompts, expected, again)
        assert engine.stats().cached_tokens > stats.cached_tokens


@pytest.mark.long
def test_n_3_shares_the_prompt_and_gives_the_same_tokens(engine_parts, reference, dtype, prompts, expected, scene):
    engine = engine_parts(WORLDS["batched"])
    client = InProcessClient(engine)
    client.start()
    streams = [client.submit(prompt, scene.greedy(n=3)) for prompt in prompts[::4]]
    for prompt, theirs, stream in zip(prompts[::4], expected[::4], streams, strict=True):
        tokens = collect(stream)
        assert sorted(tokens) == [0, 1, 2]
        for ours in tokens.values():
            check(reference, dtype, [prompt], [theirs], [ours])
    assert engine.stats().blocks_used == 0


def test_the_margin_is_seen(reference, prompts, expected):
    """The negative control: a token changed by hand has a margin far above the bound."""
    wrong = list(expected[-2])
    wrong[3] = (wrong[3] + 1) % 49152
    assert margin(reference, prompts[-2], expected[-2], wrong) > BF16_MARGIN
