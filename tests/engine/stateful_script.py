"""A scripted runner that remembers a sequence by its state alone: with a wrong state, or one of a wrong position, its
logits are wrong."""

from __future__ import annotations

import torch

from tailrace.runners.base import Batch, StatefulRunner
from tailrace.runners.scripted import CPU, Script

Tokens = tuple[int, ...]


class StatefulScript(StatefulRunner):
    """The state after p tokens is these tokens. Entries that nobody has written are None, and reading one fails.

    Args:
        script: as of ScriptedRunner.
    """

    @property
    def block_bytes(self) -> int:
        return 8

    @property
    def state_bytes(self) -> int:
        return 8

    def __init__(self, vocab_size: int, script: Script, max_model_len: int = 512, block_size: int = 16) -> None:
        super().__init__(vocab_size, max_model_len, CPU, torch.float32)
        self.script = script
        self.entries: list[Tokens | None] = []
        self.rows = 0

    def allocate_states(self, slots: int, rows: int, snapshots: int) -> None:
        self.entries = [None for _ in range(slots * rows + snapshots)]
        self.rows = rows

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.entries[target] = self.entries[source]

    def allocate(self, num_blocks: int) -> None:
        pass

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        pass

    def forward(self, batch: Batch) -> torch.Tensor:
        ids, starts = batch.input_ids(CPU).tolist(), batch.query_start.tolist()
        slots = range(len(starts) - 1) if batch.slots is None else batch.slots.tolist()
        states: dict[int, Tokens] = {}  # after each token of the batch
        for owner, slot in enumerate(slots):
            begin, end = starts[owner], starts[owner + 1]
            first = int(batch.kv_len[owner]) - (end - begin)
            state = self.entries[slot * self.rows + first % self.rows] if first else ()
            assert state is not None
            assert len(state) == first, f"the state of position {first} is not there"
            for place in range(begin, end):
                state = states[place] = (*state, ids[place])
                self.entries[slot * self.rows + len(state) % self.rows] = state
        logits = torch.zeros(len(batch.wanted), self.vocab_size)
        for row, place in enumerate(batch.wanted.tolist()):
            answer = self.script([*states[place]])
            if isinstance(answer, int):
                logits[row, answer] = 10.0
            else:
                logits[row] = torch.as_tensor(answer, dtype=torch.float32)
        return logits
