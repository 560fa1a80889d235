"""The curves of the knobs say what the sampler does: each point that calls itself exact is what the reference pipeline
keeps, and the others are bounds; from records that show a few candidates of many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from tailrace.explain.record import ExplainOptions, Explanation
from tailrace.sampling import SamplingParams, Slots
from tailrace.sampling.explain import explain_row
from tailrace.sampling.pipeline import REFINEMENTS

if TYPE_CHECKING:
    from playwright.sync_api import Page

VOCAB = 300
AT = """async ([fields, record, values]) => {
  const { survival } = await import("./page/js/curves.js");
  const found = fields.map((field, i) => survival(field, record).at(values[i]));
  return found;
}"""
VALUES = {
    "top_k": (1, 2, 9, 12, 200),
    "top_p": (0.05, 0.4, 0.8, 0.99),
    "min_p": (0.9, 0.3, 0.05, 0.001),
    "top_a": (0.9, 0.1, 0.01),
    "epsilon_cutoff": (0.2, 0.03, 0.001),
    "eta_cutoff": (0.3, 0.05, 0.001),
    "typical_p": (0.05, 0.3, 0.9),
}


def record_of(row: torch.Tensor, top: int, **fields: Any) -> Explanation:
    slots = Slots(1, VOCAB)
    slots.add(0, SamplingParams(**fields), key=7, prompt=[1, 2, 3])
    slot = slots.slots[0]
    assert slot is not None
    return explain_row(row, slot, 3, ExplainOptions(top))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "base", [{}, {"temperature": 0.6}, {"temperature": 1.4, "top_k": 40}, {"presence_penalty": 3.0}]
)
def test_an_exact_point_is_what_the_sampler_keeps(modules: Page, base):
    exact = total = 0
    for seed, scale in enumerate((0.5, 1.5, 3.0)):
        row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * scale
        record = msgspec.to_builtins(record_of(row, 10, **base))
        asked = [(name, value) for name, values in VALUES.items() for value in values if name not in base]
        fields = [{"name": name, "low": 0, "high": 1, "forms": {"chat": "number"}} for name, _ in asked]
        found = modules.evaluate(AT, [fields, record, [value for _, value in asked]])
        for (name, value), point in zip(asked, found, strict=True):
            steps = {step.method: step for step in record_of(row, 10, **base, **{name: value}).refinements}
            step = steps[name]
            total += 1
            if point["exact"]:
                exact += 1
                assert (name, value, point["kept"]) == (name, value, step.kept)
                assert point["mass"] == pytest.approx(step.mass, abs=2e-6)
            else:
                assert point["kept"] <= step.kept
                assert point["mass"] <= step.mass + 1e-6
    assert 0.2 * total < exact < total  # both kinds are met


def test_a_bound_that_lies_would_be_seen(modules: Page):
    """Of a record that shows fewer than it says, a point calls itself exact, and is not."""
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    record = msgspec.to_builtins(record_of(row, 10))
    keep = [i for i in range(len(record["ids"])) if i != 4]
    model = record["model"]
    for name in ("logits", "probabilities"):
        model[name] = [model[name][i] for i in keep]
    model["ranks"] = list(range(1, len(keep) + 1))
    field = {"name": "min_p", "low": 0, "high": 1, "forms": {"chat": "number"}}
    share = model["probabilities"][7] / model["probabilities"][0] * 1.0001
    [point] = modules.evaluate(AT, [[field], record, [share]])
    [step] = record_of(row, 10, min_p=share).refinements
    assert point["exact"]
    assert point["kept"] != step.kept


def test_only_steps_of_methods_that_come_first_are_before_a_method(modules: Page):
    """Where the record has no step of the method, the default order says which steps come first."""
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(4))
    record = msgspec.to_builtins(record_of(row, 10, top_k=3, min_k=True))
    counted = "async ([record, method]) => (await import('./page/js/curves.js')).before(record, method).p.length"
    by_k, by_fall = (step["kept"] for step in record["refinements"])
    assert (by_k, by_fall) == (3, 1)
    order, kept = list(REFINEMENTS), {"temperature": len(record["ids"]), "top_k": by_k, "min_k": by_fall}
    for method in set(order) - {"top_k", "min_k"}:
        last = max((name for name in kept if order.index(name) <= order.index(method)), key=order.index)
        assert modules.evaluate(counted, [record, method]) == kept[last], method


def test_temperature_shares_the_probability_among_the_shown(modules: Page):
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    record = msgspec.to_builtins(record_of(row, 12))
    top = torch.sort(row, descending=True).values[:12]
    asked = """async ([record, t]) => (await import('./page/js/curves.js'))
      .warmth({name: 'temperature', low: 0, high: 2, forms: {}}, record).at(t)"""
    for t in (0.2, 1.0, 1.9):
        shares = modules.evaluate(asked, [record, t])
        assert shares[:12] == pytest.approx(torch.softmax(top / t, 0)[: len(shares)].tolist(), abs=0.02)
    assert modules.evaluate(asked, [record, 0])[0] == 1


def test_without_the_numbers_there_is_no_curve(modules: Page):
    """No record, no curve; and a field that no record can say anything of has none."""
    asked = "async ([field, record]) => (await import('./page/js/curves.js')).survival(field, record)"
    record = msgspec.to_builtins(record_of(torch.randn(VOCAB), 10))
    field = {"name": "top_p", "low": 0, "high": 1, "forms": {}}
    assert modules.evaluate(asked, [field, None]) is None
    assert modules.evaluate(asked, [field | {"name": "top_n_sigma"}, record]) is None
    assert modules.evaluate(asked, [field, record])["shown"] >= 10
