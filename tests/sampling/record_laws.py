"""What must hold of a record (tailrace/explain/record.py) whatever was asked: laws between its own numbers, and between
them and the row's logits. Nothing here walks the pipeline."""

from __future__ import annotations

import math
from typing import Any

import torch

from tailrace import kernels
from tailrace.explain.record import Explanation, RefinementStep
from tailrace.params import FIELDS

NONE = -math.inf
RESHAPING = {field.refinement for field in FIELDS.values() if field.kind == "reshape"} | {"synthid", "draft"}
STREAMS = (0, 2)  # of the noise: the draw's, the residual's
Number = float | None


def close(a: Any, b: Any, tolerance: float = 1e-6) -> bool:
    """Both None, or nearly the same."""
    return a is b if a is None or b is None else math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-12)


def check(record: Explanation, raw: torch.Tensor) -> None:
    """Raise AssertionError unless all laws hold. raw: float32 [V], what the row was drawn from."""
    check_shown(record, raw)
    check_edits(record, raw)
    check_refinements(record)
    check_draw(record)
    check_removed(record)


def check_shown(record: Explanation, raw: torch.Tensor) -> None:
    ids, model, n = record.ids, record.model, len(record.ids)
    assert len(set(ids)) == n
    draft = [record.draft.token] if record.draft and record.draft.rule != "exact" else []
    assert {record.token_id, record.draw.winner, *draft} <= set(ids)
    assert record.draw.runner_up is None or record.draw.runner_up in ids
    exact = raw.double().log_softmax(0)
    order = sorted(range(raw.numel()), key=lambda id: (-raw[id].item(), id))
    assert [order[rank - 1] for rank in model.ranks] == ids
    assert model.ranks == sorted(model.ranks)
    assert model.logits == [None if value == NONE else value for value in raw[ids].tolist()]
    assert all(close(p, math.exp(exact[id])) for id, p in zip(ids, model.probabilities, strict=True))
    finite = exact[exact.isfinite()]
    entropy = float(-(finite.exp() * finite).sum())
    assert close(model.entropy, entropy, 1e-5)
    assert abs(model.varentropy - float((finite.exp() * (finite + entropy) ** 2).sum())) <= 1e-6 * (1 + entropy**2)
    lists = [model.probabilities, model.ranks, record.removed_by, record.draw.noise, record.draw.scores]
    lists += [step.logits for step in record.edits] + [step.probabilities for step in record.edits]
    lists += [step.probabilities for step in record.refinements] + [record.draw.probabilities]
    assert all(len(values) == n for values in lists)
    for values in lists[:1] + lists[-len(record.refinements) - 1 :]:
        assert sum(value or 0.0 for value in values) <= 1.0 + 1e-9


def check_edits(record: Explanation, raw: torch.Tensor) -> None:
    left, before = int((raw != NONE).sum()), record.model.logits
    for step in record.edits:
        assert step.changed + step.banned > 0
        assert step.left == left - step.banned
        gone = [a is not None and b is None for a, b in zip(before, step.logits, strict=True)]
        moved = [a != b and b is not None for a, b in zip(before, step.logits, strict=True)]
        assert sum(gone) <= step.banned
        assert sum(moved) <= step.changed
        if len(record.ids) == raw.numel():
            assert (sum(gone), sum(moved)) == (step.banned, step.changed)
            assert close(sum(step.probabilities), 1.0)
        assert all((p == 0.0) for p, logit in zip(step.probabilities, step.logits, strict=True) if logit is None)
        left, before = step.left, step.logits


