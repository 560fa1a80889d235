"""OpenAI's two shapes of log-probabilities."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from api.harness import EOS, VOCAB, LocalClient, events, front_of, saying
from tailrace.api.logprobs import FLOOR, CompletionLogprobsWriter, Labels, chat_logprobs, clamp_logprob
from tailrace.api.schema.chat import ChatLogprobs, TokenLogprob
from tailrace.params import SamplingParams
from tailrace.text.output import Delta, TextStream
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import TokenLogprobs
from text.vocabularies import ALL

SENTENCE_PIECE = {
    name: ALL[name] for name in ("pieces", "pieces, no strip", "fallback, metaspace", "metaspace, fallback")
}
WAVE = "🌊".encode()


def sure(id: int) -> TokenLogprobs:
    return TokenLogprobs(0.0, 1, [id], [0.0])


def piece(ids: list[int], entries: list[TokenLogprobs], **more) -> Delta:
    return Delta("", tuple(ids), tuple(entries), offsets=(0,) * len(ids), **more)


def decoded(logprobs: ChatLogprobs) -> list[TokenLogprob]:
    return [msgspec.json.decode(entry, type=TokenLogprob) for entry in logprobs.content]


def test_written_json_is_what_the_schema_says(tokenizer):
    entry = TokenLogprobs(-math.inf, 3, [34, 92, 257, 37], [-0.25, -1e-30, -math.inf, -3.0], 1.5, 0.25)
    raw = chat_logprobs(Labels(tokenizer), piece([10], [entry]), top=4).content[0]
    [got] = decoded(ChatLogprobs([raw]))
    assert json.loads(bytes(raw)) == json.loads(msgspec.json.encode(got))
    assert [(t.token, t.logprob) for t in got.top_logprobs] == [
        ('"', -0.25),
        ("\\", -1e-30),
        ("%", -3.0),
    ]
    assert (got.token, got.logprob, got.entropy, got.varentropy) == ("\n", FLOOR, 1.5, 0.25)


def test_minus_infinity_has_a_floor():
    assert clamp_logprob(-math.inf) == FLOOR
    assert clamp_logprob(-3.5) == -3.5


def test_chat_has_the_true_bytes_of_each_token(tokenizer):
    labels = Labels(tokenizer)
    entries = decoded(chat_logprobs(labels, piece([*WAVE, ord("a"), EOS], [sure(0)] * 6), top=0))
    assert [e.bytes for e in entries[:4]] == [[byte] for byte in WAVE]
    assert [e.token for e in entries] == [r"\xf0", r"\x9f", r"\x8c", r"\x8a", "a", "<|im_end|>"]
    assert b"".join(bytes(e.bytes) for e in entries[:5]) == WAVE + b"a"


def test_alternatives_are_cut_at_what_was_asked(tokenizer):
    entry = TokenLogprobs(-5.0, 9, [65, 66, 67], [-0.1, -1.0, -math.inf])
    [got] = decoded(chat_logprobs(Labels(tokenizer), piece([68], [entry]), top=2))
    assert (got.token, got.logprob) == ("D", -5.0)
    assert [(t.token, t.logprob, t.bytes) for t in got.top_logprobs] == [("A", -0.1, [65]), ("B", -1.0, [66])]


def test_completions_list_the_drawn_token_too(tokenizer):
    entry = TokenLogprobs(-5.0, 9, [65, 66], [-0.1, -math.inf])
    lists = CompletionLogprobsWriter(Labels(tokenizer), 2).write(piece([0xF0], [entry]))
    assert lists.tokens == [r"bytes:\xf0"]
    assert lists.top_logprobs == [{"A": -0.1, r"bytes:\xf0": -5.0}]


def echoed(
    tokenizer: Tokenizer, ids: list[int], skip_special: bool = True
) -> tuple[CompletionLogprobsWriter, list[int]]:
    """A writer behind a prompt, and where the prompt's tokens begin."""
    writer = CompletionLogprobsWriter(Labels(tokenizer), 0)
    lists = writer.write_prompt(ids, [sure(id) for id in ids[1:]], skip_special=True)
    assert (lists.token_logprobs[0], lists.token_logprobs[1:]) == (None, [0.0] * (len(ids) - 1))
    return writer, lists.text_offset


