"""Watermarks: marked text is told from unmarked text by whoever has the key, and by nobody else."""

from __future__ import annotations

import pytest
import torch

from tailrace.params import SamplingParams
from tailrace.request.options import Watermark
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.reference import compute_distribution
from tailrace.sampling.watermark import detect, green_list

V = 500


def text(watermark: Watermark | None, length: int = 250, key: int = 5) -> list[int]:
    """Sampled at temperature 1 from a table of fairly flat rows."""
    table = torch.randn(64, V, generator=torch.Generator().manual_seed(2))
    slots = Slots(1, V)
    slots.add(0, SamplingParams(watermark=watermark), key=key, prompt=[1, 2, 3, 4])
    sampler, tokens = Sampler(slots), [1, 2, 3, 4]
    while len(tokens) < length:
        out = sampler(table[tokens[-1] % 64][None], Rows.plain([0], [0], [len(tokens)]))
        slots.commit([0], out.token_ids.tolist())
        tokens.append(int(out.token_ids[0, 0]))
    return tokens


@pytest.mark.parametrize(
    "mark", [Watermark(kind="kgw", key=77, context=1), Watermark(kind="synthid", key=77)], ids=["kgw", "synthid"]
)
def test_marked_text_is_detected_with_the_key_alone(mark):
    marked, plain = text(mark), text(None)
    assert detect(mark, marked) > 4
    assert abs(detect(mark, plain)) < 4
    other = Watermark(kind=mark.kind, key=78, context=mark.context)
    assert abs(detect(other, marked)) < 4


def test_the_green_list_is_its_share_of_the_vocabulary_and_depends_on_key_and_context():
    mark = Watermark(kind="kgw", key=1, gamma=0.25)
    green = green_list(mark, [3], 20_000)
    assert abs(len(green) - 5000) < 5 * (20_000 * 0.25 * 0.75) ** 0.5
    assert sorted(green.tolist()) == green.tolist()
    assert set(green) != set(green_list(mark, [4], 20_000))
    assert set(green) != set(green_list(Watermark(kind="kgw", key=2), [3], 20_000))


@pytest.mark.long
def test_the_tournament_keeps_the_distribution_on_average_over_keys():
    row = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    total = torch.zeros(5, dtype=torch.float64)
    keys = 1500
    for key in range(keys):
        slots = Slots(1, 5)
        slots.add(0, SamplingParams(watermark=Watermark(kind="synthid", key=key, depth=6)), key=1, prompt=[1, 2, 3, 4])
        candidates = compute_distribution(row, slots[0])
        total[candidates.ids] += candidates.probabilities()
    assert torch.allclose(total / keys, row.double().softmax(0), atol=0.03)


def test_a_context_that_was_there_before_is_not_marked():
    row = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])

    def marked(prompt: list[int]) -> bool:
        slots = Slots(1, 5)
        slots.add(0, SamplingParams(watermark=Watermark(kind="synthid", key=3, context=3)), key=1, prompt=prompt)
        candidates, p = compute_distribution(row, slots[0]), torch.zeros(5, dtype=torch.float64)
        p[candidates.ids] = candidates.probabilities()
        return not torch.allclose(p, row.double().softmax(0), atol=1e-6)

    assert marked([1, 2, 3])
    assert marked([4, 2, 3, 1, 2, 3])
    assert not marked([1, 2, 3, 0, 1, 2, 3])
    assert not marked([1, 1, 1, 1])  # they may overlap


def test_a_detector_needs_enough_tokens():
    with pytest.raises(ValueError, match="at least 5 tokens"):
        detect(Watermark(kind="kgw", key=1), [1, 2])
