"""Logits from a function or a table instead of a model: for tests, demos and benchmarks of the egress.

The runner keeps token ids in a paged cache, exactly as a model keeps keys and values, and reads each sequence back
through its block table. A wrong table, a missing copy-on-write or a block that is reused too early gives wrong logits,
as with a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from tailrace.errors import ConfigError
from tailrace.runners.base import Batch, ModelRunner

CPU = torch.device("cpu")
CONTEXT = 4096  # tokens, unless the maker says otherwise

Script = Callable[[list[int]], "Sequence[float] | torch.Tensor | int"]


class ScriptedRunner(ModelRunner):
    """A runner that reads each sequence from its cache and asks the script for the logits.

    Args:
        script: the sequence up to and including the wanted position → its next-token logits [V], or one token id. The
            token gets logit 10, all others get 0.
        delay_s: how long a step takes.
        fail_at: the forward pass of this number (from 0) raises RuntimeError.
    """

    def __init__(
        self,
        vocab_size: int,
        script: Script,
        max_model_len: int = CONTEXT,
        *,
        block_size: int = 16,
        delay_s: float = 0.0,
        fail_at: int | None = None,
    ) -> None:
        super().__init__(vocab_size, max_model_len, CPU, torch.float32)
        self.block_size, self.script, self.delay_s, self.fail_at = block_size, script, delay_s, fail_at
        self.steps = 0
        self.memory = torch.full((0, block_size), -1)

    def allocate(self, num_blocks: int) -> None:
        self.memory = torch.full((num_blocks, self.block_size), -1)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.memory[target] = self.memory[source]

    def forward(self, batch: Batch) -> torch.Tensor:
        if self.delay_s:
            time.sleep(self.delay_s)
        self.steps += 1
        if self.fail_at == self.steps - 1:
            raise RuntimeError("the scripted runner fails here, as it was told to")
        self.memory.view(-1)[batch.slot_mapping] = batch.input_ids(CPU)
        owner = torch.searchsorted(batch.query_start[1:].to(torch.int64), batch.wanted, right=True)
        logits = torch.zeros(len(batch.wanted), self.vocab_size)
        for row, (sequence, token) in enumerate(zip(owner.tolist(), batch.wanted.tolist(), strict=True)):
            length = int(batch.positions[token]) + 1
            blocks = batch.block_tables[sequence, : -(-length // self.block_size)].to(torch.int64)
            answer = self.script(self.memory[blocks].flatten()[:length].tolist())
            if isinstance(answer, int):
                logits[row, answer] = 10.0
            else:
                logits[row] = torch.as_tensor(answer, dtype=torch.float32)
        return logits


class SuccessorRunner(ScriptedRunner):
    """Runner of a model that follows every token with the next id, for benchmarks of the code after the engine.

    The runner is fast: it reads only the last tokens, all at once, and writes only the logits that differ from the
    previous step.

    Args:
        spread: standard deviation of the other ids' logits, which are the same in every row. 0: all zero, with ties
            that a model would not have.
    """

    def __init__(
        self, vocab_size: int, max_model_len: int, *, block_size: int, delay_s: float, spread: float = 0.0
    ) -> None:
        super().__init__(
            vocab_size, lambda ids: (ids[-1] + 1) % vocab_size, max_model_len, block_size=block_size, delay_s=delay_s
        )
        self._base = spread * torch.randn(vocab_size, generator=torch.Generator().manual_seed(0))
        self._logits = torch.zeros(0, vocab_size)
        self._marked = torch.zeros(0, dtype=torch.int64)

    def forward(self, batch: Batch) -> torch.Tensor:
        if self.delay_s:
            time.sleep(self.delay_s)
        count = len(batch.wanted)
        if count > len(self._logits):
            self._logits, self._marked = self._base.repeat(count, 1), torch.zeros(count, dtype=torch.int64)
        self._logits.scatter_(1, self._marked[:, None], self._base[self._marked, None])
        self._marked[:count] = (batch.input_ids(CPU)[batch.wanted] + 1) % self.vocab_size
        self._logits.scatter_(1, self._marked[:, None], 10.0)
        return self._logits[:count]


# Named scripts, so that a whole server can run one: model="scripted:count".
SCRIPTS: dict[str, Callable[[int], Script]] = {
    "count": lambda vocab: lambda ids: (ids[-1] + 1) % vocab,
    "echo": lambda vocab: lambda ids: ids[len(ids) // 2],
    "hash": lambda vocab: lambda ids: hash(tuple(ids)) % vocab,
}

SUCCESSORS = {"next": 0.0, "spread": 2.0}  # see SuccessorRunner


def make_scripted(name: str, vocab_size: int, block_size: int) -> ScriptedRunner:
    """Return the runner of `scripted:NAME` or `scripted:NAME:delay in ms`.

    Raises:
        ConfigError: there is no such script.
    """
    script, _, delay = name.removeprefix("scripted:").partition(":")
    delay_s = float(delay or 0) / 1e3
    if script in SUCCESSORS:
        spread = SUCCESSORS[script]
        return SuccessorRunner(vocab_size, CONTEXT, block_size=block_size, delay_s=delay_s, spread=spread)
    if script not in SCRIPTS:
        raise ConfigError(f"no scripted model {script!r}; there are {', '.join((*SUCCESSORS, *SCRIPTS))}")
    return ScriptedRunner(vocab_size, SCRIPTS[script](vocab_size), block_size=block_size, delay_s=delay_s)
