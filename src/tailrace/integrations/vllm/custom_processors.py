"""What others change in the logits before tailrace samples: custom logits processors, and vLLM's thinking budgets.

tailrace samples from the changed logits, so all fields of all requests act beside them. In vLLM's order, its own bias
comes before a custom processor, and its penalties after one. Here both come after.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, AdapterLogitsProcessor, LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from tailrace.integrations.v1_engine import GREEDY_BELOW
from tailrace.integrations.vllm.requests import BatchFollower

BUILT_IN = (*BUILTIN_LOGITS_PROCESSORS, BatchFollower)


class Changed(NamedTuple):
    """The logits that tailrace and vLLM sample from. metadata: for vLLM's own sampler, without those who have changed
    the logits already. raw: the model's own logits if the others differ, else None."""

    logits: torch.Tensor
    metadata: SamplingMetadata
    raw: torch.Tensor | None


def change_logits(
    logits: torch.Tensor, metadata: SamplingMetadata, drafts: SpecDecodeMetadata | None = None
) -> Changed:
    """Let the custom processors and the thinking budgets change a copy of the logits, each once. vLLM loads no custom
    processor beside drafts.

    Args:
        logits: [L, V], not modified. drafts: where several rows belong to one request.
    """
    processors = metadata.logitsprocs
    before = list_active(processors.non_argmax_invariant)
    after = [] if metadata.all_greedy else list_active(processors.argmax_invariant)
    holder = getattr(metadata, "thinking_budget_state_holder", None)
    if holder is not None and not holder.has_tracked_requests():
        holder = None
    if not (before or after or holder):
        return Changed(logits, metadata, None)
    edited = logits.to(torch.float32, copy=True)
    for one in before:
        edited = one.apply(edited)
    if holder is not None:
        holder.update_state(metadata.output_token_ids, metadata.spec_token_ids, repeat_indices=None)
        edited = force_ends(holder, edited, metadata, drafts)
    if after:
        edited = change_scaled(edited, after, metadata)
    kept = LogitsProcessors()
    kept.argmax_invariant = [one for one in processors.argmax_invariant if isinstance(one, BUILT_IN)]
    kept.non_argmax_invariant = [one for one in processors.non_argmax_invariant if isinstance(one, BUILT_IN)]
    left: dict[str, Any] = {"thinking_budget_state_holder": None} if holder is not None else {}
    return Changed(edited, replace(metadata, logitsprocs=kept, **left), logits)


def list_active(processors: list[Any]) -> list[Any]:
    """Return the custom processors, without those that follow no request now."""
    custom = [one for one in processors if not isinstance(one, BUILT_IN)]
    return [one for one in custom if not isinstance(one, AdapterLogitsProcessor) or one.req_info]


def force_ends(
    holder: Any, logits: torch.Tensor, metadata: SamplingMetadata, drafts: SpecDecodeMetadata | None
) -> torch.Tensor:
    """Force the ends of thoughts that have used up their budget, as vLLM's two samplers do."""
    spec = metadata.spec_token_ids
    if drafts is None:
        return holder.apply_to_logits(logits, predict_bonus_token=False, spec_token_ids=spec)
    places = ((drafts.bonus_logits_indices, True), (drafts.target_logits_indices, False))
    for indices, bonus in places:
        logits[indices] = holder.apply_to_logits(logits[indices], predict_bonus_token=bonus, spec_token_ids=spec)
    return logits


def change_scaled(logits: torch.Tensor, processors: list[Any], metadata: SamplingMetadata) -> torch.Tensor:
    """Let processors that keep the argmax change the logits of sampled rows. They expect logits that the temperature
    has divided."""
    assert metadata.temperature is not None
    greedy = (metadata.temperature < GREEDY_BELOW).unsqueeze(1)
    factor = torch.where(greedy, 1.0, metadata.temperature.unsqueeze(1))
    scaled = logits / factor
    changed = scaled.clone()
    for one in processors:
        changed = one.apply(changed)
    return torch.where(greedy | (changed == scaled), logits, changed * factor)
