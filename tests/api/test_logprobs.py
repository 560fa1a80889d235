"""OpenAI's two shapes of log-probabilities."""

from __future__ import annotations

import itertools
import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.harness import EOS, LocalClient, front_of, saying
from tailrace.api.logprobs import FLOOR, CompletionLogprobsWriter, Labels, chat_logprobs, finite
from tailrace.api.schema.chat import ChatLogprobs, TokenLogprob
from tailrace.wire.messages import TokenLogprobs

WAVE = "🌊".encode()


def sure(id: int) -> TokenLogprobs:
    return TokenLogprobs(0.0, 1, [id], [0.0])


def decoded(logprobs: ChatLogprobs) -> list[TokenLogprob]:
    return [msgspec.json.decode(entry, type=TokenLogprob) for entry in logprobs.content]


def test_written_json_is_what_the_schema_says(tokenizer):
    entry = TokenLogprobs(-math.inf, 3, [34, 92, 257, 37], [-0.25, -1e-30, -math.inf, -3.0], 1.5, 0.25)
    raw = chat_logprobs(Labels(tokenizer), [10], [entry], top=4).content[0]
    [got] = decoded(ChatLogprobs([raw]))
    assert json.loads(bytes(raw)) == json.loads(msgspec.json.encode(got))
    assert [(t.token, t.logprob) for t in got.top_logprobs] == [
        ('"', -0.25),
        ("\\", -1e-30),
        ("<|im_end|>", FLOOR),
        ("%", -3.0),
    ]
    assert (got.token, got.logprob, got.entropy, got.varentropy) == ("\n", FLOOR, 1.5, 0.25)


def test_minus_infinity_has_a_floor():
    assert finite(-math.inf) == FLOOR
    assert finite(-3.5) == -3.5


def test_chat_has_the_true_bytes_of_each_token(tokenizer):
    labels = Labels(tokenizer)
    entries = decoded(chat_logprobs(labels, [*WAVE, ord("a"), EOS], [sure(0)] * 6, top=0))
    assert [e.bytes for e in entries[:4]] == [[byte] for byte in WAVE]
    assert [e.token for e in entries] == [r"\xf0", r"\x9f", r"\x8c", r"\x8a", "a", "<|im_end|>"]
    assert b"".join(bytes(e.bytes) for e in entries[:5]) == WAVE + b"a"


def test_alternatives_are_cut_at_what_was_asked(tokenizer):
    entry = TokenLogprobs(-5.0, 9, [65, 66, 67], [-0.1, -1.0, -math.inf])
    [got] = decoded(chat_logprobs(Labels(tokenizer), [68], [entry], top=2))
    assert (got.token, got.logprob) == ("D", -5.0)
    assert [(t.token, t.logprob, t.bytes) for t in got.top_logprobs] == [("A", -0.1, [65]), ("B", -1.0, [66])]


def test_completions_list_the_drawn_token_too(tokenizer):
    entry = TokenLogprobs(-5.0, 9, [65, 66], [-0.1, -math.inf])
    lists = CompletionLogprobsWriter(Labels(tokenizer), 2, frozenset()).write([0xF0], [entry])
    assert lists.tokens == [r"bytes:\xf0"]
    assert lists.top_logprobs == [{"A": -0.1, "B": FLOOR, r"bytes:\xf0": -5.0}]


@given(text=st.text(max_size=30), cuts=st.lists(st.integers(0, 100), max_size=5))
def test_offsets_say_where_in_the_text_a_token_begins(tokenizer, text, cuts):
    """For any text and any way of cutting its tokens into pieces, with a hidden token before each."""
    ids = [i for byte in text.encode() for i in (EOS, byte)]
    writer = CompletionLogprobsWriter(Labels(tokenizer), 0, frozenset({EOS}))
    offsets = []
    edges = sorted({0, len(ids), *(min(c, len(ids)) for c in cuts)})
    for begin, end in itertools.pairwise(edges):
        offsets += writer.write(ids[begin:end], [sure(0)] * (end - begin)).text_offset
    wholes = [len(text.encode()[: i // 2].decode(errors="ignore")) for i in range(len(ids))]
    assert offsets == wholes


@pytest.mark.parametrize("mode", ["raw", "processed"])
async def test_over_http_banned_tokens_stay_valid_json(tokenizer, mode):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer) as front:
        ask = {"allowed_token_ids": [ord("b"), ord("a")], "max_tokens": 1, "logprobs_mode": mode}
        raw = (await front.chat(logprobs=True, top_logprobs=3, **ask)).text
        assert "Infinity" not in raw
        [entry] = json.loads(raw)["choices"][0]["logprobs"]["content"]
        assert entry["token"] == "a"
        assert entry["bytes"] == [ord("a")]
        tops = entry["top_logprobs"]
        if mode == "processed":  # two tokens share everything, nothing else is possible
            assert [(t["token"], round(t["logprob"], 4)) for t in tops[:2]] == [("a", -0.6931), ("b", -0.6931)]
            assert tops[2]["logprob"] == FLOOR
        else:  # the model itself was nearly sure of H
            assert (tops[0]["token"], tops[0]["logprob"]) == ("H", pytest.approx(0, abs=1e-6))
            assert entry["logprob"] == pytest.approx(-50, abs=0.01)


async def test_logprobs_are_as_many_as_tokens_and_absent_unless_asked(tokenizer):
    async with front_of(LocalClient(saying("né".encode())), tokenizer) as front:
        body = (await front.chat(logprobs=True)).json()
        assert len(body["choices"][0]["logprobs"]["content"]) == body["usage"]["completion_tokens"] == 4
        assert all(e["top_logprobs"] == [] for e in body["choices"][0]["logprobs"]["content"])
        assert (await front.chat(logprobs=False)).json()["choices"][0]["logprobs"] is None
