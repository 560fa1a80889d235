"""The tokens as the matching library needs them, and how a text is cut into tokens. Plain data, which is sent to the
compiling processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from tailrace.base.extras import require_extra
from tailrace.base.panics import raise_panics_as
from tailrace.errors import EngineError

CLOSERS = b'"]}'  # bytes that end a JSON value


class Vocabulary(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A model's tokens.

    - token_bytes: the bytes of each id below `vocab_size`. b"" for `special` ids and for rows that only pad the logits.
    - special: ids that never spell text.
    - eos: the ids that end the output, ascending.
    - vocab_size: of the logits.
    - folder: of the tokenizer (tokenizer.json); "": no tokenizer, so texts are cut greedily.
    """

    token_bytes: tuple[bytes, ...]
    special: tuple[int, ...]
    eos: tuple[int, ...]
    vocab_size: int
    folder: str = ""

    @staticmethod
    def of(
        folder: Path | None,
        token_bytes: Sequence[bytes],
        special: frozenset[int],
        eos_token_ids: Sequence[int],
        vocab_size: int,
    ) -> Vocabulary:
        """Raises ValueError: no EOS id, or one that is no row of the logits."""
        eos = tuple(sorted(set(eos_token_ids)))
        if not eos or eos[0] < 0 or eos[-1] >= vocab_size:
            raise ValueError(f"a grammar needs EOS ids in [0, {vocab_size - 1}], got {list(eos)}")
        silent = special | set(eos)
        spelled = [b"" if i in silent else bytes(data) for i, data in enumerate(token_bytes[:vocab_size])]
        spelled += [b""] * (vocab_size - len(spelled))
        named = tuple(sorted(i for i in special if i < min(vocab_size, len(token_bytes))))
        return Vocabulary(tuple(spelled), named, eos, vocab_size, "" if folder is None else str(folder))

    @property
    def words(self) -> int:
        """Number of int32 words in a mask."""
        return -(-self.vocab_size // 32)

    def cut(self, text: bytes) -> tuple[list[int], int]:
        """Return the tokens of `text` up to its last whole character, as the tokenizer cuts it, and how many of them
        are final.

        Final tokens stay the same whatever text follows: those before the last part that the tokenizer splits off
        (mostly a word).
        """
        whole = text.decode("utf-8", "ignore")
        cut = self._encode(whole)
        if cut and b"".join(self.token_bytes[i] for i in cut.ids if i < self.vocab_size) == whole.encode():
            last = cut.word_ids[-1] if cut.ids else None
            return cut.ids, next((i for i, word in enumerate(cut.word_ids) if word == last), 0)
        ids = self._tokenize_greedily(whole.encode())
        return ids, max(0, len(ids) - 1)

    def _encode(self, text: str) -> Any:
        """Return the tokenizer's encoding; None without a tokenizer, or if it fails at this text."""
        with suppress(EngineError), raise_panics_as(EngineError):
            return None if self._tokenizer is None else self._tokenizer.encode(text, add_special_tokens=False)
        return None

    def _tokenize_greedily(self, text: bytes) -> list[int]:
        """Cut the text into the longest token that fits, again and again. Stop if no token fits."""
        ids, at = [], 0
        while at < len(text):
            lengths = range(min(self._longest, len(text) - at), 0, -1)
            found = next(
                (self._by_bytes[text[at : at + n]] for n in lengths if text[at : at + n] in self._by_bytes), -1
            )
            if found < 0:
                break
            ids.append(found)
            at += len(self.token_bytes[found])
        return ids

    @cached_property
    def _tokenizer(self) -> Any:
        """tokenizers.Tokenizer, or None."""
        path = Path(self.folder) / "tokenizer.json"
        if not self.folder or not path.is_file():
            return None
        with require_extra("text"):
            from tokenizers import Tokenizer

        return Tokenizer.from_file(str(path))

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        return {data: i for i, data in reversed(list(enumerate(self.token_bytes))) if data}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_bytes), default=0)
