"""An error in any function of tailrace's, in a step of vLLM's: vLLM serves that step, and the next one is tailrace's
again. No function is named here: the steps are traced, and each function's first call fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from crowd import VOCAB, Crowd
from vllm import SamplingParams
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

import tailrace
from tailrace.integrations.vllm import draws, fallbacks, layout, patches, verification
from tailrace.integrations.vllm.requests import BatchFollower

pytestmark = pytest.mark.planted

HERE = str(Path(tailrace.__file__).parent)
# what vLLM calls: each does nothing but `attempt` what tailrace does; and what keeps an error from vLLM
OUTSIDE: set[CodeType] = {
    draws.sample_for_vllm.__code__,
    verification.verify_drafts.__code__,
    verification.sample_without_drafts.__code__,
    BatchFollower.update_state.__code__,
    BatchFollower.apply.__code__,
    BatchFollower.is_argmax_invariant.__code__,
    patches.make_metadata.__code__,
    layout.wrap_function(print, print).__code__,  # type: ignore[attr-defined]
}
GREEDY: list[dict[str, Any]] = [{}, {"presence_penalty": 0.5, "logprobs": 2}, {"allowed_token_ids": list(range(99))}]
SAMPLED: list[dict[str, Any]] = [{"seed": 3, "top_k": 1}, {"temperature": 0.7, "top_k": 1}, {"top_k": 1, "logprobs": 1}]
REFUSED: dict[str, Any] = {"temperature": 0.0, "logprobs": -1}


class PlantedError(Exception):
    """The error that is planted."""


class Plant:
    """Raises an error at call number `place` of the block's calls, and at all later ones if `on` is set. firsts:
    the number of each function's first call."""

    def __init__(self, place: int = -1, on: bool = False) -> None:
        self.place, self.on, self.calls = place, on, 0
        self.firsts: dict[CodeType, int] = {}

    def __enter__(self) -> Plant:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def trace(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(HERE) or code in OUTSIDE or code.co_filename == fallbacks.__file__:
            return
        if code.co_flags & CO_GENERATOR:  # to close one is a call, too, whose errors vanish
            return
        place, self.calls = self.calls, self.calls + 1
        self.firsts.setdefault(code, place)
        if place == self.place or (self.on and 0 <= self.place <= place):
            sys.settrace(self.trace if self.on else None)
            raise PlantedError(code.co_qualname)


def sample_step(crowd: Crowd, logits: torch.Tensor) -> list[list[int]]:
    """Let a request join, and draw a token of each."""
    crowd.settle()
    return Sampler()(logits[:, 0].clone(), crowd.metadata).sampled_token_ids.tolist()


def verify_step(crowd: Crowd, logits: torch.Tensor, dense: bool) -> list[list[int]]:
    """The same with two drafts of each: two that are right, one and padding, none."""
    crowd.settle()
    best = logits.argmax(-1).tolist()
    drafts = [ids[: row % 3] + [-1] * (2 - row % 3) for row, ids in enumerate(best)]
    probs = torch.full((2 * len(drafts), VOCAB), 1 / VOCAB) if dense else None
    metadata = SpecDecodeMetadata.make_dummy(drafts, logits.device)
    out = RejectionSampler(Sampler())(metadata, probs, logits.flatten(0, 1), crowd.metadata)
    return RejectionSampler.parse_output(out.sampled_token_ids, VOCAB)[0]


STEPS: dict[str, Callable[[Crowd, torch.Tensor], list[list[int]]]] = {
    "sample": sample_step,
    "verify": lambda crowd, logits: verify_step(crowd, logits, False),
    "verify dense": lambda crowd, logits: verify_step(crowd, logits, True),
}


def run(step: str, refused: bool, place: int, on: bool) -> tuple[Plant, int]:
    """Three steps, the second of which fails at this place. All tokens are the likeliest. Return what is known of the
    second step's calls, and how many errors were counted."""
    fallbacks.fallbacks.clear()
    crowd, noise = Crowd(1), torch.Generator().manual_seed(2)
    for fields in (*({"temperature": 0.0} | one for one in GREEDY), *SAMPLED):
        crowd.add(SamplingParams(**fields), prompt=[1, 2])
    if refused:
        crowd.add(SamplingParams(**REFUSED), prompt=[1, 2])
    planted = Plant()
    for turn in range(3):
        if turn == 1:
            crowd.remove(crowd.order()[1])
            crowd.add(SamplingParams(temperature=0.0, presence_penalty=0.1, logprobs=1), prompt=[3])
        count = len(crowd.live)
        logits = torch.randn(count, 3, VOCAB, generator=noise)
        logits[torch.arange(count)[:, None], torch.arange(3), 10 * turn + torch.arange(3)[None]] = 20.0
        with Plant(place if turn == 1 else -1, on) as plant:
            found = STEPS[step](crowd, logits)
        planted = plant if turn == 1 else planted
        for tokens, name in zip(found, crowd.order(), strict=True):
            wanted = [10 * turn + i for i in range(3)]
            assert 1 <= len(tokens) <= 3
            assert tokens == wanted[: len(tokens)], (place, name)
            crowd.live[name].output_token_ids += tokens
        assert turn > 0 or count_errors() == 0
    return planted, count_errors()


def count_errors() -> int:
    """Return how many errors of tailrace's were counted."""
    counted = fallbacks.fallbacks.items()
    return sum(times for reason, times in counted if reason.startswith("an error in tailrace's "))


@pytest.mark.parametrize(
    ("step", "refused"), [("sample", False), ("sample", True), ("verify", False), ("verify dense", True)]
)
def test_an_error_in_any_function_is_counted_and_changes_no_greedy_token(
    step: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each fourth function all calls from there on fail: so does what tailrace does after an error."""
    monkeypatch.setattr(fallbacks.log, "disabled", True)  # to print each traceback takes longer than the steps
    plant, errors = run(step, refused, -1, False)
    assert len(plant.firsts) > 30
    assert errors == 0
    for index, place in enumerate(plant.firsts.values()):
        for on in (False, True) if index % 4 == 0 else (False,):
            _, errors = run(step, refused, place, on)
            assert errors > 0, place