def check_refinements(record: Explanation) -> None:
    last = record.edits[-1] if record.edits else record.model
    before: list[Number] = [None if x is None else p for x, p in zip(last.logits, last.probabilities, strict=True)]
    count = record.edits[-1].left if record.edits else None
    for step in record.refinements:
        assert count is None or step.before == count or (step is record.refinements[0] and step.before <= count)
        assert 1 <= step.kept <= step.before
        assert 0.0 < step.mass <= 1.0
        assert (step.kept == step.before) == (not step.cut_ids)
        assert len(step.cut_ids) == min(5, step.before - step.kept)
        assert step.cut_probabilities == sorted(step.cut_probabilities, reverse=True)
        assert sum(step.cut_probabilities) <= 1.0 - step.mass + 1e-9
        if step.method not in RESHAPING:
            for old, new in zip(before, step.probabilities, strict=True):
                assert new is None or (old is not None and close(new, old / step.mass, 1e-5))
        check_cut(step, before, record.ids)
        assert -1e-9 <= step.entropy <= math.log(step.kept) + 1e-9
        before, count = step.probabilities, step.kept


def check_cut(step: RefinementStep, before: list[Number], ids: list[int]) -> None:
    """The boundary divides what was kept from what was cut."""
    olds = list(zip(ids, before, step.probabilities, strict=True))
    kept = [old for _, old, new in olds if new is not None and old is not None]
    cut = {id: old for id, old, new in olds if new is None and old is not None}
    named = dict(zip(step.cut_ids, step.cut_probabilities, strict=True))
    assert all(close(named[id], old) for id, old in cut.items() if id in named)
    if len(named) < 5:
        assert cut.keys() <= named.keys()
    if named:
        assert all(old <= min(named.values()) * (1 + 1e-6) for id, old in cut.items() if id not in named)
    if step.boundary is not None:
        assert all(old >= step.boundary * (1 - 1e-6) for old in kept)
        assert all(old <= step.boundary * (1 + 1e-6) for old in (*cut.values(), *named.values()))
    elif named and len(kept) == step.kept:
        assert max(named.values()) >= min(kept) * (1 - 1e-6)


def check_draw(record: Explanation) -> None:
    draw, ids = record.draw, record.ids
    if record.refinements:
        assert all(map(close, draw.probabilities, record.refinements[-1].probabilities))
    alive = [i for i, score in enumerate(draw.scores) if score is not None]
    assert alive == [i for i, p in enumerate(draw.probabilities) if p is not None]
    assert alive == [i for i, noise in enumerate(draw.noise) if noise is not None]
    order = sorted(alive, key=lambda i: (-draw.scores[i], ids[i]))  # pyright: ignore[reportOptionalOperand]
    assert ids[order[0]] == draw.winner
    best = draw.scores[order[0]]
    assert best is not None
    if len(order) > 1:
        second = draw.scores[order[1]]
        assert second is not None
        assert draw.margin is not None
        assert ids[order[1]] == draw.runner_up
        assert close(draw.margin, best - second)
        assert draw.margin >= 0.0
    elif draw.runner_up is None:
        assert draw.margin is None
    key, at = int(record.key, 16), torch.tensor([ids[i] for i in alive])
    key -= 2**64 if key >= 2**63 else 0
    noises = [kernels.gumbel(key, record.position, at, stream).tolist() for stream in STREAMS]
    for place, i in enumerate(alive):
        p, noise, score = draw.probabilities[i], draw.noise[i], draw.scores[i]
        assert p is not None
        assert noise is not None
        assert score is not None
        if draw.greedy:
            assert (p, noise) == (float(ids[i] == draw.winner), 0.0)
            assert score == (record.edits[-1].logits if record.edits else record.model.logits)[i]
        else:
            assert p == 0.0 or abs(math.log(p) + noise - score) < 1e-5 * (1.0 - math.log(p))
            assert noise in [one[place] for one in noises]


def check_removed(record: Explanation) -> None:
    stages: list[tuple[str, list[Number]]] = [("model", record.model.logits)]
    stages += [(step.method, step.logits) for step in record.edits]
    stages += [(step.method, step.probabilities) for step in record.refinements]
    stages.append(("model", record.draw.probabilities))
    for i, removed_by in enumerate(record.removed_by):
        first = next((method for method, values in stages if values[i] is None), "")
        assert removed_by == first or (removed_by == "model" and first)
