"""Raw log-probabilities, ranks and top alternatives of given tokens, for example of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tailrace.base.logprobs import TokenLogprobs
from tailrace.errors import ParameterError
from tailrace.kernels.cpu.program import Programs
from tailrace.kernels.cpu.sample import CPUStep
from tailrace.kernels.plain import make_plain
from tailrace.kernels.program import Program, ascending
from tailrace.kernels.rows import Rows
from tailrace.kernels.status import MESSAGES, OK
from tailrace.kernels.types import readable
from tailrace.sampling.logprobs import entry_of
from tailrace.sampling.validation import check_kind, checked_ids, checked_size


def replay(logits: torch.Tensor, tokens: list[int], top: int) -> list[TokenLogprobs]:
    """Return the logprobs of given tokens.

    Args:
        logits: [R, V] of bf16, f16 or f32, not modified.
        tokens: the token that follows each row.
        top: number of alternatives to report.

    Raises:
        ParameterError: (a ValueError) shapes do not fit, a token is outside the vocabulary, or `top` beyond it.
        ValueError: a row holds NaN, +inf, or nothing but −inf.
    """
    check_kind("logits", logits, torch.Tensor)
    logits = readable(logits)
    count, vocab = logits.shape
    tokens, top = checked_ids("tokens", tokens, vocab), checked_size("top", top, 0)
    if len(tokens) != count or top > vocab:
        raise ParameterError(
            f"tokens must be {count} ids and top at most {vocab}, got {len(tokens)} and {top}", "tokens"
        )
    programs = Programs(count)
    plain = Program(
        key=0,
        stages=(),
        exempt=ascending(()),
        logprobs=top,
        greedy=True,
        processed=False,
        entropy=False,
        unsupported=False,
        stateful=False,
        counts=None,
        weights=(0, 0),
    )
    for slot, token in enumerate(tokens):
        programs.write(slot, plain)
        programs.write_edits(slot, (), token)
    output = CPUStep(logits.cpu(), Rows.plain(range(count), range(count), [0] * count), programs).run()
    for row, status in enumerate(output.status.tolist()):
        if status != OK:
            raise ValueError(f"row {row}: {MESSAGES[status]}")
    assert output.logprobs is not None
    numbers, ranks = output.logprobs.numbers.tolist(), output.logprobs.ranks.tolist()
    return [entry_of(numbers[row][0], ranks[row][0], top, False) for row in range(count)]


def logprobs_of(logits: torch.Tensor, token_ids: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the raw logprobs of given tokens, in nats.

    Args:
        logits: [R, V] without NaN or +inf.
        token_ids: for each row any number of ids in 0 … V − 1.

    Raises:
        ParameterError: the number of lists differs from the number of rows.
    """
    check_kind("logits", logits, torch.Tensor)
    logits = make_plain("logits", logits)
    if len(token_ids) != len(logits):
        raise ParameterError(f"token_ids must be {len(logits)} lists, got {len(token_ids)}", "token_ids")
    return [
        row.double().log_softmax(0)[list(ids)].tolist() if ids else []
        for row, ids in zip(logits.cpu(), token_ids, strict=True)
    ]
