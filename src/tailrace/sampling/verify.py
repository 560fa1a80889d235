"""Verification of drafts, the specification: which of them stand, and what follows them. One request at a time, in
torch.

Drafts x₁ … x_k come with their proposals q (None: one-hot). Row j's distribution p is that of plain sampling after the
drafts before it: every edit and refinement sees them. After all k are accepted, a bonus token is drawn from row k.

- exact: accept while the draft is the token that plain sampling draws at that position with the same key: the output is
  the same as without drafts, token for token.
- rejection (Leviathan et al., arXiv 2211.17192): accept with min(1, p(x) / q(x)); at the first rejection draw from
max(0, p − q).
- block (Sun et al., arXiv 2403.10444, algorithm 2): accepts the longest prefix that joint verification allows; at least
  as many. One-hot drafts: the same as rejection.
- typical (Medusa; Cai et al., arXiv 2401.10774): accept where p(x) > min(ε, δ · e^−H), H the entropy of p in nats;
  otherwise what plain sampling draws, which may be the draft after all. Not lossless: it sharpens the distribution. q
  is not looked at.

Whatever the rule, a greedy row accepts its likeliest token alone, and a forced token is taken as it is; where one of a
request's rows has a forced token, block verification goes row by row, as rejection.

Acceptance, residual and draw take their noise from streams of their own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

import torch

from tailrace import kernels
from tailrace.kernels.program import Mask
from tailrace.kernels.rows import Rule
from tailrace.kernels.status import FAILED, OK
from tailrace.logprobs import TokenLogprobs
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.reference import BadRowError, Target, choose, draw, logprobs_of, target
from tailrace.sampling.request_slot import RequestSlot
from tailrace.sampling.slot import PendingUpdate

ACCEPT_STREAM, RESIDUAL_STREAM, BLOCK_STREAM = 1, 2, 64  # csrc/draw.h
EPSILON, DELTA = 0.09, 0.3  # of rule typical, as Medusa has them; csrc/sample.cpp
LEAST = 2.0**-126  # less of a remainder than the least normal float is nothing, in every backend

Walk = Iterator[tuple[Target, int]]
log = logging.getLogger(__name__)


def verify(
    logits: Sequence[torch.Tensor],
    slot: RequestSlot,
    position: int,
    drafts: Sequence[int],
    q: torch.Tensor | None,
    rule: Rule,
    masks: Sequence[Mask | None] = (),
) -> tuple[list[int], list[TokenLogprobs | None], int]:
    """Tokens, their logprobs, and the status (kernels/status.py): whatever goes wrong is this request's alone, and what
    was accepted before stands.

    Args:
        logits: k + 1 rows [V] of any float dtype. slot: as it is before the first draft, and again on return.
        position: of the first row. drafts: k of them. q: float32 [k or more, V], or None. masks: the grammar's, of each
            row; (): none.
    """
    tokens: list[int] = []
    logprobs: list[TokenLogprobs | None] = []
    updates: list[PendingUpdate] = []
    allowed = masks or list(repeat(None, len(logits)))
    state, walked = dict(slot.state), 0

    def at(j: int) -> Target:
        nonlocal walked
        slot.updates[:] = updates[walked:j]
        while walked < j:
            walked += 1  # first: one that fails half-way is taken back too
            slot.extend([drafts[walked - 1]])
        return target(logits[j].float().cpu(), slot, position + j, allowed[j])

    status = OK
    if slot.params.greedy:
        rule = "exact"
    forced = any(slot.num_output + j in slot.sequence_state.forced for j in range(len(logits)))
    # block verification decides on all drafts together: not where a row depends on more than the drafts before it
    together = rule == "block" and q is not None and drafts and not slot.state and not forced
    walk = by_block if together else one_by_one
    try:
        for row, token in walk(at, slot, position, drafts, q, rule):
            described, update = logprobs_of(row, slot, token), slot.update_of(token)
            tokens.append(token)
            logprobs.append(described)
            updates.append(update)
    except BadRowError as error:
        status = error.status
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic in Rust is no Exception
        log.exception("a request could not be sampled")
        status = FAILED
    status = OK if tokens else status
    slot.updates.clear()
    for _ in range(walked):
        slot.pop()
    slot.state.update(state)
    slot.updates[:] = updates if slot.state else ()
    return tokens, logprobs, status


def one_by_one(
    at: Callable[[int], Target],
    slot: RequestSlot,
    position: int,
    drafts: Sequence[int],
    q: torch.Tensor | None,
    rule: Rule,
) -> Walk:
    """Rows and tokens, until one is not its draft."""
    for j in range(len(drafts) + 1):
        row = at(j)
        if j == len(drafts) or slot.forced is not None or (decide := BY_RULE[rule]) is None:
            token = choose(row, slot, position + j)
        else:
            token = decide(row, slot, position + j, drafts[j], None if q is None else q[j].double())
        yield row, token
        if j == len(drafts) or token != drafts[j]:
            return


def accept_or_replace(row: Target, slot: RequestSlot, position: int, draft: int, q: torch.Tensor | None) -> int:
    """The draft with probability min(1, p / q), else a token of the residual."""
    q = one_hot(draft, row.p) if q is None else q
    u = kernels.uniform(slot.key, position, ACCEPT_STREAM)
    if u * float(q[draft]) < float(row.p[draft]):
        return draft
    return replacement(row, remainder(row.p, q, 1.0), slot, position)


def replacement(row: Target, rest: Candidates, slot: RequestSlot, position: int) -> int:
    """Drawn from what is left; where rounding has left nothing, p and q are the same, so from p."""
    return draw(rest if rest.ids.numel() else row.candidates, slot, position, RESIDUAL_STREAM)


def accept_or_draw(row: Target, slot: RequestSlot, position: int, draft: int, q: torch.Tensor | None) -> int:
    """The draft if it is likely enough for so uncertain a distribution, else what plain sampling draws."""
    if float(row.p[draft]) > min(EPSILON, DELTA * math.exp(-row.candidates.entropy())):
        return draft
    return draw(row.candidates, slot, position)


# rule → how a row that has a draft comes to its token; None: as a row without one
BY_RULE: dict[Rule, Callable[[Target, RequestSlot, int, int, torch.Tensor | None], int] | None] = {
    "exact": None,
    "rejection": accept_or_replace,
    "block": accept_or_replace,
    "typical": accept_or_draw,
}


def remainder(p: torch.Tensor, q: torch.Tensor, scale: float) -> Candidates:
    """What of scale · p − q is at least LEAST, not normalised; nobody may be left."""
    rest = scale * p - q
    ids = (rest >= LEAST).nonzero().squeeze(1)
    logits = rest[ids].log().float()
    return Candidates(ids, logits, logits)


def by_block(
    at: Callable[[int], Target],
    slot: RequestSlot,
    position: int,
    drafts: Sequence[int],
    q: torch.Tensor | None,
    rule: Rule,
) -> Walk:
    """Algorithm 2, row by row: after row j, the longest accepted prefix so far is known, and what the token after it is
    drawn from.

    What decides on acceptance is drawn for rows that may not be reached and come again in the next step; it is keyed by
    where the step begins, so that no two steps share it.
    """
    assert q is not None
    p, rows, accepted, rests = 1.0, [], -1, []
    for j in range(len(drafts) + 1):
        try:
            row = at(j)
        except BadRowError:
            if accepted < 0:
                raise
            break
        bonus = j == len(drafts)
        proposal = torch.zeros_like(row.p) if bonus else q[j].double()
        rows.append(row)
        rests.append(remainder(row.p, proposal, p))
        rest = float((p * row.p - proposal)[rests[-1].ids].sum())
        h = p if bonus else rest / (rest + (1.0 - p)) if rest > 0 else 0.0  # in this order: at p = 1 the sum is never 0
        if j == 0 or (rest > 0 and kernels.uniform(slot.key, position, BLOCK_STREAM + j) <= h):
            accepted = j
        if not bonus:
            mine, next_p = float(proposal[drafts[j]]), float(row.p[drafts[j]])
            p = min(p * next_p / mine, 1.0) if mine > 0 else float(next_p > 0)
    follower = replacement(rows[accepted], rests[accepted], slot, position + accepted)
    yield from zip(rows[: accepted + 1], [*drafts[:accepted], follower], strict=True)


def one_hot(token: int, like: torch.Tensor) -> torch.Tensor:
    """All mass on one token."""
    q = torch.zeros_like(like)
    q[token] = 1.0
    return q
