"""Verification of drafts, the specification: which drafts are accepted, and which token follows them. It works on one
request at a time, in torch.

Drafts x₁ … x_k come with the distributions q that proposed them (None: one-hot). Row j has the distribution p of plain
sampling after the drafts before it: every edit and refinement sees them. After all k are accepted, a bonus token is
drawn from row k.

- exact: accept while the draft is the token that plain sampling draws at that position with the same key. The output is
  the same as without drafts, token for token.
- rejection (Leviathan et al., arXiv 2211.17192): accept with min(1, p(x) / q(x)). At the first rejection draw from
  max(0, p − q).
- block (Sun et al., arXiv 2403.10444, algorithm 2): accept the longest prefix that joint verification allows, at least
  as many as rejection. For one-hot drafts it equals rejection.
- typical (Medusa; Cai et al., arXiv 2401.10774): accept if p(x) > min(ε, δ · e^−H), where H is the entropy of p in
  nats. Otherwise take the token that plain sampling draws, which may be the draft after all. It is not lossless: it
  sharpens the distribution. It ignores q.

For every rule, a greedy row accepts only its likeliest token, and a forced token is taken unchanged. If one of a
request's rows has a forced token, block verification works row by row, as rejection.

Acceptance, residual and draw each have their own stream of noise.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch

from tailrace import kernels
from tailrace.base.logprobs import TokenLogprobs
from tailrace.kernels.constants import (
    ACCEPT_STREAM,
    BLOCK_STREAM,
    RESIDUAL_STREAM,
    TYPICAL_DELTA,
    TYPICAL_EPSILON,
)
from tailrace.kernels.program import Mask
from tailrace.kernels.rows import Rule
from tailrace.kernels.status import FAILED, OK
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.reference import (
    BadRowError,
    Choice,
    Target,
    choose_token,
    make_choice,
    make_target,
    report_logprobs,
    survivors_of,
)
from tailrace.sampling.slot import PendingUpdate, Slot

LEAST = 2.0**-126  # the least normal float; every backend drops smaller remainders

Look = Callable[[torch.Tensor, Slot, int, Mask | None], Target]
Walk = Iterator[tuple[Target, Choice]]
Seen = TypeVar("Seen")
log = logging.getLogger(__name__)


class Drafts(NamedTuple):
    """The k drafts of one request in one step.

    - position: of the first row.
    - tokens: the drafts.
    - q: float32 [k or more, V], the distributions that the drafts were drawn from. None: they are one-hot.
    - rule: the rule of verification.
    """

    position: int
    tokens: Sequence[int]
    q: torch.Tensor | None
    rule: Rule


class DraftRows:
    """The rows of one request's drafts. While row j is processed, the slot includes the drafts before it.

    Args:
        logits: k + 1 rows [V] of any float dtype.
        masks: the grammar's mask of each row; (): no grammar.
    """

    def __init__(
        self, logits: Sequence[torch.Tensor], slot: Slot, drafts: Drafts, masks: Sequence[Mask | None] = ()
    ) -> None:
        self.logits, self.slot, self.drafts = logits, slot, drafts
        self.look: Look = make_target  # explain.py sets one that also keeps the steps
        self.masks = masks or [None] * len(logits)
        self.updates: list[PendingUpdate] = []  # updates of the tokens so far
        self.survivors: list[torch.Tensor] = []  # int64, per token so far, if the request needs them
        self._state, self._walked = dict(slot.state), 0

    def get_target(self, j: int) -> Target:
        """Return row j, 0 … k. j never decreases from call to call.

        Raises:
            BadRowError: nothing can be drawn from it.
        """
        self.slot.updates[:] = self.updates[self._walked : j]
        while self._walked < j:
            self._walked += 1  # first: a row that fails half-way is restored too
            self.slot.extend([self.drafts.tokens[self._walked - 1]])
        return self.look(self.logits[j].float().cpu(), self.slot, self.drafts.position + j, self.masks[j])

    def restore_slot(self) -> None:
        """Restore the slot to its state before row 0. Its pending updates are those of the tokens."""
        self.slot.updates.clear()
        for _ in range(self._walked):
            self.slot.pop()
        self.slot.state.update(self._state)
        self.slot.updates[:] = self.updates if self.slot.state else ()


def verify_request(rows: DraftRows) -> tuple[list[int], list[TokenLogprobs | None], int]:
    """Return the tokens, their logprobs, and the status (see `follow_rule`). The survivors are left in `rows`."""

    def record_choice(row: Target, choice: Choice) -> tuple[int, TokenLogprobs | None]:
        described = report_logprobs(row, rows.slot, choice.token)
        rows.survivors += survivors_of(row, rows.slot, choice.token)
        return choice.token, described

    found, status = follow_rule(rows, record_choice)
    return [token for token, _ in found], [logprobs for _, logprobs in found], status


def follow_rule(rows: DraftRows, see: Callable[[Target, Choice], Seen]) -> tuple[list[Seen], int]:
    """Call `see` for each row and its choice. Return the results and the status (kernels/status.py).

    An error affects this request only, and the tokens accepted before it stay. Only the slot's pending updates change.
    """
    found: list[Seen] = []
    status = OK
    try:
        for row, choice in apply_rule(rows):
            seen, update = see(row, choice), rows.slot.update_of(choice.token)
            found.append(seen)
            rows.updates.append(update)
    except BadRowError as error:
        status = error.status
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic of Rust code is no Exception
        log.exception("a request could not be sampled")
        status = FAILED
    rows.restore_slot()
    return found, OK if found else status


def apply_rule(rows: DraftRows) -> Walk:
    """Yield rows and their choices by the rule, until a token differs from its row's draft."""
    rule, q = rule_of(rows), rows.drafts.q
    return by_block(rows, q) if rule == "block" and q is not None else one_by_one(rows, rule)


