"""Text, ids, logprobs and finish reason are cut at the same place."""

from __future__ import annotations

import pickle
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.params import SamplingParams
from tailrace.text.output import TextStream
from tailrace.wire.messages import TokenLogprobs
from text.test_stop_strings import plain_search
from text.vocabularies import ALL, byte_level, spelled, spelled_out

TOKENIZER = byte_level()
EOS = TOKENIZER.backend.token_to_id("<|end|>")
TOOL = TOKENIZER.backend.token_to_id("<tool>")


def ids_of(*parts: str | bytes) -> list[int]:
    data = [part.encode() if isinstance(part, str) else part for part in parts]
    return [TOKENIZER.backend.token_to_id(spelled(part)) for part in data]


def entries(count: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(-float(i), 1, [], []) for i in range(count)]


@pytest.mark.parametrize("name", ["byte-level", "pieces", "metaspace"])
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_everything_agrees_under_any_chunking(name, data):
    tokenizer = ALL[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    stops = tuple(data.draw(st.lists(st.sampled_from(["stop", "o", "lo", "😀", "\ufffd", " st", "pé"]), max_size=3)))
    params = SamplingParams(stop=stops, logprobs=0, min_tokens=data.draw(st.integers(0, 3)))
    stream = TextStream(tokenizer, params)
    text, sent, logprobs, at, last = "", [], [], 0, None
    while at < len(ids) and last is None:
        size = data.draw(st.integers(1, 5))
        chunk = ids[at : at + size]
        delta = stream.feed(chunk, entries(len(ids))[at : at + size])
        at += size
        text, sent, logprobs = text + delta.text, sent + list(delta.token_ids), logprobs + list(delta.logprobs)
        last = delta if delta.finish_reason else None
        assert len(logprobs) == len(sent)
    if last is None:
        last = stream.flush("length")
        text, sent, logprobs = text + last.text, sent + list(last.token_ids), logprobs + list(last.logprobs)
    assert sent == ids[: len(sent)]
    assert [entry.logprob for entry in logprobs] == [-float(i) for i in range(len(sent))]
    assert stream.num_tokens == len(sent)
    whole = spelled_out(tokenizer, ids, skip=True)
    if last.stop_reason is None:
        assert (text, sent) == (whole, ids)
    else:
        assert last.finish_reason == "stop"
        assert whole.startswith(text + last.stop_reason)
    if params.min_tokens == 0:
        expected = plain_search(whole, stops)
        assert (text, last.stop_reason) == (expected if expected else (whole, None))


@pytest.mark.parametrize("name", ["byte-level", "pieces", "pieces, no strip", "word piece", "metaspace"])
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_what_tokens_spell_is_the_text(name, data):
    """Whatever stops it, the joined bytes of the tokens are the text, and offsets are positions in it."""
    tokenizer = ALL[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    stops = tuple(
        data.draw(st.lists(st.sampled_from(["stop", "o", "lo", "😀", "\ufffd", " st", "é", "a"]), max_size=3))
    )
    include = data.draw(st.booleans())
    params = SamplingParams(stop=stops, logprobs=0, include_stop_str_in_output=include, output_kind="final")
    stream = TextStream(tokenizer, params, [tokenizer.vocab_size - 1])
    at, last = 0, None
    while at < len(ids) and last is None:
        size = data.draw(st.integers(1, 5))
        delta = stream.feed(ids[at : at + size], entries(len(ids))[at : at + size])
        at, last = at + size, delta if delta.finish_reason else None
    whole = last or stream.flush("stop")
    assert len(whole.offsets) == len(whole.token_ids) == len(whole.logprobs)
    if name.startswith("pieces") and "\ufffd" in whole.text:
        return  # a run of malformed bytes is known to be malformed only at its end
    spelt = [whole.spelt.get(i, tokenizer.bytes_of(id)) for i, id in enumerate(whole.token_ids)]
    told = [part for part in spelt if part is not None]
    assert spelt == told + [None] * (len(spelt) - len(told))
    assert b"".join(told).decode(errors="replace") == whole.text
    for part, begin in zip(told, whole.offsets, strict=False):
        token_bytes = part.decode(errors="ignore")
        if token_bytes.encode() == part:
            assert whole.text[begin:].startswith(token_bytes)


BEGUN = "😀".encode()
CUT = {  # of a vocabulary: the text of a character of which two bytes came, and the bytes of its tokens
    "byte-level": ("\ufffd", [BEGUN[:1], BEGUN[1:2]]),
    "pieces": ("\ufffd\ufffd", [BEGUN[:1], BEGUN[1:2]]),
    "fallback, metaspace": ("\ufffd\ufffd", [b"", b""]),
}


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("size", [2, 4])
def test_tokens_of_a_cut_character_keep_their_bytes(name, size):
    """As docs/api/logprobs.md has it. A whole character's bytes are the text's."""
    tokenizer = ALL[name]
    forms = [(f"<0x{byte:02X}>", spelled(bytes([byte]))) for byte in BEGUN[:size]]
    ids = [tokenizer.backend.token_to_id(form[name == "byte-level"]) for form in forms]
    stream = TextStream(tokenizer, SamplingParams(logprobs=0, output_kind="final"))
    stream.feed([tokenizer.backend.token_to_id("hello"), *ids], entries(size + 1))
    whole = stream.flush("length")
    spelt = [whole.spelt.get(place, tokenizer.bytes_of(id)) for place, id in enumerate(whole.token_ids)]
    if size == 4:
        assert whole.text == b"".join(part or b"" for part in spelt).decode() == "hello😀"
    else:
        assert (whole.text, spelt) == (f"hello{CUT[name][0]}", [b"hello", *CUT[name][1]])


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_cuts_everything_at_the_token_that_completes_it(include):
    stream = TextStream(TOKENIZER, SamplingParams(stop=("stop",), include_stop_str_in_output=include, logprobs=0))
    first = stream.feed(ids_of("hello", "st"), entries(2))
    assert (first.text, first.token_ids) == ("hello", tuple(ids_of("hello")))  # "st" is held, with its id and logprob
    last = stream.feed(ids_of("op", " world"), entries(2))
    assert last.text == ("stop" if include else "")
    assert last.token_ids == tuple(ids_of("st", "op"))
    assert (last.finish_reason, last.stop_reason, stream.num_tokens) == ("stop", "stop", 3)
    with pytest.raises(RuntimeError):
        stream.feed([1])


def test_held_text_comes_at_every_other_end():
    for reason in ("length", "abort", "error"):
        stream = TextStream(TOKENIZER, SamplingParams(stop=("stop",)))
        assert stream.feed(ids_of("hello", "st", "😀".encode()[:2])).text == "hello"
        last = stream.flush(reason)
        assert (last.text, last.finish_reason, last.stop_reason) == ("st\ufffd", reason, None)
        with pytest.raises(RuntimeError):
            stream.flush(reason)


@pytest.mark.parametrize(
    ("params", "ender", "text", "stop_reason"),
    [
        ({}, EOS, "hello", None),
        ({"skip_special_tokens": False}, EOS, "hello", None),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, EOS, "hello<|end|>", None),
        ({"stop_token_ids": (TOOL,)}, TOOL, "hello", TOOL),
        ({"stop_token_ids": (TOOL,), "include_stop_str_in_output": True}, TOOL, "hello<tool>", TOOL),
        ({"ignore_eos": True, "stop_token_ids": (EOS,)}, EOS, "hello", EOS),
    ],
)
def test_the_token_that_ends_it(params, ender, text, stop_reason):
    stream = TextStream(TOKENIZER, SamplingParams(**params), [EOS])
    first = stream.feed([*ids_of("hello"), ender])
    last = stream.flush("stop", ender)
    assert first.text + last.text == text
    assert first.token_ids + last.token_ids == (*ids_of("hello"), ender)
    assert (last.finish_reason, last.stop_reason, stream.num_tokens) == ("stop", stop_reason, 2)


@pytest.mark.parametrize("cut", [1, 2, 3, 6])
def test_case_15_an_end_inside_a_block_of_tokens_cuts_everything_there(cut):
    """Several tokens may come at once (accepted drafts, a slow reader): ids, text, logprobs and count end at the same
    token."""
    ids = ids_of("hello", "st", "op", " world", "a", "b")
    stream = TextStream(TOKENIZER, SamplingParams(stop=("stop",), logprobs=0))
    deltas = []
    for start in range(0, len(ids), cut):
        deltas.append(stream.feed(ids[start : start + cut], entries(6)[start : start + cut]))
        if deltas[-1].finish_reason:
            break
    assert "".join(delta.text for delta in deltas) == "hello"
    assert [id for delta in deltas for id in delta.token_ids] == ids[:3]
    assert [entry.logprob for delta in deltas for entry in delta.logprobs or ()] == [0.0, -1.0, -2.0]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason, stream.num_tokens) == ("stop", "stop", 3)

    ids = [*ids_of("hello"), EOS, *ids_of(" world", "a")]
    stream = TextStream(TOKENIZER, SamplingParams(logprobs=0), [EOS])
    first, last = stream.feed(ids, entries(4)), stream.flush("stop", EOS)
    assert first.text + last.text == "hello"
    assert first.token_ids + last.token_ids == tuple(ids[:2])
    assert len((first.logprobs or ()) + (last.logprobs or ())) == stream.num_tokens == 2


