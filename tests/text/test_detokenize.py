"""Deltas joined = decode of all ids: every kind of tokenizer, any ids, any chunking."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.errors import ModelLoadError, RequestError
from tailrace.text.detokenize import detokenizer
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.vocabulary import step_names
from text.vocabularies import ALL, KINDS, broken, byte_level, spelled, spelled_out


@pytest.mark.parametrize("name", ALL)
def test_the_kind_is_recognised(name):
    assert ALL[name].kind == KINDS.get(name, "library")


def bytes_as_ids(tokenizer: Tokenizer, data: bytes) -> st.SearchStrategy[list[int]]:
    """A character's bytes one by one, perhaps not all of them."""
    forms = [(f"<0x{byte:02X}>", spelled(bytes([byte]))) for byte in data]
    ids = [tokenizer.backend.token_to_id(fallback) or tokenizer.backend.token_to_id(own) for fallback, own in forms]
    return st.sampled_from([[id for id in ids[first:] if id is not None] for first in range(3)])


def any_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any tokens, and characters in bytes among them."""
    any_id = st.integers(0, tokenizer.vocab_size - 1).map(lambda id: [id])
    run = st.sampled_from(["é", "😀", "👨\u200d👩"]).flatmap(lambda text: bytes_as_ids(tokenizer, text.encode()))
    return st.lists(any_id | run, max_size=40).map(lambda parts: [id for part in parts for id in part])


def bytes_ids(tokenizer: Tokenizer) -> list[int]:
    """😀 in four tokens; [] where the vocabulary has no bytes."""
    return [
        id
        for byte in "😀".encode()
        for form in (f"<0x{byte:02X}>", spelled(bytes([byte])))
        if (id := tokenizer.backend.token_to_id(form)) is not None
    ]


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=examples(80), deadline=None)
@given(data=st.data())
def test_case_16_deltas_joined_are_the_decode(name, skip, data):
    tokenizer = ALL[name]
    ids = data.draw(any_ids(tokenizer))
    stream = detokenizer(tokenizer, tokenizer.special_ids if skip else frozenset())
    parts = [stream.feed(i) for i in ids]
    assert "".join(parts) + stream.flush() == spelled_out(tokenizer, ids, skip)


@pytest.mark.parametrize("name", [name for name, tokenizer in ALL.items() if bytes_ids(tokenizer)])
def test_a_character_comes_out_with_its_last_byte(name):
    tokenizer = ALL[name]
    stream, ids = detokenizer(tokenizer), bytes_ids(tokenizer)
    said = [stream.feed(id) for id in ids * 8]
    assert said == ([""] * (len(ids) - 1) + ["😀"]) * 8
    assert stream.flush() == ""


@pytest.mark.parametrize("name", [name for name, tokenizer in ALL.items() if bytes_ids(tokenizer)])
def test_what_follows_malformed_bytes_comes(name):
    """Whatever stood there: the bytes before and behind them, and text."""
    tokenizer = ALL[name]
    word = next(id for form in ("hello", "▁hello") if (id := tokenizer.backend.token_to_id(form)) is not None)
    emoji = bytes_ids(tokenizer)
    stream = detokenizer(tokenizer)
    said = "".join(map(stream.feed, [word, *emoji, *emoji[:2], *emoji, word, emoji[1], word])) + stream.flush()
    lost = 2 if "ByteFallback" in step_names(tokenizer.decoder) else 1
    assert said == f"hello😀{'�' * lost}😀hello�hello"


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=examples(80), deadline=None)
@given(data=st.data())
def test_the_prompts_end_goes_on(name, skip, data):
    """decode(prompt) + deltas = decode(prompt + output) if the latter begins with the former; otherwise all that
    differs is returned."""
    tokenizer = ALL[name]
    ids = data.draw(any_ids(tokenizer))
    cut = data.draw(st.integers(0, len(ids)))
    prompt, output = ids[:cut], ids[cut:]
    stream = detokenizer(tokenizer, tokenizer.special_ids if skip else frozenset(), prompt)
    said = "".join(map(stream.feed, output)) + stream.flush()
    before, whole = (tokenizer.decode(ids, skip_special_tokens=skip) for ids in (prompt, ids))
    if broken(tokenizer, [id for id in ids if not skip or id not in tokenizer.special_ids]) or (
        broken(tokenizer, [id for id in prompt if not skip or id not in tokenizer.special_ids])
    ):
        return  # in the library, a run of bytes that was text may turn out to be none
    if whole.startswith(before):
        assert said == whole.removeprefix(before)
    else:
        assert whole.endswith(said)
        assert before.startswith(whole.removesuffix(said).rstrip("\ufffd"))


@pytest.mark.parametrize("name", [name for name, tokenizer in ALL.items() if bytes_ids(tokenizer)])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_that_begins_in_the_prompt_comes_whole(name, cut):
    tokenizer = ALL[name]
    ids = bytes_ids(tokenizer)
    hello = next(id for form in ("hello", "▁hello") if (id := tokenizer.backend.token_to_id(form)) is not None)
    for prompt in ([], [hello]):
        stream = detokenizer(tokenizer, prompt=[*prompt, *ids[:cut]])
        assert "".join(map(stream.feed, ids[cut:])) + stream.feed(hello) == "😀" + (
            " hello" if tokenizer.backend.token_to_id("hello") is None else "hello"
        )
        stream = detokenizer(tokenizer, prompt=[*prompt, *ids[:cut]])
        assert stream.feed(hello).lstrip(" ") == "hello"  # nothing that the prompt's text already has as U+FFFD


@pytest.mark.parametrize("name", [name for name, one in ALL.items() if one.backend.token_to_id("<0x41>") is not None])
def test_what_the_prompt_has_of_a_malformed_run_counts_for_no_token(name):
    tokenizer = ALL[name]
    begun, more, a, hello = (tokenizer.backend.token_to_id(token) for token in ("<0xF0>", "<0x9F>", "<0x41>", "hello"))
    stream = detokenizer(tokenizer, prompt=[hello, begun])
    assert (stream.feed(a), stream.lead) == ("A", 0)
    stream = detokenizer(tokenizer, prompt=[hello, begun])
    assert (stream.feed(more), stream.feed(a), stream.lead) == ("", "\ufffdA", 1)
    assert (stream.feed(begun), stream.feed(hello), stream.lead) == ("", "\ufffdhello", 1)


@settings(max_examples=examples(300), deadline=None)
@given(data=st.binary(max_size=60))
@example(data=b"\xed\xa0\x80")  # a surrogate: Python's own decoder waits for its third byte
@example(data=b"\xed\xa0")
def test_random_bytes_come_out_as_the_standard_says_and_as_early_as_they_can(data):
    tokenizer = ALL["byte-level"]
    ids = [tokenizer.backend.token_to_id(spelled(bytes([byte]))) for byte in data]
    stream = detokenizer(tokenizer)
    out = ""
    for count, i in enumerate(ids, 1):
        out += stream.feed(i)
        whole = data[:count].decode("utf-8", errors="replace")
        assert whole.startswith(out)
        assert len(whole) - len(out) <= 1  # one unfinished character
    assert out + stream.flush() == data.decode("utf-8", errors="replace")


@pytest.mark.parametrize("name", [name for name, tokenizer in ALL.items() if tokenizer.kind == "library"])
def test_text_behind_malformed_bytes_still_streams(name):
    """The library's own stream stops at text that changes backwards: it then returns nothing more, and no stop is
    found."""
    tokenizer = ALL[name]
    bad = [tokenizer.backend.token_to_id(form) for form in ("<0x0A>", "<0xE5>", spelled(b"\n"), spelled(b"\xff"))]
    word = next(id for form in ("hello", "▁hello") if (id := tokenizer.backend.token_to_id(form)) is not None)
    stream = detokenizer(tokenizer)
    for id in [word, *[id for id in bad if id is not None]]:
        stream.feed(id)
    assert "hello" in stream.feed(word)


def test_a_missing_flush_is_seen():
    """The planted fault of servers that drop an unfinished character at the end."""
    tokenizer = ALL["byte-level"]
    ids = [tokenizer.backend.token_to_id(spelled(b"hello")), tokenizer.backend.token_to_id(spelled("😀".encode()[:2]))]
    stream = detokenizer(tokenizer)
    assert "".join(stream.feed(i) for i in ids) != tokenizer.decode(ids)


def test_case_17_odd_characters():
    """Lone continuation bytes, literal U+FFFD, empty tokens, combining marks, joiners, ids outside the vocabulary."""
    tokenizer = byte_level()

    def out(*parts: bytes) -> str:
        stream = detokenizer(tokenizer, tokenizer.special_ids)
        return "".join(stream.feed(tokenizer.backend.token_to_id(spelled(part))) for part in parts) + stream.flush()

    assert out(b"\x80\x80") == "\ufffd\ufffd"
    assert out("�".encode(), b"a") == "\ufffda"
    assert out(b"", b"a", b"", b"") == "a"
    assert out(b"a\xf0\x9f", b"\x98", b"\x80") == "a😀"
    assert out(*[bytes([byte]) for byte in "👨‍👩‍👧e\u0301".encode()]) == "👨‍👩‍👧e\u0301"
    for bad in (-1, 2**40):
        with pytest.raises(ValueError, match="token id"):
            tokenizer.check([1, bad])
    assert detokenizer(tokenizer, tokenizer.special_ids).feed(10**6) == ""  # an id without a token adds nothing


def test_special_tokens_can_be_shown():
    tokenizer = byte_level()
    special, other = (tokenizer.backend.token_to_id(t) for t in ("<|end|>", "<tool>"))
    for skip, text in ((True, "<tool>"), (False, "<|end|><tool>")):
        stream = detokenizer(tokenizer, tokenizer.special_ids if skip else frozenset())
        assert stream.feed(special) + stream.feed(other) + stream.flush() == text


def test_bytes_of_are_the_tokens_own():
    tokenizer = byte_level()
    half = "😀".encode()[:2]
    assert tokenizer.bytes_of(tokenizer.backend.token_to_id(spelled(half))) == half
    assert ALL["pieces"].bytes_of(3 + 0xF0) == b"\xf0"
    assert ALL["pieces"].bytes_of(ALL["pieces"].backend.token_to_id("▁hello")) == b" hello"


# ---- the default model's tokenizer


@pytest.mark.model
@settings(max_examples=examples(200), deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=60), skip=st.booleans())
def test_default_model(model_folder, ids, skip):
    tokenizer = loaded(model_folder)
    stream = detokenizer(tokenizer, tokenizer.special_ids if skip else frozenset())
    assert "".join(map(stream.feed, ids)) + stream.flush() == tokenizer.decode(ids, skip_special_tokens=skip)


@lru_cache
def loaded(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.mark.model
def test_default_model_chat_and_spellings(model_folder):
    tokenizer = loaded(model_folder)
    assert tokenizer.kind == "bytes"
    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids).endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.special_ids >= {0, 1, 2}
    assert {tokenizer.decode(word) for word in tokenizer.bad_word_ids("cat")} == {"cat", " cat"}
    assert tokenizer.encode("12345") == [tokenizer.encode(digit)[0] for digit in "12345"]


@pytest.mark.model
def test_default_model_agrees_with_transformers(model_folder):
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(model_folder), loaded(model_folder)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me: 1 + 1 = ? 😀\n"}]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.encode_chat(messages) == list(expected)
    text = "Hello, wörld!  def f(x):\n\treturn x**2  # 12345\n"
    assert ours.encode(text) == theirs(text)["input_ids"]


def test_errors_are_clear(tmp_path):
    with pytest.raises(ModelLoadError, match="no usable tokenizer"):
        Tokenizer.load(tmp_path)
    with pytest.raises(RequestError, match="no chat template"):
        ALL["pieces"].encode_chat([{"role": "user", "content": "hi"}])
    strict = Tokenizer(ALL["pieces"].backend, "{{ raise_exception('no system role') }}")
    with pytest.raises(RequestError, match="no system role"):
        strict.encode_chat([{"role": "system", "content": "hi"}])
    sandboxed = Tokenizer(ALL["pieces"].backend, "{{ messages.__class__.__mro__ }}")
    with pytest.raises(RequestError):
        sandboxed.encode_chat([])