def rule_of(rows: DraftRows) -> Rule:
    """Return the rule for these drafts."""
    slot, drafts = rows.slot, rows.drafts
    if slot.params.greedy:
        return "exact"
    if drafts.rule != "block":
        return drafts.rule
    forced = any(slot.num_output + j in slot.sequence_state.forced for j in range(len(rows.logits)))
    # Block verification decides on all drafts together. It needs rows that depend only on the drafts before them.
    return "rejection" if drafts.q is None or not drafts.tokens or slot.state or forced else "block"


def one_by_one(rows: DraftRows, rule: Rule) -> Walk:
    """Yield rows and their choices, until a token differs from its draft."""
    position, drafts, q, _ = rows.drafts
    for j in range(len(drafts) + 1):
        row = rows.get_target(j)
        if j == len(drafts) or rows.slot.forced is not None or (decide := BY_RULE[rule]) is None:
            choice = choose_token(row, rows.slot, position + j)
        else:
            choice = decide(row, rows.slot, position + j, drafts[j], None if q is None else q[j].double())
        yield row, choice
        if j == len(drafts) or choice.token != drafts[j]:
            return


def accept_or_replace(row: Target, slot: Slot, position: int, draft: int, q: torch.Tensor | None) -> Choice:
    """Return the draft with probability min(1, p / q), else a token of the residual."""
    q = one_hot(draft, row.p) if q is None else q
    bound = kernels.uniform(slot.key, position, ACCEPT_STREAM) * float(q[draft])
    if bound < float(row.p[draft]):
        return Choice(draft, bound=bound)
    return draw_replacement(row, compute_remainder(row.p, q, 1.0), slot, position)._replace(bound=bound)


def draw_replacement(row: Target, rest: Candidates, slot: Slot, position: int) -> Choice:
    """Draw from the remainder. If rounding left nothing, p equals q, so draw from p."""
    return make_choice(rest if rest.ids.numel() else row.candidates, slot, position, RESIDUAL_STREAM)


def accept_or_draw(row: Target, slot: Slot, position: int, draft: int, q: torch.Tensor | None) -> Choice:
    """Return the draft if its probability is above the bound, else the token that plain sampling draws."""
    bound = min(TYPICAL_EPSILON, TYPICAL_DELTA * math.exp(-row.candidates.entropy()))
    if float(row.p[draft]) > bound:
        return Choice(draft, bound=bound)
    return make_choice(row.candidates, slot, position)._replace(bound=bound)


# rule → function that chooses a row's token given its draft; None: as without a draft
BY_RULE: dict[Rule, Callable[[Target, Slot, int, int, torch.Tensor | None], Choice] | None] = {
    "exact": None,
    "rejection": accept_or_replace,
    "typical": accept_or_draw,
}


def compute_remainder(p: torch.Tensor, q: torch.Tensor, scale: float) -> Candidates:
    """Return the part of scale · p − q that is at least LEAST, not normalised. It may be empty."""
    rest = scale * p - q
    ids = (rest >= LEAST).nonzero().squeeze(1)
    logits = rest[ids].log().float()
    return Candidates(ids, logits, logits)


def by_block(rows: DraftRows, q: torch.Tensor) -> Walk:
    """Run algorithm 2, row by row. After row j it knows the longest accepted prefix so far, and the distribution of the
    token after it.

    It draws the noise of acceptance for rows that may not be reached, and that come again in the next step. This noise
    is keyed by the position where the step begins, so no two steps share it.
    """
    slot, position, drafts = rows.slot, rows.drafts.position, rows.drafts.tokens
    p, seen, accepted, rests = 1.0, [], -1, []
    for j in range(len(drafts) + 1):
        try:
            row = rows.get_target(j)
        except BadRowError:
            if accepted < 0:
                raise
            break
        bonus = j == len(drafts)
        proposal = torch.zeros_like(row.p) if bonus else q[j].double()
        seen.append(row)
        rests.append(compute_remainder(row.p, proposal, p))
        rest = float((p * row.p - proposal)[rests[-1].ids].sum())
        h = p if bonus else rest / (rest + (1.0 - p)) if rest > 0 else 0.0  # this order keeps the sum above 0 at p = 1
        if j == 0 or (rest > 0 and kernels.uniform(slot.key, position, BLOCK_STREAM + j) <= h):
            accepted = j
        if not bonus:
            mine, next_p = float(proposal[drafts[j]]), float(row.p[drafts[j]])
            p = min(p * next_p / mine, 1.0) if mine > 0 else float(next_p > 0)
    last = draw_replacement(seen[accepted], rests[accepted], slot, position + accepted)
    yield from zip(seen[: accepted + 1], [*map(Choice, drafts[:accepted]), last], strict=True)


def one_hot(token: int, like: torch.Tensor) -> torch.Tensor:
    """Return candidates with all mass on one token."""
    q = torch.zeros_like(like)
    q[token] = 1.0
    return q
