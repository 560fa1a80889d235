"""min_tokens: EOS and stop ids are −inf until the output has that many tokens. With ignore_eos, EOS does not end the
text, so only the stop ids are banned. Neutral: 0."""

from __future__ import annotations

from tailrace.kernels.program import Ban, ascending
from tailrace.sampling.slot import LogitsEdit, Slot, always


def edits(slot: Slot) -> list[Ban]:
    if slot.num_output >= slot.params.min_tokens:
        return []
    eos = () if slot.params.ignore_eos else slot.eos_token_ids
    return [slot.once("enders", lambda: Ban(ascending((*eos, *slot.params.stop_token_ids))))]


METHOD = LogitsEdit(edits, moves=always)
