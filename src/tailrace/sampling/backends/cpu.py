"""The CPU's kernels as a backend: one call of csrc/sample/sample.cpp per step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tailrace.kernels.constants import COSTLY, FALLS_BACK, REPORTED, STATEFUL, UNSUPPORTED
from tailrace.kernels.cpu.program import Programs
from tailrace.kernels.cpu.proposal_buffers import ProposalBuffer, ProposalBuffers
from tailrace.kernels.cpu.sample import CPUStep
from tailrace.kernels.output import KernelOutput
from tailrace.kernels.proposals import Proposed
from tailrace.kernels.rows import Rows
from tailrace.sampling.backends.base import Pending, Sampled, drafted_requests
from tailrace.sampling.backends.draft_programs import write_draft_programs
from tailrace.sampling.backends.reference import fall_back, refine_rows
from tailrace.sampling.guidance import raw_row
from tailrace.sampling.logprobs import entries_of, replace_top_tokens
from tailrace.sampling.slots import Slots


class CPUBackend:
    """Keeps each slot's program in the memory layout that the kernels read (kernels/cpu/program.py).

    It writes a program when a request is added. If the request's edits move, it writes them again after every token.
    """

    def __init__(self, slots: Slots) -> None:
        self.slots, self.programs = slots, Programs(len(slots.slots))
        self.buffers = ProposalBuffers(slots.vocab_size)

    def add(self, slot: int) -> None:
        entry = self.slots[slot]
        self.programs.write(slot, entry.program)
        self.programs.write_state(slot, entry.state)
        self.programs.write_edits(slot, entry.next_edits, entry.forced)

    def edit(self, slot: int) -> None:
        entry = self.slots[slot]
        self.programs.write_edits(slot, entry.next_edits, entry.forced)

    def advance(self, slot: int) -> None:
        entry = self.slots.slots[slot]
        if entry is not None and (state := entry.sequence_state.state):
            self.programs.write_state(slot, state)

    def remove(self, slot: int) -> None:
        self.programs.clear(slot)

    def warm_up(self, dtypes: set[torch.dtype]) -> None:
        pass

    def sample(self, logits: torch.Tensor, rows: Rows) -> Pending:
        rows = rows.on_host()
        step = CPUStep(logits, rows, self.programs)
        if moving := [i for i, slot in drafted_requests(self.slots, rows) if slot.moves_with_drafts]:
            step.use_row_programs(write_draft_programs(self.programs, self.slots, rows, moving), self.programs)
        output, flags = step.run(), step.flags
        # Without such requests no slot is read: a loop over the slots would cost more than sampling.
        if flags & STATEFUL:
            self._keep_updates(output, rows)
        if flags & COSTLY:
            self._keep_seconds(output, rows)
        sampled = Sampled(
            output.token_ids, output.num_tokens, output.status, output.logprobs, sampling_mask=output.sampling_mask
        )
        if flags & REPORTED:
            self._add_logprobs(logits, rows, output, sampled)
        if flags & UNSUPPORTED:
            requests = (output.status == FALLS_BACK).nonzero().squeeze(1).tolist()
            fall_back(self.slots, logits, rows, requests, sampled)
        return Pending(sampled.token_ids, lambda: sampled, sampled.logprob_arrays)

    def refine(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        return refine_rows(self.slots, logits, rows.on_host(), range(rows.num_requests))

    def serves_drafts(self, slot: int) -> bool:
        return not self.slots[slot].program.unsupported

    def proposal_memory(self, count: int) -> ProposalBuffer:
        return self.buffers.acquire(count)

    def propose(
        self,
        logits: torch.Tensor,
        rows: Rows,
        noise: Sequence[tuple[int, int]],
        to: Sequence[tuple[ProposalBuffer, int]],
    ) -> Proposed:
        return CPUStep(logits, rows, self.programs).propose(noise, to)

    def _keep_updates(self, output: KernelOutput, rows: Rows) -> None:
        """Store the values that update the slots' states once the tokens are committed."""
        assert output.updates is not None
        columns = (rows.owners, output.num_tokens, output.token_ids, output.updates)
        for owner, count, tokens, found in zip(*(column.tolist() for column in columns), strict=True):
            slot = self.slots[owner]
            if slot.state and not slot.program.unsupported:
                slot.updates[:] = [
                    (token, None if math.isnan(logprob) else logprob)
                    for token, logprob in zip(tokens[:count], found[:count], strict=True)
                ]

    def _keep_seconds(self, output: KernelOutput, rows: Rows) -> None:
        """Store the duration of the draws whose methods may be costly."""
        assert output.seconds is not None
        owners = rows.owners
        for i in output.seconds.nonzero().squeeze(1).tolist():
            self.slots[int(owners[i])].took_s = float(output.seconds[i])

    def _add_logprobs(self, logits: torch.Tensor, rows: Rows, output: KernelOutput, sampled: Sampled) -> None:
        """Add the logprobs of the requests that ask for them. A request that names tokens gets those tokens'
        logprobs."""
        owners = [self.slots[owner] for owner in rows.owners.tolist()]
        asked = [slot.params if slot.reported else None for slot in owners]
        sampled.make_logprobs = lambda: entries_of(output, asked)
        for i, slot in enumerate(owners):
            ids = slot.params.logprob_token_ids
            if ids and not slot.program.unsupported and (entries := sampled.logprobs[i]):
                first, drawn = int(rows.start[i]), sampled.token_ids[i].tolist()
                sampled.logprobs[i] = [
                    replace_top_tokens(entry, drawn[j], raw_row(logits, rows, first + j), ids)
                    for j, entry in enumerate(entries)
                ]