@given(ids=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30))
@example(ids=[0xED, 0xA0])
@example(ids=[0xED, 0xA0, 0x80, 0x41])
def test_offsets_say_where_in_an_echoed_text_a_token_begins(tokenizer, ids):
    """For any bytes, malformed ones too, with hidden tokens among them: as many characters as the rest of the text is
    shorter."""
    data = [b"" if id >= 256 else bytes([id]) for id in ids]
    writer, offsets = echoed(tokenizer, ids)
    assert writer.write(piece([65], [sure(65)])).text_offset == [len(b"".join(data).decode(errors="replace"))]
    for at, offset in enumerate(offsets):
        if data[at]:  # of the text up to its first byte the last character is its own
            assert offset == len(b"".join([*data[:at], data[at][:1]]).decode(errors="replace")) - 1


@pytest.mark.parametrize("name", SENTENCE_PIECE)
@pytest.mark.parametrize("prompt", ["hello", "hello  lo 😀😀.", " hello", "op   stop", "é", "<s>hello"])
def test_offsets_with_sentencepiece(name, prompt):
    """The echoed text and what follows it, cut at the offsets, are the tokens; the text's first space is no token's."""
    tokenizer = ALL[name]
    ids = tokenizer.encode(prompt)
    more = tokenizer.backend.token_to_id("▁hello")
    text = tokenizer.decode(ids, skip_special_tokens=True)
    params = SamplingParams(logprobs=0, max_tokens=9)
    answer = TextStream(tokenizer, params, prompt=ids).feed([more, more], [sure(more)] * 2)
    assert text + answer.text == tokenizer.decode([*ids, more, more], skip_special_tokens=True)
    writer, offsets = echoed(tokenizer, ids)
    offsets += writer.write(answer).text_offset
    assert offsets[-2:] == [len(text), len(text) + len(" hello")]
    parts = [(text + answer.text)[a:b] for a, b in zip(offsets, [*offsets[1:], None], strict=True)]
    for part, id in zip(parts, [*ids, more, more], strict=True):
        own = tokenizer.text_of(id)
        assert part in (own, own.removeprefix(" "), "", "😀", "é")
    assert "".join(parts) == text + answer.text


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
            assert [(t["token"], round(t["logprob"], 4)) for t in tops] == [("a", -0.6931), ("b", -0.6931)]
        else:  # the model itself was nearly sure of H
            assert (tops[0]["token"], tops[0]["logprob"]) == ("H", pytest.approx(0, abs=1e-6))
            assert entry["logprob"] == pytest.approx(-50, abs=0.01)


async def test_logprobs_are_as_many_as_tokens_and_absent_unless_asked(tokenizer):
    async with front_of(LocalClient(saying("né".encode())), tokenizer) as front:
        body = (await front.chat(logprobs=True)).json()
        assert len(body["choices"][0]["logprobs"]["content"]) == body["usage"]["completion_tokens"] == 4
        assert all(e["top_logprobs"] == [] for e in body["choices"][0]["logprobs"]["content"])
        assert (await front.chat(logprobs=False)).json()["choices"][0]["logprobs"] is None


ANSWER = "né 🌊 STOP".encode() + b"\xf0\x9fa\xff!"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ({}, "né 🌊 STOP\ufffda\ufffd!"),
        ({"stop": "STOP"}, "né 🌊 "),
        ({"stop": "🌊"}, "né "),
        ({"stop_regex": " S"}, "né 🌊"),
        ({"stop": "STOP", "include_stop_str_in_output": True}, "né 🌊 STOP"),
        ({"stop_token_ids": [ord("S")]}, "né 🌊 "),
        ({"stop": "a"}, "né 🌊 STOP\ufffd"),
        ({"stop": "n"}, ""),
    ],
)
async def test_what_logprobs_spell_is_the_text_that_was_delivered(tokenizer, stop, text, stream):
    """Tokens of a stop are not told of; those that leave no text (EOS) have no bytes; and offsets are places in this
    text."""
    async with front_of(LocalClient(saying(ANSWER)), tokenizer) as front:
        chat = await front.chat(logprobs=True, stream=stream, **stop)
        old = await front.complete(logprobs=0, stream=stream, **stop)
    if stream:
        choices = [c for e in events(chat.text)[:-1] for c in e["choices"]]
        content = [e for c in choices for e in (c["logprobs"] or {"content": ()})["content"]]
        lists = [c for e in events(old.text)[:-1] for c in e["choices"]]
        tokens = [t for c in lists if c["logprobs"] for t in c["logprobs"]["tokens"]]
        offsets = [t for c in lists if c["logprobs"] for t in c["logprobs"]["text_offset"]]
        assert "".join(c["text"] for c in lists) == text
    else:
        [choice], [one] = chat.json()["choices"], old.json()["choices"]
        lists = one["logprobs"] or {"tokens": [], "text_offset": []}
        content, tokens, offsets = (
            (choice["logprobs"] or {"content": []})["content"],
            lists["tokens"],
            lists["text_offset"],
        )
        assert (choice["message"]["content"], one["text"]) == (text, text)
    assert b"".join(bytes(e["bytes"]) for e in content).decode(errors="replace") == text
    for token, offset, end in zip(tokens, offsets, [*offsets, len(text)][1:], strict=True):
        if not token.startswith("bytes:"):
            assert text[offset:end] == token or (token in ("<|im_end|>", "S") and offset == len(text))


