"""Edits from vLLM's buffers of tokens (v2_edits.py), against a plain search and against the library's own edits."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import crowd  # noqa: F401  (sets Triton's interpreter before Triton is imported)
import pytest
import torch

from tailrace.integrations.vllm.v2_edits import EditedRows, edit_rows, list_edits
from tailrace.integrations.vllm.v2_history import TokenRows, read_tokens
from tailrace.kernels.gpu.agreements import find_agreements
from tailrace.params import SamplingParams
from tailrace.request.options import Watermark
from tailrace.sampling import Slots
from tailrace.sampling.history import Suffixes
from tailrace.sampling.processors import REGISTERED
from tailrace.sampling.reference import edit_row

ROWS, LONGEST, VOCAB, LETTERS, EOS, CPU = 6, 24, 11, 4, 5, torch.device("cpu")
IMAGE = 99  # an id without a logit
NGRAMS = ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size")


def make_states(drawn: random.Random, letters: list[int]) -> Any:
    """vLLM's buffers. Beyond a request's tokens they have those of earlier requests."""
    buffer = torch.tensor([[drawn.choice(letters) for _ in range(LONGEST)] for _ in range(ROWS)])
    lengths = [drawn.randint(1, LONGEST) for _ in range(ROWS)]
    prompts = [drawn.randint(1, length) for length in lengths]
    return SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=buffer.int()),
        total_len=SimpleNamespace(gpu=torch.tensor(lengths, dtype=torch.int32)),
        prompt_len=SimpleNamespace(gpu=torch.tensor(prompts, dtype=torch.int32)),
    )


def edit_drawn(
    drawn: random.Random, states: Any, params: list[SamplingParams]
) -> tuple[torch.Tensor, torch.Tensor, list[tuple[list[int], list[int]]]]:
    """Edit one row for each of these parameters. Return all logits before and after, and of each row prompt and
    output."""
    indices = drawn.sample(range(ROWS), len(params))
    lengths, prompts = (getattr(states, name).gpu[indices].tolist() for name in ("total_len", "prompt_len"))
    read = read_tokens(states, indices, max(lengths), VOCAB, CPU)
    logits = torch.randn(len(params) + 1, VOCAB, generator=torch.Generator().manual_seed(drawn.randrange(10**9))) * 3
    logits[:, 8] = -torch.inf
    places = torch.arange(1, len(params) + 1)
    found = edit_rows(logits, places, EditedRows(params, [[EOS]] * len(params), read))
    assert torch.equal(found[0], logits[0])
    texts = [states.all_token_ids.gpu[index].tolist() for index in indices]
    parts = [(text[:p], text[p:n]) for text, p, n in zip(texts, prompts, lengths, strict=True)]
    return logits[1:], found[1:], parts


def search_followers(tokens: list[int], end: int, size: int) -> set[int]:
    """The tokens that would complete an n-gram of the first `end` tokens again."""
    if size == 0 or len(tokens) < size - 1:
        return set()
    last = tokens[len(tokens) - size + 1 :]
    return {tokens[at + size - 1] for at in range(end - size + 1) if tokens[at : at + size - 1] == last}


def test_bans_are_those_of_a_plain_search() -> None:
    drawn, counts = random.Random(3), []
    for _ in range(200):
        states = make_states(drawn, [*range(LETTERS), IMAGE])
        sizes: list[dict[str, Any]] = [
            {name: drawn.choice([0, 1, 2, 3, 4, 30]) for name in NGRAMS} for _ in range(drawn.randint(1, 4))
        ]
        before, after, parts = edit_drawn(drawn, states, [SamplingParams(**one) for one in sizes])
        for row, (prompt, output) in enumerate(parts):
            ends: dict[str, int] = dict(zip(NGRAMS, (len(prompt + output), len(prompt)), strict=True))
            found = [search_followers(prompt + output, ends[name], size) for name, size in sizes[row].items()]
            banned = set().union(*found) - {IMAGE}
            wanted = before[row].clone()
            wanted[sorted(banned)] = -torch.inf
            assert torch.equal(after[row], wanted)
            counts.append(len(banned))
    assert {0, 1, 2, 3, 4} <= set(counts)


def double_last(row: torch.Tensor, tokens: list[int], base: float) -> torch.Tensor:
    """A custom processor of tailrace's: its result depends on the row and on the text."""
    return row * (base + 1.0 / len(tokens)) + torch.arange(VOCAB).eq(tokens[-1])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTERED, "doubling", double_last)


