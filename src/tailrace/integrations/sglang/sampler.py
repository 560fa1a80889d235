"""SGLang's sampler with draws by tailrace's kernels.

SGLang has already applied penalties, biases, custom processors and grammar masks to the logits. Temperature, top-k,
top-p, min-p and tailrace's own fields remain. Logprobs are SGLang's own.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers import sampler as theirs
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

import tailrace
from tailrace.integrations.sglang.drawing import Drawer, DrawStep

log = logging.getLogger("sglang.srt.tailrace")


class SglangSampler(theirs.Sampler):
    """A sampler made by SGLang for `--sampling-backend tailrace`, in each of its processes that sample.

    A seeded request's noise is a function of seed and position. Other requests get new keys, the same on all ranks of
    tensor parallelism.

    - step: what the model runner knows of the step in progress (hooks.py).
    - errors: tailrace's errors, by type.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drawer = Drawer("sampler")
        self.step: DrawStep | None = None
        self.errors: Counter[str] = Counter()
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
        """Draw tokens, int64 [R]. After an error in tailrace, SGLang's own pytorch backend draws."""
        step = self.step or DrawStep(positions + 1)  # positions are of the computed tokens; the drawn ones follow
        draw = lambda: self.drawer.draw(logits, info, step._replace(scaled=scaled))  # noqa: E731
        return draw_or_fall_back(draw, self, lambda: draw_theirs(logits, info, positions, scaled))

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

    def _sample_from_logprobs(
        self, logprobs: torch.Tensor, sampling_info: SamplingBatchInfo, positions: torch.Tensor
    ) -> torch.Tensor:
        """Draw tokens for SGLang's own forward with `--rl-on-policy-target`."""
        return self._draw_or_fall_back(logprobs, sampling_info, positions, scaled=True)


def draw_or_fall_back(
    draw: Callable[[], torch.Tensor], owner: Any, fallback: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Return what `draw` returns. After an error, which would end SGLang's scheduler, return what `fallback` returns.

    owner: the object with the drawer and the count of its errors. The first error of each kind is logged.
    """
    try:
        return draw()
    except Exception as error:  # whatever it is
        kind = type(error).__name__
        owner.errors[kind] += 1
        if owner.errors[kind] == 1:
            log.exception("SGLang's own sampler draws this step, after an error in tailrace; please report it")
    owner.drawer.begin_again()
    return fallback()


def draw_theirs(
    logits: torch.Tensor, info: SamplingBatchInfo, positions: torch.Tensor, scaled: bool = False
) -> torch.Tensor:
    """Draw tokens as SGLang's pytorch backend does, int64 [R]."""
    if info.is_all_greedy:
        return logits.argmax(-1)
    probs = (logits if scaled else logits / info.temperatures).float().softmax(-1)
    cut = (info.top_ks, info.top_ps, info.min_ps, info.need_min_p_sampling)
    seeds = None if info.need_min_p_sampling else info.sampling_seed  # SGLang refuses both
    return theirs.top_k_top_p_min_p_sampling_from_probs_torch(probs, *cut, seeds, positions).long()


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
