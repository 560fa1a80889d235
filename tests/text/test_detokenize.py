"""Deltas joined = decode of all ids: every kind of tokenizer, any ids, any chunking."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import ModelLoadError, RequestError
from tailrace.text.detokenize import detokenizer
from tailrace.text.tokenizer import Tokenizer
from text.vocabularies import ALL, KINDS, byte_level, spelled


@pytest.mark.parametrize("name", ALL)
def test_the_kind_is_recognised(name):
    assert ALL[name].kind == KINDS[name]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_case_16_deltas_joined_are_the_decode(name, skip, data):
    tokenizer = ALL[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    stream = detokenizer(tokenizer, tokenizer.special_ids if skip else frozenset())
    parts = [stream.feed(i) for i in ids]
    assert "".join(parts) + stream.flush() == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60))
def test_random_bytes_come_out_as_the_standard_says_and_as_early_as_they_can(data):
    tokenizer = ALL["byte-level"]
    ids = [tokenizer.backend.token_to_id(spelled(bytes([byte]))) for byte in data]
    stream = detokenizer(tokenizer)
    out = ""
    for count, i in enumerate(ids, 1):
        out += stream.feed(i)
        whole = data[:count].decode("utf-8", errors="replace")
        assert whole.startswith(out)
        assert len(whole) - len(out) <= 2  # one unfinished character; half a surrogate shows as two when cut off
    assert out + stream.flush() == data.decode("utf-8", errors="replace")


def test_a_missing_flush_is_seen():
    """The planted fault of servers that drop an unfinished character at the end."""
    tokenizer = ALL["byte-level"]
    ids = [tokenizer.backend.token_to_id(spelled(b"hello")), tokenizer.backend.token_to_id(spelled("😀".encode()[:2]))]
    stream = detokenizer(tokenizer)
    assert "".join(stream.feed(i) for i in ids) != tokenizer.decode(ids)


def test_case_17_odd_characters():
    """Lone continuation bytes, literal U+FFFD, empty tokens, combining marks and joiners, ids outside the vocabulary."""
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
    assert detokenizer(tokenizer, tokenizer.special_ids).feed(10**6) == ""  # an id without a token says nothing


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
@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=60), skip=st.booleans())
def test_default_model(model_folder, ids, skip):
    tokenizer = loaded(model_folder)
    stream = detokenizer(tokenizer, tokenizer.special_ids if skip else frozenset())
    assert "".join(map(stream.feed, ids)) + stream.flush() == tokenizer.decode(ids, skip_special_tokens=skip)


CACHE: dict[str, Tokenizer] = {}


def loaded(folder) -> Tokenizer:
    return CACHE.setdefault(str(folder), Tokenizer.load(folder))


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
