"""What tailrace raises inside vLLM's V2 runner: vLLM draws, with the parameters that were asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from crowd import CONFIG, ROWS, VOCAB
from planting import count_errors, make_failing
from vllm import SamplingParams

from tailrace.integrations.vllm import v2
from tailrace.sampling import Rows, Slots
from tailrace.sampling import Sampler as Ours

pytestmark = pytest.mark.planted


def make_shared(dtype: torch.dtype) -> Any:
    """A number of each row, in vLLM's form: on the host and on the device."""
    numbers = torch.zeros(ROWS, dtype=dtype)
    return SimpleNamespace(gpu=numbers, np=numbers.numpy())


class V2Sampler:
    """vLLM's, as far as tailrace looks: `told` is what it knows of each request."""

    def __init__(self) -> None:
        self.needs_logits_processing, self.told, self.draws = np.zeros(ROWS, dtype=bool), {}, 0
        names = [str(index) for index in range(ROWS)]
        self.req_states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=torch.zeros(ROWS, 64, dtype=torch.int32)),
            **{name: make_shared(torch.int32) for name in ("prompt_len", "prefill_len", "total_len")},
            index_to_req_id=dict(enumerate(names)),
            req_id_to_index={name: index for index, name in enumerate(names)},
        )
        strengths = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        self.penalties_state = SimpleNamespace(
            **{name: make_shared(torch.float32) for name in strengths}, apply_staged_writes=lambda: None
        )
        self.sampling_states = SimpleNamespace(add_request=self.tell, apply_staged_writes=lambda: None)

    def tell(self, index: int, params: SamplingParams) -> bool:
        self.told[index] = params
        return params.temperature not in (0.0, 1.0)

    def add_request(self, index: int, params: SamplingParams) -> None:
        self.needs_logits_processing[index] = self.tell(index, params)

    def apply_sampling_params(self, logits: torch.Tensor, *place: Any, skip_top_k_top_p: bool) -> torch.Tensor:
        return logits

    def sample(self, logits: torch.Tensor, *place: Any, return_logprobs: bool) -> tuple[torch.Tensor, torch.Tensor]:
        self.draws += 1
        return torch.tensor([self.told[int(index)].top_k for index in place[2]]), logits


# the arguments of vLLM's V2 sampler
V2_GIVEN = {"vllm_config": CONFIG, "max_num_reqs": ROWS, "vocab_size": VOCAB, "num_speculative_tokens": 1}


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