def draw_fields(drawn: random.Random) -> dict[str, Any]:
    """The fields of a request that vLLM's own kernels do not serve."""
    choices: list[dict[str, Any]] = [
        {"dry_multiplier": 0.8, "dry_base": drawn.choice([1.0, 1.75, 40.0]), "dry_allowed_length": drawn.randint(1, 3)},
        {"dry_multiplier": 1e4, "dry_base": 1e6, "dry_penalty_last_n": drawn.choice([-1, 0, 1, 7])},
        {"dry_multiplier": 1.0, "dry_sequence_breakers": tuple(drawn.sample(range(LETTERS), 2))},
        {"encoder_repetition_penalty": drawn.choice([0.6, 1.7])},
        {"exponential_decay_length_penalty": (drawn.randint(0, 4), drawn.choice([0.5, 1.3, 1e3]))},
        {"sequence_bias": (((1,), 1.0), ((2, 1), 0.1), ((0, 3, 1), -2.0), ((3, 3, 0, 2), 5.0), ((1, 2), 1e3))},
        {"no_repeat_ngram_size": drawn.randint(1, 3)},
        {"processors": {"doubling": {"base": drawn.choice([1.0, 2.0])}}},
        {"watermark": Watermark(kind="kgw", key=drawn.randrange(9), context=drawn.randint(1, 9), scheme="tailrace")},
        {"watermark": Watermark(kind="kgw", key=drawn.randrange(9), context=1, scheme="transformers", gamma=0.5)},
    ]
    fields: dict[str, Any] = {}
    for one in drawn.sample(choices, drawn.randint(1, 3)):
        fields |= one
    if drawn.random() < 0.7:
        fields |= {"repetition_penalty": drawn.choice([0.7, 1.4]), "frequency_penalty": 0.3, "presence_penalty": -0.2}
        fields |= {"penalty_last_n": drawn.choice([-1, 0, 1, 5])}
        fields |= {name: drawn.choice(["prompt", "output", "both"]) for name in ("repetition_scope", "penalty_scope")}
    return fields


def test_edits_are_those_of_the_library() -> None:
    drawn, changed = random.Random(4), 0
    for _ in range(300):
        states = make_states(drawn, list(range(LETTERS)))
        params = [SamplingParams(**draw_fields(drawn)) for _ in range(drawn.randint(1, 4))]
        before, after, parts = edit_drawn(drawn, states, params)
        slots = Slots(len(params), VOCAB)
        for row, (prompt, output) in enumerate(parts):
            slots.add(row, params[row], prompt=prompt, output=output, eos_token_ids=[EOS])
            wanted = edit_row(before[row], slots[row])
            assert torch.equal(after[row], wanted), params[row]
            changed += not torch.equal(wanted, before[row])
    assert changed > 500


def test_a_row_whose_processor_fails_keeps_its_largest_logit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the V1 runner. Its neighbours do not notice."""
    monkeypatch.setitem(REGISTERED, "failing", lambda row, tokens: row.resize_(3))
    fields: list[dict[str, Any]] = [{"processors": {"failing": {}}}, {"processors": {"doubling": {"base": 2.0}}}]
    for order in (fields, fields[::-1]):
        drawn = random.Random(7)
        params = [SamplingParams(**one) for one in order]
        before, after, _ = edit_drawn(drawn, make_states(drawn, [1, 2, 3]), params)
        failed = order.index(fields[0])
        assert after[failed].isfinite().nonzero().flatten().tolist() == [int(before[failed].argmax())]
        assert after[1 - failed].isfinite().sum() == VOCAB - 1


@pytest.mark.parametrize("most", [1, 3, 10**6])
def test_agreements_are_those_of_the_library(most: int) -> None:
    """Blocks of places that agree all the way, too."""
    drawn = random.Random(5)
    texts = [[drawn.randrange(letters) for _ in range(drawn.randint(1, 700))] for letters in (1, 1, 2, 3, 40)]
    tokens = torch.zeros((len(texts), 700), dtype=torch.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
    lengths = torch.tensor([len(text) for text in texts])
    found = find_agreements(tokens, lengths, torch.full((len(texts),), most))
    for row, text in enumerate(texts):
        wanted = torch.zeros(700, dtype=torch.int32)
        places, counts = Suffixes(text).find_agreements()
        wanted[torch.from_numpy(places)] = torch.from_numpy(counts).int().clamp(max=most)
        assert torch.equal(found[row], wanted)


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"repetition_penalty": 1.2}, set()),
        ({"repetition_penalty": 1.2, "penalty_last_n": 0}, {"penalties"}),
        ({"presence_penalty": 1.0, "penalty_scope": "both"}, {"penalties"}),
        ({"presence_penalty": 1.0, "dry_multiplier": 1.0}, {"penalties", "dry"}),
        ({"normalize_logits": True}, {"normalize_logits"}),
        ({"dry_multiplier": 1.0}, {"dry"}),
        ({"logit_bias": {1: 1.0}}, set()),
    ],
)
def test_penalties_are_vllms_unless_they_have_company(fields: dict[str, Any], left: set[str]) -> None:
    assert list_edits(SamplingParams(**fields)) == left


def test_a_prompt_in_parts_has_no_places_beyond_its_tokens() -> None:
    """Its length in vLLM's buffer is that of the whole prompt."""
    states = make_states(random.Random(6), [1, 2])
    states.total_len.gpu[:] = LONGEST
    read = read_tokens(states, [0, 1], 5, VOCAB, CPU)
    assert isinstance(read, TokenRows)
    assert read.tokens.shape == (2, 5)
    assert read.lengths.tolist() == [5, 5]