async def test_a_token_that_is_named_twice_is_listed_once(tokenizer):
    async with front_of(LocalClient(saying(b"ab")), tokenizer) as front:
        named = {"logprob_token_ids": [97, 98, 97, 98], "max_tokens": 1}
        chat = (await front.chat(logprobs=True, **named)).json()["choices"][0]["logprobs"]["content"][0]
        assert [entry["token"] for entry in chat["top_logprobs"]] == ["a", "b"]


async def test_tokens_are_named_by_their_ids_where_a_request_asks(tokenizer):
    """As in vLLM: the names alone change, and bytes stay the true ones."""

    def script(ids: list[int]) -> torch.Tensor:
        logits = torch.zeros(VOCAB)
        logits[98 if ids[-1] == 97 else 97] = 50.0
        return logits

    async with front_of(LocalClient(script), tokenizer) as front:
        fields = {"max_tokens": 2, "return_tokens_as_token_ids": True}
        plain, named = [
            (await front.chat(logprobs=True, top_logprobs=1, **fields | {"return_tokens_as_token_ids": on})).json()
            for on in (False, True)
        ]
        entries = named["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in entries] == ["token_id:97", "token_id:98"]
        assert [entry["top_logprobs"][0]["token"] for entry in entries] == ["token_id:97", "token_id:98"]
        for entry, before in zip(entries, plain["choices"][0]["logprobs"]["content"], strict=True):
            assert (entry["bytes"], entry["logprob"]) == (before["bytes"], before["logprob"])
        assert named["choices"][0]["message"] == plain["choices"][0]["message"]
        text = (await front.complete(logprobs=1, echo=True, **fields)).json()["choices"][0]
        assert text["text"] == "x=ab"
        assert text["logprobs"]["tokens"] == [f"token_id:{id}" for id in b"x=ab"]
        assert text["logprobs"]["text_offset"] == [0, 1, 2, 3]
        assert list(text["logprobs"]["top_logprobs"][2]) == ["token_id:97"]
        body = {"input": "hi", "include": ["message.output_text.logprobs"], "max_output_tokens": 2}
        answer = (await front.http.post("/v1/responses", json=body | {"return_tokens_as_token_ids": True})).json()
        listed = answer["output"][0]["content"][0]["logprobs"]
        assert [entry["token"] for entry in listed] == ["token_id:97", "token_id:98"]

        # without logprobs there is nothing to name
        for on in (False, True):
            of_ids = {"return_tokens_as_token_ids": on, "seed": 1, "max_tokens": 2}
            for ask in (front.chat, front.complete):
                without = {name: value for name, value in of_ids.items() if name != "return_tokens_as_token_ids"}
                answers = [(await ask(**one)).json()["choices"] for one in (of_ids, without)]
                assert answers[0] == answers[1]


async def test_half_a_character_is_named_by_its_id_too(tokenizer):
    """Where the text has other bytes of a token than its own, or no whole character."""
    async with front_of(LocalClient(saying("é".encode())), tokenizer) as front:
        answer = (await front.complete(logprobs=0, max_tokens=2, return_tokens_as_token_ids=True)).json()
        assert answer["choices"][0]["logprobs"]["tokens"] == ["token_id:195", "token_id:169"]
