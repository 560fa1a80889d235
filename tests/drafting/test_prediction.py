"""The reader of a prediction: where it finds the output again after a difference, and what it counts."""

from __future__ import annotations

import random

import pytest

from tailrace.drafting.prediction import REACH, SURE, Prediction, PredictionReader

LINES = [[1000 + line, 7, 8, *range(10 * line, 10 * line + 6), 9] for line in range(30)]  # with a frequent beginning
FILE = [token for line in LINES for token in line]


def follow(prediction: list[int], output: list[int], most: int = 16) -> tuple[int, int, PredictionReader]:
    """Write the output, and accept drafts that are right. Returns the steps, and the wrong drafts."""
    reader, tokens, steps, wrong = PredictionReader(Prediction(prediction)), [-5, -6], 1, 0
    tokens.append(output[0])
    while len(tokens) - 2 < len(output):
        reader.read(tokens, 2)
        rest = output[len(tokens) - 2 :]
        drafts = reader.draft(min(most, len(rest)))
        right = 0
        while right < len(drafts) and drafts[right] == rest[right]:
            right += 1
        tokens += rest[: right + 1]
        steps, wrong = steps + 1, wrong + len(drafts) - right
    reader.read(tokens, 2)
    return steps, wrong, reader


def join(*parts: list[list[int]]) -> list[int]:
    return [token for part in parts for line in part for token in line]


NEW = [[5000 + i for i in range(12)]]
EDITS = {
    "same": (FILE, 300),
    "a line inserted": (join(LINES[:10], NEW, LINES[10:]), 300),
    "a line deleted": (join(LINES[:10], LINES[11:]), 290),
    "a line changed": (join(LINES[:10], NEW, LINES[11:]), 290),
    "ten lines deleted": (join(LINES[:10], LINES[20:]), 200),
    "blocks in another order": (join(LINES[20:], LINES[:10], LINES[10:20]), 300),
    "a block twice": (join(LINES[:20], LINES[5:]), 300),
    "one token replaced": ([*FILE[:123], 77, *FILE[124:]], 299),
    "other tokens at the beginning": ([3, *FILE[2:]], 298),
    "a thought first": ([*range(6000, 6100), *FILE], 300),
}


@pytest.mark.parametrize(("output", "found"), EDITS.values(), ids=EDITS.keys())
def test_the_place_is_found_again(output, found):
    steps, wrong, reader = follow(FILE, output)
    new = len(set(output) - set(FILE))
    assert reader.num_found == found
    assert steps <= len(output) / 17 + new + 12
    assert wrong <= 40 + 2 * new


def test_a_wrong_prediction_has_few_drafts():
    rng = random.Random(1)
    output = [rng.randrange(10_000, 20_000) for _ in range(500)]
    steps, wrong, reader = follow(FILE, output)
    assert (steps, reader.num_found) == (500, 0)
    assert wrong <= 2  # at the beginning


def test_which_of_several_places_is_taken():
    repeated = Prediction([90, 1, 2, 50, 1, 2, 60, 1, 2, 70, 1, 2, 80])
    assert repeated.find_place([40, 1, 2], 6) == (9, 2)  # the nearest one behind the difference
    assert repeated.find_place([40, 1, 2], 13) == (12, 2)  # the nearest one before it
    assert repeated.find_place([60, 1, 2], 0) == (9, 3)  # the longest agreement
    assert repeated.find_place([2, 40], 0) == repeated.find_place([1], 0) == (0, 0)


def test_references_and_rewound_tokens_are_not_read():
    reader = PredictionReader(Prediction(FILE))
    reader.read([*FILE[:20], -1], 0)
    assert (reader.num_found, reader.draft(2)) == (20, FILE[20:22])
    reader.read(FILE[:30], 0)
    assert (reader.num_found, reader.draft(2)) == (30, FILE[30:32])
    reader.read(FILE[:12], 0)  # rewound
    assert (reader.num_found, reader.draft(2)) == (12, [])
    reader.read(FILE[:15], 0)
    assert reader.draft(2) == FILE[15:17]


def test_the_state_does_not_depend_on_the_steps():
    rng = random.Random(2)
    for kind, (output, _) in EDITS.items():
        once, stepwise = (PredictionReader(Prediction(FILE)) for _ in range(2))
        once.read(output, 0)
        at = 0
        while at < len(output):
            at += rng.randint(1, 9)
            stepwise.read(output[:at], 0)
        assert (once.num_found, once.draft(32)) == (stepwise.num_found, stepwise.draft(32)), kind


def test_what_is_found_is_at_most_the_output():
    for output in (FILE[:50] * 4, [1, 2] * 100, FILE[:3], [FILE[0]]):
        for prediction in (FILE, FILE[:50] * 3, [1, 2] * 40, FILE[:2], FILE[:1]):
            found = follow(prediction, output)[2].num_found
            assert 0 <= found <= min(len(output), len(prediction))
    assert follow(FILE[:2], FILE[:2])[2].num_found == 2  # shorter than what is sure
    assert follow(FILE, FILE[: SURE - 1])[2].num_found == 0


@pytest.mark.parametrize("length", [0, 1, 2, REACH])
def test_short_predictions(length):
    steps, _, reader = follow(FILE[:length], FILE[:40])
    assert steps <= 40
    assert reader.num_found == length
    assert reader.draft(5) == []


def test_one_token_over_and_over_takes_bounded_time():
    """Of many places that agree, a few are compared."""

    class Counting(tuple):
        reads = 0

        def __getitem__(self, key):
            Counting.reads += 1
            return super().__getitem__(key)

    prediction = Prediction([5] * 65_536)
    prediction.tokens = Counting(prediction.tokens)
    reader = PredictionReader(prediction)
    reader.read([5, 6] * 200 + [5, 5, 7] * 200, 0)
    assert Counting.reads < 1000 * 16 * 20
