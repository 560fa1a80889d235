"""Why a token came: one record per token, from the sampler to the wire. Imports no torch.

`sampling/explain.py` makes the record by walking the methods of the reference pipeline over the row that the token was
drawn from. A record shows n tokens, `ids`; every list of n numbers stands beside them, in their order.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tailrace.errors import ParameterError
from tailrace.fields import Range, TokenId

MAX_SHOWN = 100
TOP = Range(1, MAX_SHOWN)
Origin = Literal["drawn", "greedy", "forced", "accepted", "replaced"]


class ExplainOptions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What to show. top: so many of the model's likeliest tokens, and so many of those that may be drawn, 1 to 100.
    ids: these too, at most 100.

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
        conditional, unconditional: with guidance, the two rows' logits.
    """

    logits: list[float | None]
    probabilities: list[float]
    ranks: list[int]
    entropy: float
    varentropy: float
    conditional: list[float | None] | None = None
    unconditional: list[float | None] | None = None


class EditStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one edit did to the logits.

    Attributes:
        method: its name in sampling/pipeline.py, or "grammar". fields: those of the request that ask for it.
        changed: tokens whose logit moved and stayed finite. banned: tokens that became −inf. left: finite logits after
            it.
        logits: after it, of n tokens; None: −inf. probabilities: their softmax over the whole vocabulary.
    """

    method: str
    fields: dict[str, Any]
    changed: int
    banned: int
    left: int
    logits: list[float | None]
    probabilities: list[float]


class RefinementStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one refinement did to the distribution.

    Attributes:
        method: its name in sampling/pipeline.py; or "draft", where a draft was refused and the token comes from
            max(0, p − q). fields: those of the request that ask for it.
        before, kept: how many tokens could be drawn before it, and how many after. mass: the probability that those it
            kept had before it.
        entropy: after it, nats. probabilities: after it, of n tokens; None: cut, here or before.
        boundary: the least probability before it of a token that it kept, where it cut some and none of those was
            likelier; else None.
        cut_ids, cut_probabilities: the likeliest tokens that it cut, at most five, with their probabilities before it.
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
    """The draw: the largest score wins, score = ln probability + noise (Gumbel); greedy: the largest logit, without
    noise.

    Attributes:
        probabilities: what each of n tokens is drawn with; None: it can't be drawn. noise, scores: None where the token
            can't be drawn; of a greedy row the noise is 0 and the score is the logit.
        winner: who wins; the token itself unless it was forced, or a draft that was accepted otherwise: then it is what
            would have been drawn. runner_up: who comes next; None: nobody is left. margin: how far the winner's score
            is above the runner-up's.
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
    """What a drafter had to do with the token.

    Attributes:
        rule: of verification. place: of the token in the draft, from 0. drafter: its name.
        token: the token that was proposed here. p: its probability here; q: with which the drafter proposed it, None if
            it proposed nothing else.
        bound: the draft is accepted if p is above it: rejection: u · q, u uniform; typical: what so uncertain a
            distribution demands. None: decided otherwise (exact: it is what is drawn; block: all drafts together).
    """

    rule: str
    place: int
    token: int
    p: float
    q: float | None = None
    bound: float | None = None
    drafter: str = ""


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why the token came that stands at one place of a sequence.

    Attributes:
        index: of the token in the output, from 0. position: in the whole sequence; the noise is a function of key,
            position and token id. key: 64 bits, as 16 hexadecimal digits.
        token_id: the token. origin: how it came: "drawn"; "greedy": the largest logit; "forced": nothing else was
            allowed to come; "accepted": a draft that the rule took; "replaced": in place of a refused draft.
        ids: the tokens that are shown: the model's likeliest, those that may be drawn, the token, the winner, the
            runner-up, those asked for; by the model's rank.
        removed_by: of n tokens, the first method that took each out: an edit, "grammar", a refinement; "model": its own
            logit is −inf, or too far down; "": it could be drawn.
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