def test_case_21_min_tokens_and_stops():
    """A stop string may end only in the text of tokens beyond the floor; its beginning may lie before."""
    stream = TextStream(TOKENIZER, SamplingParams(stop=("stop",), min_tokens=2))
    text = stream.feed(ids_of("stop", "st")).text
    assert text == "stop"
    last = stream.feed(ids_of("op"))
    assert (last.text, last.stop_reason) == ("", "stop")


def test_ignored_eos_is_ordinary_text():
    stream = TextStream(TOKENIZER, SamplingParams(ignore_eos=True, skip_special_tokens=False), [EOS])
    assert stream.feed([EOS, *ids_of("hello")]).text == "<|end|>hello"


@pytest.mark.parametrize("kind", ["cumulative", "final"])
def test_output_kinds(kind):
    stream = TextStream(TOKENIZER, SamplingParams(output_kind=kind, logprobs=0))
    deltas = [stream.feed([i], entries(1)) for i in ids_of("hello", " world")] + [stream.flush("length")]
    texts = [delta.text for delta in deltas]
    assert texts == (["hello", "hello world", "hello world"] if kind == "cumulative" else ["", "", "hello world"])
    assert deltas[-1].token_ids == tuple(ids_of("hello", " world"))
    assert len(deltas[-1].logprobs) == 2


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="token id -3"):
        TextStream(TOKENIZER, SamplingParams()).feed([-3])


@pytest.mark.parametrize("name", ["byte-level", "pieces"])
def test_case_18_what_is_kept_does_not_grow_with_the_text(name):
    """The bench shows that the cost per token is flat to 60,000 tokens; this is why."""
    tokenizer = ALL[name]
    stream = TextStream(tokenizer, SamplingParams(stop=("never there", "aaaaaaaaab"), max_tokens=None))
    ids = tokenizer.encode("Some text with é and 😀, ") * 50

    def size() -> int:
        parts = (stream, stream._detokenizer, stream._stops)
        return sum(
            len(
                pickle.dumps([v for k, v in vars(part).items() if isinstance(v, str | bytes | bytearray | deque | int)])
            )
            for part in parts
        )

    sizes = []
    for _ in range(60):
        for id in ids:
            stream.feed([id])
        sizes.append(size())
    assert stream.num_tokens > 60_000
    assert max(sizes) - sizes[0] < 40  # counters have more digits; nothing else
