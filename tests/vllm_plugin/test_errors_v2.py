"""What tailrace raises inside vLLM's V2 runner: vLLM draws, with the parameters that were asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from crowd import VOCAB
from planting import count_errors, make_failing
from v2_stand_in import V2_GIVEN, V2Sampler
from vllm import SamplingParams

from tailrace.integrations.vllm import v2
from tailrace.sampling import Rows, Slots
from tailrace.sampling import Sampler as Ours

pytestmark = pytest.mark.planted


@pytest.fixture
def sampler() -> tuple[V2Sampler, v2.DrawnRequests]:
    theirs = V2Sampler()
    return theirs, v2.DrawnRequests(theirs, V2_GIVEN)


def draw_v2(ours: v2.DrawnRequests, count: int) -> list[int]:
    place: dict[str, Any] = dict.fromkeys(v2.PLACE)
    place |= {"idx_mapping_np": np.arange(count), "seq_lens_upper_bound_np": np.full(count, 9)}
    return ours.sample(torch.randn(count, VOCAB), *place.values())[0].tolist()


@pytest.mark.parametrize("place", [(Ours, "begin"), (Rows, "plain"), (v2.DrawnRequests, "_draw_rows")])
@pytest.mark.parametrize("refused", [False, True])
def test_v2_draws_with_the_parameters_that_were_asked(
    place: tuple[Any, str], refused: bool, sampler: tuple[V2Sampler, v2.DrawnRequests], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = sampler
    for index in range(3):
        extra = {"logprobs": -1} if refused and index == 1 else {}
        ours.add_request(index, SamplingParams(temperature=0.7, top_k=10 + index, **extra))
    with monkeypatch.context() as patch:
        patch.setattr(*place, make_failing())
        assert draw_v2(ours, 3)[1] in ((11,) if refused else range(VOCAB))
    assert theirs.draws == 1
    assert [theirs.told[index].top_k for index in range(3)] == [10, 11, 12]
    assert theirs.needs_logits_processing[:3].all()
    assert draw_v2(ours, 3) == [10, 11, 12]  # to their ends
    ours.add_request(0, SamplingParams(temperature=0.7, top_k=1))
    assert theirs.told[0].top_k == 0
    assert draw_v2(ours, 3)[1:] == [11, 12]
    assert count_errors() == 1


def test_v2_adds_a_request_whatever_tailrace_raises(
    sampler: tuple[V2Sampler, v2.DrawnRequests], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = sampler
    with monkeypatch.context() as patch:
        patch.setattr(Slots, "reads_output", make_failing())
        ours.add_request(0, SamplingParams(temperature=0.7, top_k=10))
    assert theirs.told[0].top_k == 10
    assert draw_v2(ours, 1) == [10]
    ours.add_request(0, SamplingParams(temperature=0.7, top_k=11))
    assert theirs.told[0].top_k == 0
    assert count_errors() == 1
