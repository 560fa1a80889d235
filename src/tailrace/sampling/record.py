"""Conversion of a row and its recorded steps to the record that explains its token (explain/record.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from tailrace import kernels
from tailrace.explain.record import (
    DraftView,
    Draw,
    EditStep,
    ExplainOptions,
    Explanation,
    ModelView,
    Origin,
    RefinementStep,
)
from tailrace.params import FIELDS, SamplingParams
from tailrace.request.options import Watermark
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.lookup import (
    NEGATIVE_INFINITY,
    Pair,
    best_two,
    likeliest_of,
    list_numbers,
    mark_members,
    pair_values,
    places_in,
    ranks_of,
    where_in,
)
from tailrace.sampling.reference import Choice, scores_of
from tailrace.sampling.slot import Slot

LEAST = -1e9  # below the logarithm of any float64
MOST_CUT = 5  # number of cut tokens that a record names, the likeliest ones
MOST_ENTRIES = 8  # most entries of a field's value in a record
MASK64 = 2**64 - 1


@dataclass(slots=True)
class Walked:
    """One row, and its state after each step.

    - index, position: of the row's token in the output and in the sequence.
    - forced: the forced token, if there is one.
    - raw, row: float32 [V], before and after the edits.
    - start: the candidates after the edits.
    - edited_rows: the edit methods' names, and the row after each.
    - refined: the refinements' names, and the candidates after each.
    """

    index: int
    position: int
    forced: int | None
    raw: torch.Tensor
    row: torch.Tensor
    start: Candidates
    edited_rows: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    refined: list[tuple[str, Candidates]] = field(default_factory=list)

    @property
    def candidates(self) -> Candidates:
        """The tokens that can be drawn."""
        return self.refined[-1][1] if self.refined else self.start


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a row: its token, the token's origin, and the sampler's choice."""

    token: int
    origin: Origin
    choice: Choice
    draft: DraftView | None = None


class Record:
    """A row with its steps, ready for conversion."""

    def __init__(self, walked: Walked, slot: Slot, outcome: Outcome) -> None:
        self.walked, self.slot, self.outcome = walked, slot, outcome
        self.refined = list(walked.refined)
        final = outcome.choice.drawn_from
        if final is None:
            final = walked.candidates
        elif final is not walked.candidates and outcome.draft is not None:
            self.refined.append(("draft", final))
        self.final = final
        self.scores = self._compute_scores()
        best = best_two(self.scores.numpy())
        self.best = final.ids[best].tolist()
        self.margin = float(self.scores[best[0]] - self.scores[best[1]]) if len(best) > 1 else None

    def make_record(self, options: ExplainOptions, guided: Pair | None) -> Explanation:
        """Return the record. Its parts are in the order of the pipeline."""
        walked, outcome = self.walked, self.outcome
        shown, ranks = self._select_tokens(options)
        return Explanation(
            index=walked.index,
            position=walked.position,
            key=f"{self.slot.key & MASK64:016x}",
            token_id=outcome.token,
            origin=outcome.origin,
            ids=shown.tolist(),
            model=model_view(walked.raw, shown, ranks, guided),
            edits=list(edit_steps(walked, shown, self.slot.params)),
            refinements=list(refinement_steps(walked.start, self.refined, shown, self.slot.params)),
            draw=self._make_draw(shown),
            removed_by=self._removed_by(shown),
            draft=outcome.draft,
        )

    def _compute_scores(self) -> torch.Tensor:
        """Return the numbers that the draw compares, minus a constant: float64 [n], for the final candidates."""
        stream, final = self.outcome.choice.stream, self.final
        if self.slot.params.greedy:
            return self.walked.row[final.ids].double()
        return scores_of(final, self.slot, self.walked.position, stream).double() - final.logits.double().logsumexp(0)

    def _select_tokens(self, options: ExplainOptions) -> Pair:
        """Return ids, int64 [n], by the model's rank, and their ranks."""
        outcome, raw = self.outcome, self.walked.raw
        # rule exact draws as without a draft, and shows the same tokens
        refused = [] if outcome.draft is None or outcome.draft.rule == "exact" else [outcome.draft.token]
        named = {outcome.token, *self.best, *options.ids, *refused}
        ascending = np.sort(raw.numpy() + 0.0)  # −0 equals 0
        likeliest = self.final.ids[self.final.likeliest(options.top)].tolist()
        ids = torch.tensor(sorted(named.union(likeliest_of(raw, ascending, options.top), likeliest)))
        ranks = ranks_of(raw, ascending, ids)
        order = ranks.argsort()
        return ids[order], ranks[order]

    def _make_draw(self, shown: torch.Tensor) -> Draw:
        final, greedy = self.final, self.slot.params.greedy
        logp = final.logits.double() - final.logits.double().logsumexp(0)
        scores = where_in(final, self.scores, shown)
        winner = self.best[0]
        if greedy:
            probabilities = [None if score is None else float(id == winner) for id, score in pair_values(shown, scores)]
            noise = [None if score is None else 0.0 for score in scores]
        else:
            probabilities = where_in(final, logp.exp(), shown)
            noise = self._compute_noise(shown)
        runner_up = self.best[1] if len(self.best) > 1 else None
        return Draw(probabilities, noise, scores, winner, runner_up, self.margin, greedy)

    def _compute_noise(self, shown: torch.Tensor) -> list[float | None]:
        """Return the noise of the shown tokens that can be drawn, else None."""
        alive = shown[places_in(self.final.ids, shown)[1]].sort().values
        noise = kernels.gumbel(self.slot.key, self.walked.position, alive, self.outcome.choice.stream)
        return where_in(Candidates(alive, noise, noise), noise, shown)

    def _removed_by(self, shown: torch.Tensor) -> list[str]:
        """Return the first step that removed each token."""
        walked, found = self.walked, [""] * shown.numel()
        stages = [("model", walked.raw[shown] != NEGATIVE_INFINITY)]
        stages += [(method, row[shown] != NEGATIVE_INFINITY) for method, row in walked.edited_rows]
        stages += [("model", places_in(walked.start.ids, shown)[1])]
        stages += [(method, places_in(candidates.ids, shown)[1]) for method, candidates in self.refined]
        for method, there in stages:
            for i in (~there).nonzero().squeeze(1).tolist():
                found[i] = found[i] or method
        return found


