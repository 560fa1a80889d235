"""A step's work as tensors: the runner's Batch, and who draws from its logits (draws.py)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tailrace.engine.draws import NOTHING, Draws, Guesses, Masks, grouped
from tailrace.engine.isolation import drawn_by
from tailrace.engine.scheduler import Work
from tailrace.engine.sequence import Sequence
from tailrace.runners.base import Batch

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine


class BlockTables:
    """Block tables of all slots, [slots, blocks] int32, written when a sequence's blocks change, never rebuilt."""

    def __init__(self, num_slots: int, width: int) -> None:
        self.table = np.zeros((num_slots, width), dtype=np.int32)
        self.written = [0] * num_slots

    def clear(self, slot: int) -> None:
        """The slot has a new owner."""
        self.written[slot] = 0

    def cut(self, sequence: Sequence) -> None:
        """The sequence has let go of its last blocks."""
        self.written[sequence.slot] = min(self.written[sequence.slot], len(sequence.blocks))

    def write(self, sequence: Sequence, start: int | None = None) -> None:
        """Enter the sequence's blocks from place `start` on (None: those not entered yet)."""
        slot = sequence.slot
        first = self.written[slot] if start is None else min(start, self.written[slot])
        if first < len(sequence.blocks):
            self.table[slot, first : len(sequence.blocks)] = sequence.blocks[first:]
        self.written[slot] = len(sequence.blocks)


@dataclass(frozen=True, slots=True)
class Scored:
    """Logits rows row … row + count − 1 are what the prompt's tokens start … start + count − 1 were to follow."""

    sequence: Sequence
    row: int
    start: int
    count: int


# a sequence; the one that is computed: itself, or the one whose prefill it waits for; the first position; its row of the batch's tokens
Sight = tuple[Sequence, Sequence, int, int]


@dataclass(frozen=True, slots=True)
class Assembled:
    """batch for the runner; rows: slot → the first of its rows of logits; drawing: whoever draws from them; scored: prompts' logprobs are
    asked for; seen: what hidden states there will be."""

    batch: Batch
    rows: dict[int, int]
    drawing: list[Sequence]
    scored: list[Scored]
    seen: list[Sight]

    def draws(self, engine: Engine, drawing: list[Sequence], guesses: Guesses, masks: Masks) -> list[Draws]:
        """Draws for the sampler. drawing: those of the assembled that are still there. masks: of the grammars, empty: what is to be filled
        before the draws is entered. engine: where a request fails whose draw can't be put together."""
        groups = grouped(drawing)
        return [part for group in groups for part in drawn_by(engine, group, guesses, self.rows, masks)]


def assemble(
    work: Work, guesses: Guesses, tables: BlockTables, block_size: int, previous: torch.Tensor | None = None
) -> Assembled:
    """Lay the planned tokens out as one flat bag, guesses after the last token of their sequence and of its companion. A sequence whose
    last token is among them draws, and so do the first of the workers that waited for its prefill: their rows share its logits.

    Args:
        guesses: by the slot of the sequence. previous: what tokens that are not known yet refer to; see Batch.
    """
    tokens: list[int] = []
    starts, lengths, slots = [0], [], []
    wanted: list[int] = []
    rows: dict[int, int] = {}
    drawing: list[Sequence] = []
    scored: list[Scored] = []
    seen: list[Sight] = []
    adapted: defaultdict[int, list[int]] = defaultdict(list)
    guess = NOTHING
    for sequence, count in work:
        first, last = sequence.computed, sequence.computed + count
        sharing = [sequence, *sequence.workers] if sequence.leads else []
        seen += [(member, sequence, first, len(tokens)) for member in sharing]
        tokens += sequence.tokens[first:last]
        if sequence.leads:  # its companion, if it has one, comes next
            guess = guesses.get(sequence.slot, NOTHING)
        if sequence.scoring:
            start, end = max(first + 1, sequence.scored), min(last + 1, sequence.num_prompt)
            scored.append(Scored(sequence, len(wanted), start, max(0, end - start)))
            wanted += range(len(tokens) - count + start - 1 - first, len(tokens) - count + end - 1 - first)
        if last == len(sequence.tokens):
            rows[sequence.slot] = len(wanted)
            wanted += range(len(tokens) - 1, len(tokens) + len(guess.tokens))
            tokens += guess.tokens
            last += len(guess.tokens)
            drawing += [member for member in sharing if member is sequence or member.draws_early]
        if sequence.request.adapter:
            adapted[sequence.request.adapter] += range(starts[-1], len(tokens))
        starts.append(len(tokens))
        lengths.append(last)
        slots.append(sequence.slot)
    counts = np.diff(starts)
    ends = np.array(lengths)
    positions = np.arange(len(tokens)) - np.repeat(np.array(starts[1:]) - ends, counts)
    width = -(-max(lengths) // block_size)
    table = tables.table[slots, :width]
    owner = np.repeat(np.arange(len(work)), counts)
    slot_mapping = table[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    batch = Batch(
        token_ids=torch.tensor(tokens, dtype=torch.int64),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(slot_mapping),
        query_start=torch.tensor(starts, dtype=torch.int32),
        kv_len=torch.tensor(lengths, dtype=torch.int32),
        block_tables=torch.from_numpy(table),
        wanted=torch.tensor(wanted, dtype=torch.int64),
        previous=previous,
        adapted=tuple((number, torch.tensor(places)) for number, places in sorted(adapted.items())),
    )
    return Assembled(batch, rows, drawing, scored, seen)
