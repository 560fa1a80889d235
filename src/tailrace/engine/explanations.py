"""Explanations of tokens, for the requests that ask. A step keeps the rows of logits that it drew from until its tokens
become history, and makes records from them.

A row is copied when its draw begins. Its record is made just before its token is committed. At that moment the slot
still has its state of the draw, and a token that does not count gets no record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import msgspec
import torch

from tailrace.engine.draft_tokens import DraftTokens
from tailrace.engine.draws import Draws
from tailrace.engine.sequence import Sequence
from tailrace.errors import EngineError
from tailrace.explain.record import Explanation
from tailrace.kernels.rows import Rows
from tailrace.kernels.transfer import there
from tailrace.params import SamplingParams
from tailrace.sampling import Sampler

Kept = dict[Sequence, "KeptRows"]
RECORD_S, ENTRY_S = 2e-3, 1.7e-7  # about the processor time of a record, and of each entry of its row


def record_s(params: SamplingParams, vocab_size: int) -> float:
    """Return about the processor time of each token's record; 0 if no records are made."""
    return 0.0 if params.explain is None else RECORD_S + ENTRY_S * vocab_size


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows that a sequence's tokens of one step are drawn from.

    - rows: of this request alone; their logits are those of `arrived()`, [L, V] on the CPU.
    - took_s: processor time of the copy.
    """

    arrived: Callable[[], torch.Tensor]
    rows: Rows
    took_s: float

    def explain(self, sampler: Sampler, params: SamplingParams, tokens: list[int]) -> list[Explanation]:
        """Return one record per token that the step has drawn, in order. The slot must still be that of the draw.

        Raises:
            EngineError: the records are of other tokens.
        """
        assert params.explain is not None
        [records] = sampler.explain(self.arrived(), self.rows, params.explain)
        if (walked := [record.token_id for record in records]) != tokens:
            raise make_disagreement_error(tokens, walked)
        return records


def make_disagreement_error(tokens: list[int], walked: list[int]) -> EngineError:
    """Return the error for tokens that the kernels and the reference draw differently. The records follow the
    reference. Such tokens have scores within rounding of each other."""
    return EngineError(f"explain: the kernels have drawn {tokens!r:.200}, and the reference {walked!r:.200}")


def name_drafter(record: Explanation, draft: DraftTokens, drafter: str, greedy: bool) -> Explanation:
    """Return the record with the name of the drafter, or "prediction".

    Tokens that must come next are drafted too, so that they take no steps of their own. Their records name no drafter,
    since none guessed them.
    """
    if record.draft is None:
        return record
    if not draft.forced:
        name = "prediction" if draft.predicted else drafter
        return msgspec.structs.replace(record, draft=msgspec.structs.replace(record.draft, drafter=name))
    plain = "greedy" if greedy else "drawn"
    return msgspec.structs.replace(record, draft=None, origin="forced" if record.origin == "forced" else plain)


def keep_rows(draws: list[Draws], logits: torch.Tensor, asking: Collection[Sequence]) -> Kept:
    """Copy the rows of the sequences that ask. logits: [L, V], of the whole step."""
    found: Kept = {}
    for part in draws:
        for place, sequence in enumerate(part.sequences):
            if sequence in asking:
                begun_s = time.thread_time()
                arrived, rows = copy_logits(logits, part.rows.of(place))
                found[sequence] = KeptRows(arrived, rows, time.thread_time() - begun_s)
    return found


def copy_logits(logits: torch.Tensor, rows: Rows) -> tuple[Callable[[], torch.Tensor], Rows]:
    """Start to copy the logits rows that are needed to the CPU.

    Returns a function that waits for them, [L, V], and the rows re-indexed to them. From a GPU they are copied after
    its current work, without waiting.
    """
    guidance = rows.guidance
    used = rows.source if guidance is None else torch.cat([rows.source, guidance.companion])
    needed, places = used.clamp(min=0).unique(return_inverse=True)
    source = places[: rows.num_rows].contiguous()
    if guidance is not None:
        companion = torch.where(guidance.companion < 0, -1, places[rows.num_rows :])
        guidance = replace(guidance, companion=companion.contiguous())
    rows = replace(rows, source=source, guidance=guidance)
    if not logits.is_cuda:
        here = logits[needed]
        return lambda: here, rows
    pinned = torch.empty((needed.numel(), logits.shape[1]), dtype=logits.dtype, pin_memory=True)
    pinned.copy_(logits[there(needed, logits.device)], non_blocking=True)
    done = torch.cuda.current_stream(logits.device).record_event()

    def wait_for_copy() -> torch.Tensor:
        done.synchronize()
        return pinned

    return wait_for_copy, rows
