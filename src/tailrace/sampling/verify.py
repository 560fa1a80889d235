"""Verification of drafts, the specification: which of them stand, and what follows them. One request at a time, in torch.

Drafts x₁ … x_k come with their proposals q (None: one-hot). Row j's distribution p is that of plain sampling after the drafts
before it: every edit and refinement sees them. After all k are accepted, a bonus token is drawn from row k.

- exact: accept while the draft is the token that plain sampling draws at that position with the same key: the output is the same
  as without drafts, token for token.
- rejection (Leviathan et al., arXiv 2211.17192): accept with min(1, p(x) / q(x)); at the first rejection draw from max(0, p − q).
- block (Sun et al., arXiv 2403.10444, algorithm 2): accepts the longest prefix that joint verification allows; at least as many.
  One-hot drafts: the same as rejection.

Acceptance, residual and draw take their noise from streams of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tailrace import kernels
from tailrace.kernels.rows import Rule
from tailrace.kernels.status import OK
from tailrace.sampling.reference import BadRowError, Target, choose, draw, report, target
from tailrace.sampling.report import Logprobs
from tailrace.sampling.slots import Slot
from tailrace.sampling.survivors import Survivors

ACCEPT_STREAM, RESIDUAL_STREAM = 1, 2  # csrc/draw.h

Outcome = tuple[list[int], list[Logprobs | None]]


def verify(
    logits: Sequence[torch.Tensor], slot: Slot, position: int, drafts: Sequence[int], q: torch.Tensor | None, rule: Rule
) -> tuple[list[int], list[Logprobs | None], int]:
    """Tokens, their reports, and the status (kernels/status.py).

    Args:
        logits: k + 1 rows [V] of any float dtype. slot: as it is before the first draft, and again on return.
        position: of the first row. drafts: k of them. q: float32 [k or more, V], or None.
    """
    tokens: list[int] = []
    reports: list[Logprobs | None] = []
    state, probabilities = dict(slot.state), []
    walked = 0

    def at(j: int) -> Target:
        nonlocal walked
        slot.drawn[:] = probabilities[walked:j]
        for token in drafts[walked:j]:
            slot.append(token)
        walked = max(walked, j)
        return target(logits[j].float().cpu(), slot, position + j)

    status = OK
    # block verification decides on all drafts together: not where a row depends on more than the drafts before it
    together = rule == "block" and q is not None and drafts and not slot.state and not slot.carried.forced
    walk = by_block if together else one_by_one
    try:
        for row, token in walk(at, slot, position, drafts, q, rule):
            tokens.append(token)
            reports.append(report(row, slot, token))
            probabilities.append(slot.lesson(token))
    except BadRowError as error:
        status = OK if tokens else error.status
    for _ in range(walked):
        slot.pop()
    slot.state.update(state)
    slot.drawn[:] = probabilities
    return tokens, reports, status


def one_by_one(
    at: Callable[[int], Target], slot: Slot, position: int, drafts: Sequence[int], q: torch.Tensor | None, rule: Rule
):
    """Rows and tokens, until one is not its draft."""
    for j in range(len(drafts) + 1):
        row = at(j)
        if j == len(drafts) or rule == "exact" or slot.forced is not None:
            token = choose(row, slot, position + j)
        else:
            token = accept_or_replace(row, slot, position + j, drafts[j], None if q is None else q[j].double())
        yield row, token
        if j == len(drafts) or token != drafts[j]:
            return


def accept_or_replace(row: Target, slot: Slot, position: int, draft: int, q: torch.Tensor | None) -> int:
    """The draft with probability min(1, p / q), else a token of the residual."""
    q = one_hot(draft, row.p) if q is None else q
    u = kernels.uniform(slot.key, position, ACCEPT_STREAM)
    if u * float(q[draft]) < float(row.p[draft]):
        return draft
    token = residual(row.p, q, 1.0, slot, position)
    return draft if token is None else token


def residual(p: torch.Tensor, q: torch.Tensor, scale: float, slot: Slot, position: int) -> int | None:
    """A token drawn from the positive part of scale · p − q; None if rounding has left nothing."""
    rest = (scale * p - q).clamp(min=0)
    ids = rest.nonzero().squeeze(1)
    if ids.numel() == 0:
        return None
    logits = rest[ids].log().float()
    return draw(Survivors(ids, logits, logits), slot, position, RESIDUAL_STREAM)


def by_block(
    at: Callable[[int], Target], slot: Slot, position: int, drafts: Sequence[int], q: torch.Tensor | None, rule: Rule
):
    """Algorithm 2, row by row: after row j, the longest accepted prefix so far and the token that would follow it are known."""
    assert q is not None
    p, rows, accepted, follower = 1.0, [], -1, -1
    for j in range(len(drafts) + 1):
        try:
            row = at(j)
        except BadRowError:
            if accepted < 0:
                raise
            break
        rows.append(row)
        bonus = j == len(drafts)
        proposal = torch.zeros_like(row.p) if bonus else q[j].double()
        rest = float((p * row.p - proposal).clamp(min=0).sum())
        h = p if bonus else rest / (rest + 1.0 - p) if rest > 0 else float(p >= 1.0)
        if j == 0 or kernels.uniform(slot.key, position + j - 1, ACCEPT_STREAM) <= h:
            token = residual(row.p, proposal, p, slot, position + j)
            if token is not None or j == 0:
                accepted, follower = j, drafts[j] if token is None else token
        if not bonus:
            mine, next_p = float(proposal[drafts[j]]), float(row.p[drafts[j]])
            p = min(p * next_p / mine, 1.0) if mine > 0 else float(next_p > 0)
    yield from zip(rows[: accepted + 1], [*drafts[:accepted], follower], strict=True)


def one_hot(token: int, like: torch.Tensor) -> torch.Tensor:
    """All mass on one token."""
    q = torch.zeros_like(like)
    q[token] = 1.0
    return q
