"""Why a token came: one record per token, from the sampler to the wire. This module imports no torch.

`sampling/explain.py` makes the record: it applies the methods of the reference pipeline, one by one, to the row that
the token was drawn from. A record shows n tokens, `ids`. Every list of n numbers is in their order.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tailrace.errors import ParameterError
from tailrace.request.fields import Range, TokenId

MAX_SHOWN = 100
TOP = Range(1, MAX_SHOWN)
Origin = Literal["drawn", "greedy", "forced", "accepted", "replaced"]


class ExplainOptions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a record shows. top: this many of the model's likeliest tokens, and of those that may be drawn, 1 to 100.
    ids: further tokens, at most 100.

    Raises:
        ParameterError: (a ValueError) top is out of range, or there are too many ids.
    """

    top: int = 10
    ids: tuple[TokenId, ...] = ()

    def __post_init__(self) -> None:
        TOP.check("explain.top", self.top)
        if not isinstance(self.ids, tuple | list) or len(self.ids) > MAX_SHOWN:
            raise ParameterError(f"explain.ids must be at most {MAX_SHOWN} token ids, got {self.ids!r:.100}", "explain")

    def check_vocab(self, vocab_size: int) -> None:
        """Raise ParameterError if any of the ids lies outside 0 … vocab_size − 1."""
        for token in self.ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise ParameterError(f"explain.ids: token id {token!r:.100} is not in 0 … {vocab_size - 1}", "explain")


class ModelView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The row as the model gave it.

    Attributes:
        logits: float32 values, of n tokens; with guidance those of the combined row. None: −inf.
        probabilities: softmax over the whole vocabulary. ranks: 1 is the likeliest; ties go to the smaller id.
        entropy: of the whole distribution, nats. varentropy: the variance of −ln p, nats².
        conditional, unconditional: with guidance, the logits of the two rows.
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

    Attributes:
        method: its name in method_order.py, or "grammar". fields: the request's fields that switch it on.
        changed: number of tokens whose logit moved and stayed finite. banned: number that became −inf.
        left: number of finite logits after the edit.
        logits: after the edit, of n tokens; None: −inf. probabilities: their softmax over the whole vocabulary.
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

    Attributes:
        method: its name in method_order.py, or "draft": a draft was refused and the token comes from max(0, p − q).
        fields: the request's fields that switch it on.
        before, kept: how many tokens could be drawn before it, and how many after it.
        mass: the probability, before it, of the tokens that it kept.
        entropy: after it, nats. probabilities: after it, of n tokens; None: removed, here or before.
        boundary: the smallest earlier probability among the kept tokens, if it removed some and all of those were less
            likely or as likely; else None.
        cut_ids, cut_probabilities: the likeliest tokens that it removed, at most five, with their probabilities before
            it.
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

    Attributes:
        probabilities: those that n tokens are drawn with; None: the token can't be drawn.
        noise, scores: None: the token can't be drawn. In a greedy row the noise is 0 and the score is the logit.
        winner: the token with the largest score. It is the token itself, unless that was forced, or was a draft that
            was accepted otherwise: then it is the token that would have been drawn.
        runner_up: the token with the next score; None: no other token is left.
        margin: how far the winner's score is above the runner-up's.
        greedy: the row takes its largest logit.
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

    Attributes:
        rule: of verification. place: of the token in the draft, from 0. drafter: its name.
        token: the token that was proposed here. p: its probability here.
        q: the probability with which the drafter proposed it; None: the drafter proposed nothing else.
        bound: the draft is accepted if p is above it. rejection: u · q, u uniform. typical: a bound that depends on how
            uncertain the distribution is. None: another rule decided (exact: the draft is what is drawn; block: all
            drafts together).
    """

    rule: str
    place: int
    token: int
    p: float
    q: float | None = None
    bound: float | None = None
    drafter: str = ""


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a token came at one place of a sequence.

    Attributes:
        index: of the token in the output, from 0. position: in the whole sequence. The noise is a function of key,
            position and token id. key: 64 bits, as 16 hexadecimal digits.
        token_id: the token.
        origin: "drawn"; "greedy": the largest logit; "forced": no other token was allowed; "accepted": a draft that the
            rule accepted; "replaced": drawn instead of a refused draft.
        ids: the tokens that are shown: the model's likeliest, those that may be drawn, the token, the winner, the
            runner-up, the requested ones; ordered by the model's rank.
        removed_by: of n tokens, the first method that removed each: an edit, "grammar", a refinement. "model": its own
            logit is −inf, or too far down. "": it could be drawn.
        ended: what the token ended, if anything: "stop", "length", "repetition", …
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
