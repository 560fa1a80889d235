"""Every decoder of the tokenizers library, and any sequence of decoders, as a stream: deltas joined = its decode."""

from __future__ import annotations

from functools import cache

import pytest
import tokenizers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models

from examples import examples
from tailrace.errors import ModelLoadError
from tailrace.text.decoder import KINDS, make_steps
from tailrace.text.detokenize import LibraryDetokenizer
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.utf8 import UNKNOWN
from text.vocabularies import FALLBACK, FUSE, REPLACE, STRIP, broken, spelled_out

STEPS = {
    "space": REPLACE,
    "two to a space": decoders.Replace("▁▁", " "),
    "two spaces": decoders.Replace("  ", " "),
    "mark": decoders.Replace(" .", "."),
    "lo": decoders.Replace("lo", "x"),
    "é": decoders.Replace("é", ""),
    "stop": decoders.Replace("stop", "end"),
    "spaces": decoders.Replace(Regex(" +"), " "),
    "fallback": FALLBACK,
    "fuse": FUSE,
    "strip": STRIP,
    "strip two": decoders.Strip(" ", 2, 0),
    "strip h": decoders.Strip("h", 1, 0),
    "metaspace": decoders.Metaspace(),
    "metaspace, never": decoders.Metaspace(prepend_scheme="never"),
    "metaspace, first": decoders.Metaspace(prepend_scheme="first"),
    "word piece": decoders.WordPiece(),
    "word piece, as it is": decoders.WordPiece(cleanup=False),
    "suffix": decoders.BPEDecoder(),
    "suffix ▁": decoders.BPEDecoder(suffix="▁"),
    "ctc": decoders.CTC(),
    "ctc, lo": decoders.CTC(pad_token="lo", word_delimiter_token="▁", cleanup=False),
    "byte level": decoders.ByteLevel(),
}
WORDS = [
    "▁",
    "▁hello",
    "hello",
    "▁▁",
    "lo",
    "é",
    "😀",
    "stop",
    "▁st",
    "op",
    ".",
    "▁.",
    "##lo",
    "##op",
    "hello</w>",
    "|",
]
WORDS += ["<pad>", "▁▁▁", "st", "h", "Ġa", "a", "'s", "▁'s", "�", " ", "", "top"]
BYTES_OF = ("é", "😀", "▁", " ", "a", "  ", "▁▁", "lo", "st", "l")
REAL = {  # of models that people serve, and what they would be with one more step
    "llama": ("space", "fallback", "fuse", "strip"),
    "gemma": ("space", "fallback", "fuse"),
    "fallback, replace": ("fallback", "space"),
    "spaces in a row become one": ("space", "fallback", "fuse", "two spaces"),
    "no space before a mark": ("space", "fallback", "fuse", "strip", "mark"),
    "fused first": ("fallback", "fuse", "space", "strip two"),
    "fallback, metaspace": ("fallback", "metaspace"),
    "bytes and more": ("byte level", "stop"),
    "bert": ("word piece",),
    "gpt": ("suffix",),
    "wav2vec": ("ctc",),
    "t5": ("metaspace",),
    "none": (),
}


@cache
def made(names: tuple[str, ...]) -> Tokenizer:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for word in WORDS:
        vocab.setdefault(word, len(vocab))
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    steps = [STEPS[name] for name in names]
    if steps:
        tokenizer.decoder = steps[0] if len(steps) == 1 else decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return Tokenizer(tokenizer)


ANY_DECODER = st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=4).map(tuple)
FIRST_WORD, END = 259, 259 + len(WORDS)
SPELT = st.sampled_from(BYTES_OF).map(lambda text: [3 + byte for byte in text.encode()])
TOKEN = st.integers(FIRST_WORD, END).map(lambda id: [id]) | st.sampled_from([[1], [2]])
IDS = st.lists(TOKEN | SPELT, max_size=24).map(lambda parts: [id for part in parts for id in part])
WITH_BAD_BYTES = st.lists(
    TOKEN | SPELT.filter(lambda ids: ids[0] > 3 + 0x80) | st.integers(3 + 0x80, 258).map(lambda id: [id]), max_size=24
).map(lambda parts: [id for part in parts for id in part])


def stream_of(tokenizer: Tokenizer, skip: bool, prompt: list[int]) -> LibraryDetokenizer:
    return LibraryDetokenizer(tokenizer, tokenizer.special_ids if skip else frozenset(), prompt)


