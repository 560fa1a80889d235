"""Tokenizers of every kind, small and hostile."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import groupby

import tokenizers
from hypothesis import assume
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from tailrace.text.tokenizer import Tokenizer
from tailrace.text.vocabulary import ALPHABET, fallback_byte, step_names

STAND_IN = {byte: char for char, byte in ALPHABET.items()}


def spelled(data: bytes) -> str:
    return "".join(STAND_IN[byte] for byte in data)


def byte_level() -> Tokenizer:
    """All single bytes, tokens that split characters anywhere, an empty token, a literal U+FFFD, special and added
    tokens."""
    parts = [bytes([b]) for b in range(256)]
    parts += [
        "é".encode()[:1] + b"",
        "😀".encode()[:2],
        "😀".encode()[2:],
        "😀".encode()[1:],
        b"a\xf0\x9f",
        "�".encode(),
    ]
    parts += [
        "👨‍👩‍👧".encode()[3:9],
        "e\u0301".encode(),
        b"\x80\x80",
        b"\xff\xfe",
        b"hello",
        b" world",
        b"stop",
        b"st",
        b"op",
        b"\n\n",
    ]
    vocab: dict[str, int] = {}
    for part in parts:
        vocab.setdefault(spelled(part), len(vocab))
    vocab.setdefault("", len(vocab))
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|é|>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False), AddedToken("two words", special=False)])
    return Tokenizer(tokenizer)


REPLACE, FALLBACK, FUSE = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
STRIP = decoders.Strip(" ", 1, 0)


def pieces(*steps: decoders.Decoder) -> Tokenizer:
    """SentencePiece with byte fallback and a decoder of these steps."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for token in ("▁", "▁hello", "hello", "▁▁", "lo", "é", "😀", "stop", "▁st", "op", "."):
        vocab[token] = len(vocab)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(list(steps))
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return Tokenizer(tokenizer)


def word_piece() -> Tokenizer:
    words = ["[UNK]", "[SEP]", "hello", "##lo", "##op", "st", ".", ",", "'", "s", "é", "##😀", "world"]
    tokenizer = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens([AddedToken("[SEP]", special=True)])
    return Tokenizer(tokenizer)


def metaspace() -> Tokenizer:
    """Unigram without byte fallback, as T5 has it."""
    words = ["<unk>", "▁hello", "▁", "lo", "st", "op", "▁st", "é", "😀"]
    tokenizer = tokenizers.Tokenizer(models.Unigram([(w, -float(i)) for i, w in enumerate(words)], unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return Tokenizer(tokenizer)


def bytes_and_more() -> Tokenizer:
    """Byte-level with one more step, so that only the library knows the text of tokens in a row."""
    tokenizer = byte_level().backend
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("stop", "end")])
    return Tokenizer(tokenizer)


ALL = {
    "byte-level": byte_level(),
    "pieces": pieces(REPLACE, FALLBACK, FUSE, STRIP),  # as Llama 2 has it
    "pieces, no strip": pieces(REPLACE, FALLBACK, FUSE),
    "fallback, metaspace": pieces(FALLBACK, decoders.Metaspace()),
    "metaspace, fallback": pieces(decoders.Metaspace(), FALLBACK, FUSE),
    "fallback, fuse, metaspace": pieces(FALLBACK, FUSE, decoders.Metaspace()),
    "strip first": pieces(STRIP, REPLACE, FALLBACK, FUSE),
    "fallback first": pieces(FALLBACK, REPLACE, FUSE, STRIP),
    "fallback, metaspace that never prepends": pieces(FALLBACK, decoders.Metaspace(prepend_scheme="never")),
    "fallback last": pieces(REPLACE, FALLBACK),
    "strip two": pieces(REPLACE, FALLBACK, FUSE, decoders.Strip(" ", 2, 0)),
    "bytes and more": bytes_and_more(),
    "word piece": word_piece(),
    "metaspace": metaspace(),
}
KINDS = {
    "byte-level": "bytes",
    "pieces": "pieces",
    "pieces, no strip": "pieces",
}


# ---- what the text of ids must be


codecs.register_error("each", lambda error: ("\ufffd" * (error.end - error.start), error.end))  # type: ignore


def runs(tokenizer: Tokenizer, ids: list[int]) -> Iterator[tuple[bool, list[int]]]:
    """The ids in parts: (the decoder joins these bytes, ids)."""
    joins = "ByteFallback" in step_names(tokenizer.decoder)
    for is_byte, part in groupby(ids, lambda id: joins and fallback_byte(tokenizer.token_of(id)) is not None):
        yield is_byte, list(part)


def broken(tokenizer: Tokenizer, ids: list[int]) -> list[bytes]:
    """The runs of byte tokens that are not UTF-8."""
    found: list[bytes] = []
    for is_byte, part in runs(tokenizer, ids):
        data = b"".join(map(tokenizer.bytes_of, part))
        if is_byte and data.decode(errors="ignore").encode() != data:
            found.append(data)
    return found


def spelled_out(tokenizer: Tokenizer, ids: list[int], skip: bool) -> str:
    """The library's decode, but in a malformed run the characters are characters, and each other byte is one U+FFFD.
    The library is asked with another token in place of such a run."""
    shown = [id for id in ids if not skip or id not in tokenizer.special_ids]
    lost = broken(tokenizer, shown)
    if not lost:
        return tokenizer.decode(ids, skip_special_tokens=skip)
    assume(shown[0] != tokenizer.backend.token_to_id("<0x20>"))
    for other in ("stop", "😀", ".", "lo", "op"):
        stand_in, asked = tokenizer.backend.token_to_id(other), list[int]()
        for is_byte, part in runs(tokenizer, shown):
            asked += [stand_in] if is_byte and broken(tokenizer, part) else part
        parts = tokenizer.decode(asked).split(other)
        if len(parts) == len(lost) + 1:
            texts = [data.decode(errors="each") for data in lost]
            return parts[0] + "".join(text + part for text, part in zip(texts, parts[1:], strict=True))
    assume(False)
    raise AssertionError
