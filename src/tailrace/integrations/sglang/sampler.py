"""SGLang's sampler with its draws by tailrace's kernels: tensors per row, no state, no request ids.

SGLang has applied penalties, biases, custom processors and grammar masks to the logits by then. What is left is
temperature, top-k, top-p and min-p, which one call does. Logprobs are SGLang's own.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.layers import sampler as theirs
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

import tailrace
from tailrace.sampling import KeySource, sample

log = logging.getLogger("sglang.srt.tailrace")
# SGLang's top-p takes its mass from the whole distribution, beside top-k; its min-p comes last
ORDER = ("temperature", "top_p", "top_k", "min_p")


class SglangSampler(theirs.Sampler):
    """Made by SGLang for `--sampling-backend tailrace`, in each of its processes that sample.

    Requests with a seed (`--enable-deterministic-inference`) have noise that is a function of seed and position; others
    have keys of their own at each token, the same on all ranks of tensor parallelism.
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys = KeySource.shared(*identity())
        log.info("tailrace %s samples for SGLang in this process", tailrace.__version__)

    def forward(
        self,
        logits_output: LogitsProcessorOutput,
        sampling_info: SamplingBatchInfo,
        return_logprob: bool,
        top_logprobs_nums: list[int],
        token_ids_logprobs: list[list[int]],
        positions: torch.Tensor,
        **more: Any,
    ) -> torch.Tensor:
        """As SGLang calls it (More than six parameters: SGLang's). int64 [R], a token of each row."""
        masks = sampling_info.sampling_mask_batch_indices is not None
        if masks or self.rl_on_policy_target is not None or any(value is not None for value in more.values()):
            asked = (return_logprob, top_logprobs_nums, token_ids_logprobs, positions)  # draws by _sample_from_probs
            return super().forward(logits_output, sampling_info, *asked, **more)
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        ids = self._draw(logits, sampling_info, positions)
        if return_logprob:
            shown = logits
            if not (sampling_info.is_all_greedy or theirs.SGLANG_RETURN_ORIGINAL_LOGPROB):
                shown = logits / sampling_info.temperatures
            found = self.output_logprob_processor.compute_logprobs(
                shown.log_softmax(-1), top_logprobs_nums, token_ids_logprobs, ids
            )
            found.write_output_to(logits_output)
        self._sync_token_ids_across_tp(ids, sampling_info)
        return ids

    def _draw(
        self, logits: torch.Tensor, info: SamplingBatchInfo, positions: torch.Tensor, scaled: bool = False
    ) -> torch.Tensor:
        """int64 [R]. scaled: the logits are divided by the temperatures already."""
        fields: dict[str, Any] = {"temperature": 0.0}
        if not info.is_all_greedy:
            fields = {"temperature": 1.0 if scaled else info.temperatures.view(-1)}
            if info.need_top_p_sampling:
                fields["top_p"] = info.top_ps
            if info.need_top_k_sampling or info.is_any_greedy:  # SGLang's greedy rows have top-k 1
                fields["top_k"] = torch.where(info.top_ks >= logits.shape[1], 0, info.top_ks)
            if info.need_min_p_sampling:
                fields["min_p"] = info.min_ps
            seeds = info.sampling_seed
            fields["seed"] = self._fresh(len(logits)) if seeds is None else seeds
            fields["position"] = positions + 1  # they are of the tokens that were computed; the drawn ones follow
        # SGLang must have a token of a row that nothing can be drawn from; to ask whether there is one would wait
        return sample(logits, sampler_order=ORDER, **fields).clamp(min=0)

    def _fresh(self, count: int) -> list[int]:
        return [self._keys.key_of(None) for _ in range(count)]

    def _sample_from_probs(
        self, probs: torch.Tensor, sampling_info: SamplingBatchInfo, positions: torch.Tensor, simple_sampling_case: bool
    ) -> tuple[torch.Tensor, Any]:
        """What SGLang's own forward asks of a backend: tokens, and what they were drawn from where masks are asked
        for."""
        ids = self._draw(probs.log(), sampling_info, positions, scaled=True)
        rows = sampling_info.sampling_mask_batch_indices
        if rows is None:
            return ids, None
        info = sampling_info
        kept = survivors(probs[rows], info.top_ks[rows], info.top_ps[rows], info.min_ps[rows])
        chosen = ids[rows, None]
        kept = kept.scatter(1, chosen, True)  # by a rounding of float32 it might stand outside
        weights = probs[rows] * kept
        selected = weights.gather(1, chosen).squeeze(1)
        return ids, theirs._SamplingMaskCapture(weights, None, selected, rows)


def survivors(probs: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, min_ps: torch.Tensor) -> torch.Tensor:
    """bool [R, V]: what may be drawn. Top-p's prefix is of the whole distribution, ties to the smaller id."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.double().cumsum(-1) - ordered.double()
    rank = torch.arange(probs.shape[1], device=probs.device)
    kept = (before < top_ps[:, None]) & (rank < top_ks[:, None]) & (ordered >= ordered[:, :1] * min_ps[:, None])
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter(1, order, kept)


def identity() -> list[object]:
    """What keys of requests without a seed come from: the same on all ranks that sample the same rows, another on
    others."""
    parallel, arguments = theirs.get_parallel(), theirs.get_server_args()
    ranks = [getattr(parallel, name, 0) for name in ("dp_rank", "attn_dp_rank")]
    return [getattr(arguments, "random_seed", None), *ranks]
