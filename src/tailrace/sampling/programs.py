"""A request's parameters → the program that every backend follows (kernels/program.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.kernels.cpu.program import Programs
from tailrace.kernels.program import Program, ascending
from tailrace.params import SamplingParams
from tailrace.sampling.history import History
from tailrace.sampling.pipeline import beyond_kernels, stages_of


def program_of(
    params: SamplingParams,
    key: int = 0,
    eos_token_ids: Sequence[int] = (),
    history: History | None = None,
    *,
    stateful: bool = False,
) -> Program:
    """Return the part of a request that never changes, for the kernels.

    Args:
        key: 64 bits, of the request's noise.
        eos_token_ids: ids that XTC never removes.
        history: of the request's sequence, if a method needs it.
        stateful: a method has a state.
    """
    return Program(
        key=key,
        stages=stages_of(params),
        exempt=ascending(eos_token_ids),
        logprobs=params.logprobs,
        greedy=params.greedy,
        processed=params.logprobs_mode == "processed",
        entropy=params.report_entropy,
        unsupported=beyond_kernels(params),
        stateful=stateful,
        counts=history.counts if history else None,
        weights=history.get_weights(history.num_prompt) if history else (0, 0),
        said=history.said if history else None,
        survivors=params.return_sampling_mask,
    )


@dataclass(frozen=True, slots=True, eq=False)
class RowProgram:
    """A program, and its record as the CPU's kernels read it. `program` keeps the memory behind the record's pointers
    alive."""

    program: Program
    record: bytes

    @staticmethod
    def of(program: Program) -> RowProgram:
        programs = Programs(1)
        programs.write(0, program)
        return RowProgram(program, bytes(programs.records))
