"""The explanation of a token: one record per token, from the sampler to the wire. This module imports no torch.

`sampling/explain.py` makes the record: it applies the methods of the reference pipeline, one by one, to the row that
the token was drawn from. A record shows n tokens, `ids`. Every list of n numbers is in their order.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tailrace.errors import ParameterError, format_json
from tailrace.request.fields import Range, TokenId

MAX_SHOWN = 100
TOP = Range(1, MAX_SHOWN)
Origin = Literal["drawn", "greedy", "forced", "accepted", "replaced"]


class ExplainOptions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The contents of a record.

    - top: this many of the model's likeliest tokens, and of the tokens that can be drawn, 1 to 100.
    - ids: further tokens, at most 100.

    Raises:
        ParameterError: (a ValueError) top is out of range, or ids are too many.
    """

    top: int = 10
    ids: tuple[TokenId, ...] = ()

    def __post_init__(self) -> None:
        TOP.check("explain.top", self.top)
        if not isinstance(self.ids, tuple | list) or len(self.ids) > MAX_SHOWN:
            raise ParameterError(
                f"explain.ids must be at most {MAX_SHOWN} token ids, got {format_json(self.ids)}", "explain"
            )

    def check_vocab(self, vocab_size: int) -> None:
        """Raise ParameterError if any of the ids lies outside 0 … vocab_size − 1."""
        for token in self.ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise ParameterError(
                    f"explain.ids: token id {format_json(token)} is not in 0 … {vocab_size - 1}", "explain"
                )


class ModelView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The row as the model returned it.

    - logits: float32 values, of n tokens. With guidance they are those of the combined row. None: −inf.
    - probabilities: softmax over the whole vocabulary.
    - ranks: 1 is the likeliest; ties go to the smaller id.
    - entropy: of the whole distribution, nats.
    - varentropy: the variance of −ln p, nats².
    - conditional, unconditional: with guidance, the logits of the two rows.
    """

    logits: list[float | None]
    probabilities: list[float]
    ranks: list[int]
    entropy: float
    varentropy: float
    conditional: list[float | None] | None = None
    unconditional: list[float | None] | None = None


class EditStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """The effect of one edit on the logits.

    - method: its name in method_order.py, or "grammar".
    - fields: the request's fields that switch it on.
    - changed: number of tokens whose logit moved and stayed finite.
    - banned: number of logits that became −inf.
    - left: number of finite logits after the edit.
    - logits: after the edit, of n tokens. None: −inf.
    - probabilities: their softmax over the whole vocabulary.
    """

    method: str
    fields: dict[str, Any]
    changed: int
    banned: int
    left: int
    logits: list[float | None]
    probabilities: list[float]


class RefinementStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """The effect of one refinement on the distribution.

    - method: its name in method_order.py. It is "draft" for a refused draft, whose token comes from max(0, p − q).
    - fields: the request's fields that switch it on.
    - before, kept: number of tokens that could be drawn before it, and after it.
    - mass: the kept tokens' probability before it.
    - entropy: after it, nats.
    - probabilities: after it, of n tokens. None: removed, here or before.
    - boundary: the smallest probability before it among the kept tokens. It is None if no token was removed, or if a
      removed token was likelier.
    - cut_ids, cut_probabilities: the likeliest removed tokens, at most five. Their probabilities are those before it.
    """

    method: str
    fields: dict[str, Any]
    before: int
    kept: int
    mass: float
    entropy: float
    probabilities: list[float | None]
    boundary: float | None = None
    cut_ids: list[int] = []
    cut_probabilities: list[float] = []


class Draw(msgspec.Struct, frozen=True, omit_defaults=True):
    """The draw. The largest score wins; score = ln probability + noise (Gumbel). Greedy: the largest logit, without
    noise.

    - probabilities: those that n tokens are drawn with. None: the token can't be drawn.
    - noise, scores: None: the token can't be drawn. In a greedy row the noise is 0 and the score is the logit.
    - winner: the token with the largest score. It may differ from the token if that was forced or is an accepted draft.
      Then it is the token that would have been drawn.
    - runner_up: the token with the next score. None: no other token is left.
    - margin: the winner's score minus the runner-up's.
    - greedy: the row takes its largest logit.
    """

    probabilities: list[float | None]
    noise: list[float | None]
    scores: list[float | None]
    winner: int
    runner_up: int | None = None
    margin: float | None = None
    greedy: bool = False


class DraftView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A drafter's part in the token.

    - rule: of verification.
    - place: of the token in the draft, from 0.
    - drafter: its name.
    - token: the proposed token at this place.
    - p: its probability here.
    - q: the probability with which the drafter proposed it. None: the drafter considered no other token.
    - bound: the draft is accepted if p is above it. Rule rejection: u · q, u uniform. Rule typical: a bound that
      depends on the distribution's entropy. None: another rule decided. (Rule exact compares the draft with the drawn
      token. Rule block decides on all drafts together.)
    """

    rule: str
    place: int
    token: int
    p: float
    q: float | None = None
    bound: float | None = None
    drafter: str = ""


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The explanation of a token at one place of a sequence.

    - index: of the token in the output, from 0.
    - position: in the whole sequence. The noise is a function of key, position and token id.
    - key: 64 bits, as 16 hexadecimal digits.
    - token_id: the token.
    - origin: how the token came.
    - ids: the shown tokens, ordered by the model's rank. They are the model's likeliest, the likeliest that can be
      drawn, the token, the winner, the runner-up, and the requested ones.
    - removed_by: of n tokens, the first method that removed each: an edit, "grammar", or a refinement. A token whose
      own logit is −inf, or too far below the largest, has "model". A token that can be drawn has "".
    - ended: what the token ended, if anything: "stop", "length", "repetition", …

    Origins:

    - "drawn": a plain draw.
    - "greedy": the largest logit.
    - "forced": no other token was allowed.
    - "accepted": a draft that the rule accepted.
    - "replaced": drawn instead of a refused draft.
    """

    index: int
    position: int
    key: str
    token_id: int
    origin: Origin
    ids: list[int]
    model: ModelView
    edits: list[EditStep]
    refinements: list[RefinementStep]
    draw: Draw
    removed_by: list[str]
    draft: DraftView | None = None
    ended: str | None = None
