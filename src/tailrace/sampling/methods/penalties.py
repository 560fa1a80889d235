"""Repetition penalty, then frequency and presence penalty, on the distinct tokens of the sequence within scope and
window.

- Repetition r (CTRL, arXiv 1909.05858): l > 0 ? l / r : l · r, once per distinct token. Its scope is prompt and output
  unless `repetition_scope` differs (transformers, vLLM). Neutral 1.
- Frequency f and presence p (OpenAI): l −= f · count + p. Their scope is the output unless `penalty_scope` differs.
  Neutral 0.
- `penalty_last_n` (llama.cpp): only the last n tokens count; −1 is all of them, 0 none.

Each drawn token updates the counts. So a row costs its number of distinct tokens, whatever the length of its history.
"""

from __future__ import annotations

from tailrace.kernels.program import Penalty
from tailrace.params import SamplingParams
from tailrace.sampling.slot import LogitsEdit, Slot, always


def edits(slot: Slot) -> list[Penalty]:
    params, history = slot.params, slot.history
    assert history is not None
    assert history.counts is not None
    return [Penalty(history.counts, params.repetition_penalty, params.frequency_penalty, params.presence_penalty)]


def wanted(params: SamplingParams) -> bool:
    return params.penalised


METHOD = LogitsEdit(edits, wanted=wanted, recalls=always)