def joined(tokenizer: Tokenizer, ids: list[int], skip: bool, prompt: list[int] | None = None) -> str:
    stream = stream_of(tokenizer, skip, prompt or [])
    return "".join(map(stream.feed, ids)) + stream.flush()


def ids_of(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    return [id for token in tokens if (id := tokenizer.backend.token_to_id(token)) is not None]


@settings(max_examples=examples(2000), deadline=None)
@given(names=ANY_DECODER, ids=IDS, skip=st.booleans())
@example(names=("space", "fallback", "fuse", "two spaces"), ids=[3 + 0x20, FIRST_WORD, FIRST_WORD + 1], skip=True)
def test_deltas_joined_are_the_decode_for_any_decoder(names, ids, skip):
    tokenizer = made(names)
    assert joined(tokenizer, ids, skip) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=examples(200), deadline=None)
@given(ids=WITH_BAD_BYTES, skip=st.booleans())
def test_deltas_joined_are_the_decode_for_real_decoders(name, ids, skip):
    """Malformed bytes too. In a malformed run each byte that is no character's becomes U+FFFD, and no other does."""
    tokenizer = made(REAL[name])
    shown = [id for id in ids if not skip or id not in tokenizer.special_ids]
    assume(not any("▁".encode() in data for data in broken(tokenizer, shown)))  # it is replaced here
    assert joined(tokenizer, ids, skip) == spelled_out(tokenizer, ids, skip)


@settings(max_examples=examples(600), deadline=None)
@given(names=ANY_DECODER | st.sampled_from(list(REAL.values())), ids=IDS, skip=st.booleans(), at=st.integers(0, 30))
def test_prompts_end_goes_on(names, ids, skip, at):
    """The prompt's text and the deltas are the text of both, as long as the output does not change the prompt's text.
    Otherwise all that differs is returned."""
    tokenizer = made(names)
    prompt, output = ids[:at], ids[at:]
    before, whole = (tokenizer.decode(part, skip_special_tokens=skip) for part in (prompt, ids))
    shown = [[id for id in part if not skip or id not in tokenizer.special_ids] for part in (prompt, ids)]
    assume(not any(broken(tokenizer, part) for part in shown))
    said = joined(tokenizer, output, skip, prompt)
    if whole.startswith(before):
        assert said == whole.removeprefix(before)
    else:
        assert whole.endswith(said)
        assert before.startswith(whole.removesuffix(said))


STREAMED = [name for name in REAL if name != "gpt"]  # whose last word loses its space


@pytest.mark.parametrize("name", STREAMED)
@settings(max_examples=examples(60), deadline=None)
@given(ids=IDS)
def test_only_what_a_token_may_change_is_held_back(name, ids):
    """Of what has come, as much is sent as stays the same whichever token follows."""
    tokenizer = made(REAL[name])
    probes = [*range(FIRST_WORD, END), *[3 + ord(character) for character in " .l"], 3 + 0xE2]
    stream, sent = stream_of(tokenizer, False, []), ""
    for count, id in enumerate(ids, 1):
        sent += stream.feed(id)
        if broken(tokenizer, ids[:count]):
            continue
        sure = tokenizer.decode(ids[:count])
        for probe in probes:
            text = tokenizer.decode([*ids[:count], probe])
            sure = sure[: next((i for i, (a, b) in enumerate(zip(sure, text, strict=False)) if a != b), len(text))]
        assert sent.startswith(sure.rstrip(UNKNOWN))  # it may be an incomplete character


def test_what_came_before_a_tokens_own_text_is_told():
    tokenizer = made(("space", "fallback", "fuse", "lo"))
    stream = stream_of(tokenizer, False, [])
    said = [(stream.feed(id), stream.lead) for id in ids_of(tokenizer, "hello", "<0x6C>", "a", "<0xF0>", "h")]
    assert said == [("helx", 0), ("", 0), ("la", 1), ("", 0), ("\ufffdh", 1)]


def test_every_decoder_is_known():
    """So is each that a later version of the library brings: its folder is refused by name."""
    found = {name for name in dir(decoders) if name[0].isupper()} - {"Decoder", "DecodeStream"}
    assert found == set(KINDS)
    with pytest.raises(ModelLoadError, match="decoder 'New' is not supported"):
        make_steps({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "New"}]})