def model_view(raw: torch.Tensor, shown: torch.Tensor, ranks: torch.Tensor, guided: Pair | None) -> ModelView:
    """Return the model's own view of the tokens."""
    logp = raw.double().log_softmax(0)
    p = logp.exp()
    finite = logp.clamp_(min=LEAST)  # finite where p is 0, so that their product is 0
    entropy = -(p * finite).sum()
    conditional, unconditional = (
        (None, None) if guided is None else (list_numbers(row.float()[shown]) for row in guided)
    )
    return ModelView(
        logits=list_numbers(raw[shown]),
        probabilities=p[shown].tolist(),
        ranks=ranks.tolist(),
        entropy=float(entropy) + 0.0,  # −0 becomes 0 if one token is certain
        varentropy=float((p * (finite + entropy) ** 2).sum()),
        conditional=conditional,
        unconditional=unconditional,
    )


def edit_steps(walked: Walked, shown: torch.Tensor, params: SamplingParams) -> Iterator[EditStep]:
    """Yield a step for each edit that changed something."""
    before = walked.raw
    for method, after in walked.edited_rows:
        banned = (after == NEGATIVE_INFINITY) & (before != NEGATIVE_INFINITY)
        changed = (after != before) & ~banned
        counts = int(changed.sum()), int(banned.sum()), int((after != NEGATIVE_INFINITY).sum())
        if any(counts[:2]):
            p = (after[shown].double() - after.double().logsumexp(0)).exp().tolist()
            yield EditStep(method, fields_of(params, method), *counts, list_numbers(after[shown]), p)
        before = after


def refinement_steps(
    before: Candidates, refined: Sequence[tuple[str, Candidates]], shown: torch.Tensor, params: SamplingParams
) -> Iterator[RefinementStep]:
    """Yield a step for each refinement, in order."""
    p = before.probabilities()
    for method, after in refined:
        logp, cut = after.logits.double().log_softmax(0), cut_from(before, p, after)
        p = logp.exp()
        yield RefinementStep(
            method,
            fields_of(params, method),
            before=before.ids.numel(),
            kept=after.ids.numel(),
            mass=cut.mass,
            entropy=float(-(p * logp).sum()) + 0.0,
            probabilities=where_in(after, p, shown),
            boundary=cut.boundary,
            cut_ids=cut.ids,
            cut_probabilities=cut.probabilities,
        )
        before = after


class Cut(NamedTuple):
    """The tokens that a refinement removed, as in `RefinementStep`: the kept mass, the boundary, and the likeliest
    removed tokens."""

    mass: float
    boundary: float | None
    ids: list[int]
    probabilities: list[float]


def cut_from(before: Candidates, p: torch.Tensor, after: Candidates) -> Cut:
    """Return the cut between two sets of candidates. p: float64 [n], the probabilities of the earlier set."""
    count = before.ids.numel() - after.ids.numel()
    if count == 0:
        return Cut(1.0, None, [], [])
    kept = mark_members(before.ids, after.ids)
    others = torch.where(kept, NEGATIVE_INFINITY, before.logits)
    likeliest = Candidates(before.ids, others, others).likeliest(min(MOST_CUT, count))
    least = torch.where(kept, before.logits, math.inf).argmin()
    from_below = bool(others.max() <= before.logits[least])
    return Cut(
        min(1.0, float(p[kept].sum())),
        float(p[least]) if from_below else None,
        before.ids[likeliest].tolist(),
        p[likeliest].tolist(),
    )


def fields_of(params: SamplingParams, method: str) -> dict[str, Any]:
    """The request's fields that belong to a method and are not at their default."""
    return {
        name: summarize_value(getattr(params, name))
        for name, declared in FIELDS.items()
        if method in (declared.edit, declared.refinement) and getattr(params, name) != declared.default
    }


def summarize_value(value: Any) -> Any:
    """Return a field's value for a record. Large values become their size, and a watermark has no keys."""
    if isinstance(value, Watermark):
        return {"kind": value.kind, "scheme": value.scheme}
    if isinstance(value, Mapping | tuple) and len(value) > MOST_ENTRIES:
        return f"{len(value)} entries"
    return value
