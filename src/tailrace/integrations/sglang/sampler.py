"""SGLang's sampler with draws by tailrace's kernels: tensors per row, no state, no request ids.

SGLang has already applied penalties, biases, custom processors and grammar masks to the logits. Temperature, top-k,
top-p and min-p remain; one call applies them. Logprobs are SGLang's own.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import torch
from sglang.srt.layers import sampler as theirs
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

import tailrace
from tailrace.sampling import KeySource, sample

log = logging.getLogger("sglang.srt.tailrace")
# SGLang's top-p takes its mass from the whole distribution, not from what top-k keeps; its min-p comes last.
ORDER = ("temperature", "top_p", "top_k", "min_p")


class SglangSampler(theirs.Sampler):
    """A sampler made by SGLang for `--sampling-backend tailrace`, in each of its processes that sample.

    With a seed (`--enable-deterministic-inference`) a request's noise is a function of seed and position. Other
    requests get a new key for each token, the same on all ranks of tensor parallelism.
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys = KeySource.shared(*get_key_parts())
        self.errors: Counter[str] = Counter()  # tailrace's errors, by type
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
        """Draw a token for each row, int64 [R]. SGLang calls it. (More than six parameters: SGLang's.)"""
        masks = sampling_info.sampling_mask_batch_indices is not None
        if masks or self.rl_on_policy_target is not None or any(value is not None for value in more.values()):
            asked = (return_logprob, top_logprobs_nums, token_ids_logprobs, positions)  # draws by _sample_from_probs
            return super().forward(logits_output, sampling_info, *asked, **more)
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        ids = self._draw_or_fall_back(logits, sampling_info, positions)
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

    def _draw_or_fall_back(
        self, logits: torch.Tensor, info: SamplingBatchInfo, positions: torch.Tensor, scaled: bool = False
    ) -> torch.Tensor:
        """Draw tokens, int64 [R]. After an error in tailrace, SGLang's own pytorch backend draws, since its scheduler
        would end."""
        try:
            return self._draw_tokens(logits, info, positions, scaled)
        except Exception as error:  # whatever it is
            kind = type(error).__name__
            self.errors[kind] += 1
            if self.errors[kind] == 1:
                log.exception("SGLang's own sampler draws this step, after an error in tailrace; please report it")
        if info.is_all_greedy:
            return logits.argmax(-1)
        probs = (logits if scaled else logits / info.temperatures).float().softmax(-1)
        cut = (info.top_ks, info.top_ps, info.min_ps, info.need_min_p_sampling)
        seeds = None if info.need_min_p_sampling else info.sampling_seed  # SGLang refuses both
        return theirs.top_k_top_p_min_p_sampling_from_probs_torch(probs, *cut, seeds, positions).long()

    def _draw_tokens(
        self, logits: torch.Tensor, info: SamplingBatchInfo, positions: torch.Tensor, scaled: bool = False
    ) -> torch.Tensor:
        """Draw tokens, int64 [R]. scaled: the logits are already divided by the temperatures."""
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
            fields["seed"] = self._make_keys(len(logits)) if seeds is None else seeds
            fields["position"] = positions + 1  # positions are of the computed tokens; the drawn ones follow
        # SGLang needs a token even for a row from which none can be drawn. A test for such rows would wait for the
        # device.
        return sample(logits, sampler_order=ORDER, **fields).clamp(min=0)

    def _make_keys(self, count: int) -> list[int]:
        return [self._keys.key_of(None) for _ in range(count)]

    def _sample_from_probs(
        self, probs: torch.Tensor, sampling_info: SamplingBatchInfo, positions: torch.Tensor, simple_sampling_case: bool
    ) -> tuple[torch.Tensor, Any]:
        """Draw tokens for SGLang's own forward; with sampling masks also return what they were drawn from."""
        ids = self._draw_or_fall_back(probs.log(), sampling_info, positions, scaled=True)
        rows = sampling_info.sampling_mask_batch_indices
        if rows is None:
            return ids, None
        info = sampling_info
        kept = find_survivors(probs[rows], info.top_ks[rows], info.top_ps[rows], info.min_ps[rows])
        chosen = ids[rows, None]
        kept = kept.scatter(1, chosen, True)  # float32 rounding might leave the token outside
        weights = probs[rows] * kept
        selected = weights.gather(1, chosen).squeeze(1)
        return ids, theirs._SamplingMaskCapture(weights, None, selected, rows)


def find_survivors(
    probs: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, min_ps: torch.Tensor
) -> torch.Tensor:
    """Return which tokens may be drawn, bool [R, V]. Top-p's prefix is of the whole distribution, ties to the smaller
    id."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.double().cumsum(-1) - ordered.double()
    rank = torch.arange(probs.shape[1], device=probs.device)
    kept = (before < top_ps[:, None]) & (rank < top_ks[:, None]) & (ordered >= ordered[:, :1] * min_ps[:, None])
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter(1, order, kept)


def get_key_parts() -> list[object]:
    """Return the source of keys for requests without a seed: equal on all ranks that sample the same rows, and
    different on others."""
    parallel, arguments = theirs.get_parallel(), theirs.get_server_args()
    ranks = [getattr(parallel, name, 0) for name in ("dp_rank", "attn_dp_rank")]
    return [getattr(arguments, "random_seed", None), *ranks]
