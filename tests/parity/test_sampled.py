"""Seeded tokens equal transformers' `generate(do_sample=True)` on equal noise: only its last draw, from the
distribution that its own processors have left, is replaced by the same Gumbel noise. And parameters that are given, but
neutral, change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parity.test_greedy import NUM_TOKENS, SEED_TEXT, collect
from tailrace import kernels
from tailrace.config import CacheConfig, SchedulerConfig
from tailrace.engine.engine import Engine
from tailrace.kernels.constants import DRAW_STREAM
from tailrace.models import describe
from tailrace.params import SamplingParams
from tailrace.sampling import request_key
from tailrace.wire.in_process_client import InProcessClient

pytestmark = pytest.mark.model

JOINT = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
ASKED = (
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 40},
    {"temperature": 0.9, "top_p": 0.9},
    JOINT,
    {"min_p": 0.05},
    {"typical_p": 0.9},
    {"epsilon_cutoff": 3e-3},
    {"eta_cutoff": 3e-3},
    {"repetition_penalty": 1.2, "top_p": 0.95},
)
NEUTRAL = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_a": 0.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "xtc_probability": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "dynatemp_range": 0.0,
    "guidance_scale": 1.0,
}


@pytest.fixture(scope="module")
def prompts(model_folder: Path) -> list[list[int]]:
    from tailrace.text.tokenizer import Tokenizer

    ids = Tokenizer.load(model_folder).encode(SEED_TEXT)
    return [ids[i * 7 : i * 7 + length] for i, length in enumerate((1, 3, 17, 32, 48))]


@pytest.fixture
def reference(reference_of):
    return reference_of("float32")


@pytest.fixture(scope="module")
def client(model_folder: Path, runner_of) -> InProcessClient:
    client = InProcessClient(
        Engine(
            runner_of("float32"),
            describe(model_folder, "smollm2"),
            CacheConfig(num_blocks=256),
            SchedulerConfig(max_num_seqs=8),
        )
    )
    client.start()
    return client


def said(client: InProcessClient, prompts: list[list[int]], fields: dict, seed: int | None) -> list[list[int]]:
    """What the engine says to all of them at once; EOS can't come."""
    params = SamplingParams(**fields, seed=seed, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS)
    streams = [client.submit(prompt, params) for prompt in prompts]
    return [collect(stream)[0] for stream in streams]


def generated(reference, prompt: list[int], fields: dict, key: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What `generate` says, its draws decided by the noise of this key."""
    at = len(prompt)

    def draw(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        nonlocal at
        assert probabilities.shape[0] == num_samples == 1
        noise = kernels.gumbel(key, at, torch.arange(probabilities.shape[1]), DRAW_STREAM)
        at += 1
        return (probabilities[0].double().log() + noise).argmax()[None, None]

    monkeypatch.setattr(torch, "multinomial", draw)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=True,
            pad_token_id=0,
            **{"top_k": 0, "top_p": 1.0, "temperature": 1.0, "repetition_penalty": 1.0} | fields,
        )
    assert at == len(prompt) + NUM_TOKENS
    return out[0, len(prompt) :].tolist()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("fields", "some"),
    [
        *(pytest.param(fields, [i % 5], id=f"{' '.join(fields)}, a prompt") for i, fields in enumerate(ASKED)),
        *(pytest.param(fields, range(5), id=" ".join(fields), marks=pytest.mark.long) for fields in ASKED),
    ],
)
def test_sampled_equals_generate_on_equal_noise(client, reference, prompts, fields, some, monkeypatch):
    prompts = [prompts[i] for i in some]
    for seed in (0, 7) if fields == JOINT and len(prompts) > 1 else (3,):
        ours = said(client, prompts, fields, seed)
        theirs = [generated(reference, prompt, fields, request_key(seed, 0), monkeypatch) for prompt in prompts]
        assert ours == theirs


@pytest.mark.long
def test_another_key_is_seen(client, reference, prompts, monkeypatch):
    """The planted fault: noise of another seed."""
    theirs = generated(reference, prompts[2], {"temperature": 0.9}, request_key(1, 0), monkeypatch)
    assert said(client, prompts[2:3], {"temperature": 0.9}, 0) != [theirs]


@pytest.mark.long
@pytest.mark.parametrize(
    "names", [NEUTRAL, *(pytest.param([name], marks=pytest.mark.long) for name in NEUTRAL)], ids=" ".join
)
def test_neutral_values_that_are_given_keep_greedy_output(client, prompts, names):
    expected = said(client, prompts, {"temperature": 0.0}, None)
    assert said(client, prompts, {"temperature": 0.0, **{name: NEUTRAL[name] for name in names}}, None) == expected
