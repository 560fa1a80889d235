"""Decode steps on a CPU without the model's Python code. For a few sequences that code takes longer than reading the
weights. So a step's calls of kernels and of torch are recorded once per number of sequences, with the addresses that
the calls read and write. Later steps copy their inputs to these addresses and make the same calls.

The results of a step are in memory that only recorded steps use (StepMemory). All of them share it, because no two
steps run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from tailrace.kernels.cpu.launch import Call, noting
from tailrace.kernels.walk import Walk
from tailrace.runners.base import Batch
from tailrace.runners.states import RecurrentState
from tailrace.runners.step_recorder import HostReads, StepMemory, StepRecorder

CPU = torch.device("cpu")
MOST = 64  # sequences; with more, the weights take nearly all of the time


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """The calls of a step.

    - inputs, walk: the batch that the calls read, and how they go along its sequences.
    - logits: what they leave.
    - constants: results that the calls read, and that are the same in every step.
    """

    inputs: Batch
    walk: Walk | None
    calls: list[Call]
    logits: torch.Tensor
    constants: list[torch.Tensor]


class RecordedSteps:
    """A step per number of sequences, recorded when it is first asked for.

    Args:
        run: a forward pass over a batch → logits; it must not read tensor values on the host.
        states: the memory of the model's layers with states.
        parameters: tensors that no step changes.
        width: the most entries of a block table.
    """

    def __init__(
        self,
        run: Callable[[Batch], torch.Tensor],
        states: RecurrentState,
        parameters: Iterable[torch.Tensor],
        width: int,
    ) -> None:
        self.run, self.states, self.parameters, self.width = run, states, list(parameters), width
        self.steps: dict[int, RecordedStep] = {}
        self.memory = StepMemory()

    def serves(self, batch: Batch) -> bool:
        """Return True if every sequence has one token, the logits of all are wanted, and they are few."""
        sequences, width = batch.block_tables.shape
        return (
            sequences == len(batch.token_ids) == len(batch.wanted)
            and 0 < sequences <= MOST
            and width <= self.width
            and torch.equal(batch.wanted, torch.arange(sequences))
        )

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the logits [L, V] of a batch that it serves. The next call overwrites them.

        Raises:
            NotRepeatableError: the step can't be recorded for this number of sequences.
        """
        sequences = len(batch.token_ids)
        step = self.steps.get(sequences)
        if step is None:
            step = self.steps[sequences] = self._record_step(batch)
            return step.logits
        self._fill_inputs(step.inputs, batch)
        self.states.plan_walk(batch, CPU, step.walk)
        for call in step.calls:
            call()
        return step.logits

    # ---- inside

    def _fill_inputs(self, inputs: Batch, batch: Batch) -> None:
        inputs.token_ids.copy_(batch.input_ids(inputs.token_ids.device))
        inputs.positions.copy_(batch.positions)
        inputs.slot_mapping.copy_(batch.slot_mapping)
        inputs.kv_len.copy_(batch.kv_len)
        inputs.block_tables[:, : batch.block_tables.shape[1]].copy_(batch.block_tables)

    def _record_step(self, batch: Batch) -> RecordedStep:
        sequences = len(batch.token_ids)
        one, narrow = torch.empty(sequences, dtype=torch.int64), torch.empty(sequences, dtype=torch.int32)
        inputs = replace(
            batch,
            token_ids=one,
            positions=one.clone(),
            slot_mapping=one.clone(),
            query_start=torch.arange(sequences + 1, dtype=torch.int32),
            kv_len=narrow,
            block_tables=torch.zeros((sequences, self.width), dtype=torch.int32),
            wanted=torch.arange(sequences),
            previous=None,
        )
        self._fill_inputs(inputs, batch)
        walk = self.states.plan_walk(batch, CPU)
        calls: list[Call] = []
        recorder = StepRecorder(self.memory, calls, self.parameters)
        with self.states.walking(walk), noting(calls), HostReads(), recorder:
            logits = self.run(inputs)
        return RecordedStep(inputs, walk, recorder.repeated, self.memory.view_unowned(logits), recorder.kept)
