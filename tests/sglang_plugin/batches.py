"""SGLang's own way from a server's arguments and requests to its sampler, in this process: ServerArgs, Req,
ScheduleBatch, SamplingBatchInfo, create_sampler. Only the group of processes is a stand-in."""

from __future__ import annotations

import math
from array import array
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt import runtime_context
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.layers import sampler as sglang
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang_cpu import register as register_cpu
from tiny_model import EOS, V, make_tokenizer

from tailrace.integrations.sglang import register
from tailrace.integrations.sglang.front_end import add_own_params

register_cpu()
PROMPT = [1, 2, 3, 1, 2]


def resolve(model: str, **flags: Any) -> Any:
    """Return a server's resolved arguments, as after its start."""
    register()
    given = {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "tailrace", "random_seed": 5}
    made = ServerArgs(model_path=model, **{**given, **flags})
    made.resolve_once()
    return made


def start(model: str, monkeypatch: pytest.MonkeyPatch, **flags: Any) -> Any:
    """Make a server's arguments this process's. Return them as SGLang resolves them."""
    arguments = resolve(model, **flags)
    runtime_context.publish(arguments, role="scheduler")
    group = SimpleNamespace(device_group=None, world_size=1)
    runtime_context.get_parallel().override_permanently(tp_group=group, dp_rank=0, attn_dp_rank=0)
    monkeypatch.setattr(sglang, "sampler_softmax", lambda logits: logits.softmax(-1))
    return resolved_view(arguments)


MANAGER = SimpleNamespace(
    tokenizer=SimpleNamespace(backend_tokenizer=make_tokenizer()), model_config=SimpleNamespace(vocab_size=V)
)


def make_params(fields: dict[str, Any], **given: Any) -> SamplingParams:
    """Return SGLang's parameters, as its front end makes them of a request. given: the request's other fields."""
    params = SamplingParams(**fields)
    params.normalize(None)
    params.verify(V)
    if params.custom_params is not None:
        add_own_params(params, SimpleNamespace(**given), MANAGER)
    return params


def make_request(place: int, fields: dict[str, Any], output: list[int] = [], **more: Any) -> Req:  # noqa: B006
    """Return SGLang's request with this number in the pool."""
    made = Req(f"r{place}", "", array("q", PROMPT), make_params(fields), eos_token_ids={EOS}, vocab_size=V, **more)
    made.kv.req_pool_idx = place + 1
    made.output_ids.extend(output)
    return made


def make_batch(requests: list[Req]) -> SamplingBatchInfo:
    """Return SGLang's batch of these requests."""
    pool = SimpleNamespace(device="cpu")
    batch = ScheduleBatch.init_new(
        requests, pool, None, None, SimpleNamespace(vocab_size=V), False, SpeculativeAlgorithm.NONE
    )
    return SamplingBatchInfo.from_schedule_batch(batch, V)


class Runner:
    """SGLang's model runner, as far as its `sample` reads it, with its sampler."""

    def __init__(self) -> None:
        self.sampler = sglang.create_sampler()
        self.sampling_observer = self.watermark_state = None
        self.ngram_embedding_manager = SimpleNamespace(update_after_decode=lambda **more: None)
        self._preprocess_logits = partial(ModelRunner._preprocess_logits, self)

    def draw(
        self,
        logits: torch.Tensor,
        info: SamplingBatchInfo,
        lengths: list[int],
        last: list[int] | None = None,
        logprob: bool = False,
    ) -> tuple[torch.Tensor, LogitsProcessorOutput]:
        """Sample as SGLang does in a decode step. lengths: tokens of each request. last: the last token of each."""
        count, output = len(logits), LogitsProcessorOutput(next_token_logits=logits.clone())
        seq_lens = torch.tensor(lengths)
        batch = SimpleNamespace(
            sampling_info=info.copy_for_forward(),
            forward_mode=ForwardMode.DECODE,
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens,
            positions=seq_lens - 1,
            input_ids=torch.tensor([0] * count if last is None else last),
            return_logprob=logprob,
            top_logprobs_nums=[2] * count,
            token_ids_logprobs=[None] * count,
        )
        return ModelRunner.sample(self, output, batch), output


def draw(logits: torch.Tensor, requests: list[Req], runner: Runner | None = None, **more: Any) -> torch.Tensor:
    """Draw a token for each request. Their tokens are all known."""
    lengths = [len(one.origin_input_ids) + len(one.output_ids) for one in requests]
    return (runner or Runner()).draw(logits, make_batch(requests), lengths, **more)[0]


def make_logits(rows: int, seed: int = 0) -> torch.Tensor:
    """Return random logits."""
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 2


# ---- distributions


def find_truth(logits: torch.Tensor, fields: dict[str, Any]) -> torch.Tensor:
    """Return what SGLang's documentation says: top-p's prefix of the whole distribution, beside top-k, then min-p."""
    if fields["temperature"] == 0.0:
        return torch.nn.functional.one_hot(logits.argmax(), V).double()
    probs = (logits.double() / fields["temperature"]).softmax(0)
    ordered, order = probs.sort(descending=True)
    kept = ordered.cumsum(0) - ordered < fields.get("top_p", 1.0)
    kept &= torch.arange(V) < fields.get("top_k", V)
    kept &= ordered >= ordered[0] * fields.get("min_p", 0.0)
    found = torch.zeros(V, dtype=torch.float64).scatter(0, order, ordered * kept)
    return found / found.sum()


def find_g(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the statistic of a G-test."""
    seen = (counts > 0) & (expected > 0)
    return float(2 * (counts[seen] * (counts[seen] / counts.sum() / expected[seen]).log()).sum())


def find_limit(cells: int) -> float:
    """Return a number above chi-square's quantile of 1 − 1e-9."""
    return cells + 2 * math.sqrt(20.7 * cells) + 2 * 20.7
