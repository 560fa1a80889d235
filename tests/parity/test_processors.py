"""One token at fixed logits: the same kept set and the same probabilities as transformers' processors."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EtaLogitsWarper,
    ExponentialDecayLengthPenalty,
    LogitNormalization,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tailrace.params import SamplingParams
from tailrace.sampling import Slots
from tailrace.sampling.reference import compute_distribution

V = 5000
PROMPT = [3, 3, 99, 4000, 7]
OUTPUT = [5, 3, 3, 8, 7, 3]
EOS = [4999, 4998]
GIVEN = torch.tensor([PROMPT])
CASES = {
    "temperature": ({"temperature": 0.6}, lambda: [TemperatureLogitsWarper(0.6)]),
    "top-k": ({"top_k": 50}, lambda: [TopKLogitsWarper(50)]),
    "top-p": ({"top_p": 0.9}, lambda: [TopPLogitsWarper(0.9)]),
    "top-p small": ({"top_p": 0.1}, lambda: [TopPLogitsWarper(0.1)]),
    "min-p": ({"min_p": 0.05}, lambda: [MinPLogitsWarper(0.05)]),
    "repetition penalty": ({"repetition_penalty": 1.3}, lambda: [RepetitionPenaltyLogitsProcessor(1.3)]),
    "eta": ({"eta_cutoff": 3e-4}, lambda: [EtaLogitsWarper(3e-4)]),
    "top-h": ({"top_h": 0.5}, lambda: [TopHLogitsWarper(0.5)]),
    "no-repeat n-gram": ({"no_repeat_ngram_size": 2}, lambda: [NoRepeatNGramLogitsProcessor(2)]),
    "of the prompt": ({"encoder_no_repeat_ngram_size": 2}, lambda: [EncoderNoRepeatNGramLogitsProcessor(2, GIVEN)]),
    "of the prompt, one": (
        {"encoder_no_repeat_ngram_size": 1},
        lambda: [EncoderNoRepeatNGramLogitsProcessor(1, GIVEN)],
    ),
    "encoder penalty": (
        {"encoder_repetition_penalty": 1.7},
        lambda: [EncoderRepetitionPenaltyLogitsProcessor(1.7, GIVEN)],
    ),
    "encoder penalty down": (
        {"encoder_repetition_penalty": 0.6},
        lambda: [EncoderRepetitionPenaltyLogitsProcessor(0.6, GIVEN)],
    ),
    "penalty of the output": (
        {"repetition_penalty": 1.3, "repetition_scope": "output"},
        lambda: [RepetitionPenaltyLogitsProcessor(1.3, prompt_ignore_length=len(PROMPT))],
    ),
    "normalised, as in beam search": (
        {"repetition_penalty": 1.3, "normalize_logits": True},
        lambda: [LogitNormalization(), RepetitionPenaltyLogitsProcessor(1.3)],
    ),
    "length decay": (
        {"exponential_decay_length_penalty": (2, 1.25)},
        lambda: [ExponentialDecayLengthPenalty((2, 1.25), EOS, len(PROMPT))],
    ),
    "length decay, at its start": (
        {"exponential_decay_length_penalty": (6, 1.25)},
        lambda: [ExponentialDecayLengthPenalty((6, 1.25), EOS, len(PROMPT))],
    ),
    "penalties of both, n-grams of both, and decay": (
        {
            "repetition_penalty": 1.1,
            "encoder_repetition_penalty": 1.2,
            "no_repeat_ngram_size": 3,
            "encoder_no_repeat_ngram_size": 2,
            "exponential_decay_length_penalty": (1, 1.1),
            "top_k": 4000,
        },
        lambda: [
            EncoderRepetitionPenaltyLogitsProcessor(1.2, GIVEN),
            RepetitionPenaltyLogitsProcessor(1.1),
            NoRepeatNGramLogitsProcessor(3),
            EncoderNoRepeatNGramLogitsProcessor(2, GIVEN),
            ExponentialDecayLengthPenalty((1, 1.1), EOS, len(PROMPT)),
            TopKLogitsWarper(4000),
            LogitNormalization(),
        ],
    ),
    "all, in our order": (
        {"temperature": 0.8, "min_p": 0.01, "top_k": 100, "top_p": 0.95, "repetition_penalty": 1.1},
        lambda: [
            RepetitionPenaltyLogitsProcessor(1.1),
            TemperatureLogitsWarper(0.8),
            MinPLogitsWarper(0.01),
            TopKLogitsWarper(100),
            TopPLogitsWarper(0.95),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_kept_set_and_probabilities(name, scale):
    fields, processors = CASES[name]
    logits = torch.randn(V, generator=torch.Generator().manual_seed(5)) * scale
    theirs = logits[None].clone()
    for processor in processors():
        theirs = processor(torch.tensor([PROMPT + OUTPUT]), theirs)
    expected = theirs.softmax(-1)[0]
    slots = Slots(1, V)
    slots.add(0, SamplingParams(**fields), key=1, prompt=PROMPT, output=OUTPUT, eos_token_ids=EOS)
    ours = compute_distribution(logits, slots[0])
    assert ours.ids.tolist() == theirs[0].isfinite().nonzero().squeeze(1).tolist()
    torch.testing.assert_close(ours.probabilities().float(), expected[ours.ids], atol=1e-5, rtol=1e-4)
