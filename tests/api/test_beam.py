"""Beam search: the algorithm against transformers' own on a small random model and against exhaustive search; and over HTTP."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from api.harness import EOS, VOCAB, LocalClient, front_of
from tailrace.api.beam import BeamSearch

COMPLETE = "/v1/completions"


def small_model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=23, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=2, max_position_embeddings=64, eos_token_id=2, pad_token_id=0, bos_token_id=1,
                         initializer_range=0.6)  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0, -1.0])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_beams_are_those_of_transformers(early, penalty, width):
    if width == 1 and early is not False:
        pytest.skip("transformers calls one beam greedy search")
    model = small_model()
    for prompt in ([5, 6, 7], [9, 3], [11, 12, 13, 14]):
        expected = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), num_beams=width,
            num_return_sequences=width, max_new_tokens=10, do_sample=False, length_penalty=penalty, early_stopping=early,
        )  # fmt: skip
        search = BeamSearch(width, 10, frozenset([2]), penalty, early)
        with torch.no_grad():
            while not search.done:
                rows = [
                    model(torch.tensor([[*prompt, *beam.tokens]])).logits[0, -1].log_softmax(-1)
                    for beam in search.running
                ]
                tops = [row.topk(min(search.candidates, 23)) for row in rows]
                search.step([list(zip(t.indices.tolist(), t.values.tolist(), strict=True)) for t in tops])
        ours = [list(beam.tokens) for beam in search.best(width)]
        said = [row[len(prompt) :].tolist() for row in expected]
        theirs = [row[: row.index(2) + 1] if 2 in row else row[:10] for row in said]  # what follows EOS is padding
        assert ours == theirs


def letters(ids: list[int]) -> torch.Tensor:
    """Seven letters, by the last one said."""
    logits = torch.full((VOCAB,), -30.0)
    logits[97:104] = torch.sin(torch.arange(7) * (1.0 + ids[-1] % 5)) * 2
    return logits


@pytest.fixture
async def front(tokenizer):
    async with front_of(LocalClient(letters), tokenizer) as made:
        yield made


async def test_a_wide_beam_finds_the_best_of_all(front):
    fields = {"prompt": "x=", "max_tokens": 3, "use_beam_search": True, "n": 2, "best_of": 49}
    answer = (await front.http.post(COMPLETE, json=fields)).json()

    def logprob(word: tuple[int, ...]) -> float:
        said, total = [*b"x="], 0.0
        for token in word:
            total += float(letters(said).double().log_softmax(0)[token])
            said.append(token)
        return total

    best = sorted(itertools.product(range(97, 104), repeat=3), key=logprob, reverse=True)[:2]
    assert [c["text"] for c in answer["choices"]] == [bytes(word).decode() for word in best]
    assert [c["finish_reason"] for c in answer["choices"]] == ["length"] * 2
    assert answer["usage"]["completion_tokens"] == 6
    assert math.isfinite(logprob(best[0]))
    await front.until(front.client.idle)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"), ({"seed": 1}, "seed"), ({"best_of": 1, "n": 2}, "best_of"), ({"best_of": 65}, "best_of"),
        ({"length_penalty": 11}, "length_penalty"), ({"prompt": ["a", "b"]}, "prompt"), ({"frequency_penalty": 1}, "frequency_penalty"),
    ],
)  # fmt: skip
async def test_what_a_beam_search_does_not_take(front, fields, param):
    answer = await front.http.post(COMPLETE, json={"prompt": "x=", "use_beam_search": True} | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_its_knobs_alone_are_refused(front):
    answer = await front.http.post(COMPLETE, json={"prompt": "x=", "length_penalty": 2.0})
    assert answer.json()["error"]["param"] == "length_penalty"
    for value in (True, "never"):  # True is 1.0, which was taken for the default of the other one
        answer = await front.http.post(COMPLETE, json={"prompt": "x=", "early_stopping": value})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "early_stopping"


def test_eos_finishes_a_beam_only_among_the_first():
    search = BeamSearch(2, 5, frozenset([EOS]))
    search.step([[(7, -0.1), (8, -0.2), (EOS, -3.0)]])
    assert not search.finished
    assert [beam.tokens for beam in search.running] == [(7,), (8,)]


async def test_chat_refuses_beams(front):
    answer = await front.http.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "use_beam_search": True}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "use_beam_search"
