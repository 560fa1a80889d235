"""A step's work as tensors: the runner's Batch, and the owners of its rows of logits."""

from __future__ import annotations

from collections import abc, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tailrace.drafting.base import TargetStates
from tailrace.engine.draft_tokens import NO_DRAFTS, Drafts
from tailrace.engine.kv_cache import BlockCache, BlockTables
from tailrace.engine.plan import Work
from tailrace.engine.sequence import Phase, Sequence
from tailrace.runners.base import Batch, LayeredRunner
from tailrace.runners.flat_batch import FlatTokens


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Rows of logits, from `row` on, that no token is sampled from. places: the sequence's tokens that the rows
    predict."""

    sequence: Sequence
    row: int
    places: abc.Sequence[int]


class HiddenRows(NamedTuple):
    """The place of a sequence's hidden states.

    - computed_by: the sequence itself, or the one whose prefill it waits for.
    - first: the position of the first state.
    - row: its row among the batch's tokens.
    """

    sequence: Sequence
    computed_by: Sequence
    first: int
    row: int


@dataclass(frozen=True, slots=True)
class Assembled:
    """An assembled step.

    - batch: for the runner.
    - rows: slot → the first of its rows of logits.
    - sampling: the sequences that sample from these rows.
    - scored: rows that no token is sampled from.
    - hidden_rows: of all sequences in the batch; empty if nobody reads them.
    """

    batch: Batch
    rows: dict[int, int]
    sampling: list[Sequence]
    scored: list[ScoredRows]
    hidden_rows: list[HiddenRows]


def assemble_batch(
    work: Work, drafts: Drafts, tables: BlockTables, cache: BlockCache, previous: torch.Tensor | None = None
) -> Assembled:
    """Put the planned tokens into one flat batch. Drafts follow the last token of their sequence, and the last token of
    its unconditional sequence.

    A sequence whose last token is in the batch samples. So do the first of the forks that waited for its prefill: they
    share its logits.

    Args:
        previous: the samples for the references among the tokens; see runners.base.Batch.
    """
    flat = FlatTokens()
    tokens, wanted, slots = flat.token_ids, flat.wanted, []
    rows: dict[int, int] = {}
    sampling: list[Sequence] = []
    scored: list[ScoredRows] = []
    hidden_rows: list[HiddenRows] = []
    adapted: defaultdict[int, list[int]] = defaultdict(list)
    draft = NO_DRAFTS
    for sequence, count in work:
        first, end, begin = sequence.num_computed, sequence.num_computed + count, len(tokens)
        sharing = [sequence, *sequence.forks] if sequence.is_conditional else []
        hidden_rows += [HiddenRows(member, sequence, first, begin) for member in sharing]
        if sequence.is_conditional:  # its unconditional sequence, if any, comes next and has the same drafts
            draft = drafts.get(sequence.slot, NO_DRAFTS)
        if sequence.wanted is not None and (places := sequence.wanted.select_places(end)):
            scored.append(ScoredRows(sequence, len(wanted), places))
            wanted += [begin + place - 1 - first for place in places]
        computed = sequence.tokens[first:end]
        if end == len(sequence.tokens) and sequence.request.replay is None:
            rows[sequence.slot] = len(wanted)
            wanted += range(begin + count - 1, begin + count + len(draft.tokens))
            computed += draft.tokens
            sampling += [member for member in sharing if member is sequence or member.samples_with_prefill]
        flat.add(computed, first + len(computed))
        cache.note_pass(sequence, first + len(computed))
        slots.append(sequence.slot)
        if sequence.request.adapter:
            adapted[sequence.request.adapter] += range(begin, len(tokens))
    table = tables.table[slots, : -(-max(flat.kv_len) // cache.block_size)]
    adapters = tuple((number, torch.tensor(places)) for number, places in sorted(adapted.items()))
    return Assembled(
        flat.make_batch(table, cache.block_size, previous, adapters, slots), rows, sampling, scored, hidden_rows
    )


def assemble_decodes(
    work: Work, tables: BlockTables, cache: BlockCache, previous: torch.Tensor | None, observed: bool
) -> Assembled:
    """Do the same as `assemble_batch` for the work of a plan that only decodes (Plan.decodes), without drafts.

    Args:
        previous: as for `assemble_batch`.
        observed: hidden states of these tokens will be read.
    """
    sequences = [sequence for sequence, _ in work]
    count, lengths = len(work), [len(sequence.tokens) for sequence in sequences]
    slots, places = [sequence.slot for sequence in sequences], list(range(count))
    ids = [sequence.tokens[-1] for sequence in sequences]
    if cache.state_rows:
        for sequence, length in zip(sequences, lengths, strict=True):
            cache.note_pass(sequence, length)
    adapted: defaultdict[int, list[int]] = defaultdict(list)
    for place, sequence in enumerate(sequences):
        if sequence.request.adapter:
            adapted[sequence.request.adapter].append(place)
    adapters = tuple((number, torch.tensor(own)) for number, own in sorted(adapted.items()))
    table = tables.table[slots, : -(-max(lengths) // cache.block_size)]
    batch = FlatTokens(ids, [*places, count], lengths, places).make_batch(
        table, cache.block_size, previous, adapters, slots
    )
    hidden = [HiddenRows(s, s, lengths[place] - 1, place) for place, s in enumerate(sequences)] if observed else []
    return Assembled(batch, dict(zip(slots, places, strict=True)), sequences, [], hidden)


def find_hidden_states(rows: list[HiddenRows], runner: LayeredRunner) -> TargetStates | None:
    """Return the hidden states of tokens that count as computed; None if this step computed no such token."""
    there: list[tuple[Sequence, int, int, int]] = []
    for sequence, computed_by, first, row in rows:
        end = (computed_by if sequence.phase is Phase.FORK else sequence).num_computed
        if sequence.slot >= 0 and end > first:
            there.append((sequence, first, end - first, row))
    if not there:
        return None
    sequences, first, count, row = zip(*there, strict=True)
    return TargetStates([s.slot for s in sequences], [s.tokens for s in sequences], first, count, row, runner.hidden)
