"""Log-probabilities in OpenAI's two shapes: chat's list of entries, and the parallel lists of completions.

A token whose bytes are no whole characters is written as OpenAI does, with its bytes escaped: `\\xf0\\x9f` (chat),
`bytes:\\xf0\\x9f` (completions); `bytes` always has the true ones. JSON has no −inf: FLOOR stands for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import UnsetType

from tailrace.api.schema.chat import ChatLogprobs
from tailrace.api.schema.common import PromptLogprob, PromptLogprobEntries
from tailrace.api.schema.completions import CompletionLogprobs
from tailrace.params import SamplingParams
from tailrace.text.output import Delta, TextStream
from tailrace.wire.messages import TokenLogprobs

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode

FLOOR = -9999.0  # also vLLM's


class Table(dict[int, T]):
    """Token id → the result of `make`, computed once."""

    def __init__(self, make: Callable[[int], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, id: int) -> T:
        made = self[id] = self._make(id)
        return made


class Labels:
    """How tokens are written.

    Args:
        text: labels by text; those made here are by id then, as in vLLM where a request asks for it: "token_id:7".

    - tokenizer: whose tokens they are. text: labels of the same tokens by their text.
    - names: id → (text or escaped bytes, bytes, whether it is text).
    - written: id → JSON of the token, still open, as a format for its logprob: `{"token":…,"logprob":%s,"bytes":[…]`.
    """

    def __init__(self, tokenizer: Tokenizer, text: Labels | None = None) -> None:
        self.tokenizer, self._as_ids, self.text = tokenizer, text is not None, text or self
        self.names = Table(self._label_token)
        self.written = Table(lambda id: self.write(id, self.names[id][1]))

    def write(self, id: int, data: list[int]) -> str:
        """See `written`. data: the bytes that the text has of the token, which name it; without any, the token has its
        own name."""
        label = label_bytes(bytes(data))[0] if data and not self._as_ids else self.names[id][0]
        token = msgspec.json.encode(label).decode().replace("%", "%%")
        return f'{{"token":{token},"logprob":%s,"bytes":{msgspec.json.encode(data).decode()}'

    def _label_token(self, id: int) -> tuple[str, list[int], bool]:
        data = self.tokenizer.bytes_of(id)
        return (f"token_id:{id}", list(data), True) if self._as_ids else label_bytes(data)

    def legacy_label(self, id: int, data: bytes | None = None) -> str:
        """The name of a token in the logprobs of completions. data: as in `write`; None: all bytes of the token."""
        label, _, whole = label_bytes(data) if data and not self._as_ids else self.names[id]
        return label if whole else f"bytes:{label}"


def label_bytes(data: bytes) -> tuple[str, list[int], bool]:
    """Bytes as a name: see Labels.names."""
    try:
        return data.decode("utf-8"), list(data), True
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data), list(data), False


def clamp_logprob(logprob: float) -> float:
    """−inf becomes FLOOR."""
    return logprob if logprob > FLOOR else FLOOR


def iter_top_tokens(entry: TokenLogprobs, top: int) -> Iterator[tuple[int, float]]:
    """The `top` likeliest tokens with their logprobs, without those of probability 0, whose order means nothing."""
    for other, logprob in zip(entry.top_ids[:top], entry.top_logprobs[:top], strict=True):
        if logprob > -math.inf:
            yield other, logprob


def iter_delivered_tokens(piece: Delta) -> Iterable[tuple[int, TokenLogprobs, int, bytes | None]]:
    """The tokens of a piece, without those behind a stop: (id, logprobs, offset in the text, bytes that the text has of
    the token). None for the bytes: all bytes of the token."""
    ids, entries, spelt = piece.token_ids, piece.logprobs or (), piece.spelt
    if not spelt:  # nearly always
        return zip(ids, entries, piece.offsets, repeat(None, len(ids)), strict=True)
    return [
        (id, entry, offset, spelt.get(place))
        for place, (id, entry, offset) in enumerate(zip(ids, entries, piece.offsets, strict=True))
        if place not in spelt or spelt[place] is not None
    ]


def chat_logprobs(labels: Labels, piece: Delta, top: int) -> ChatLogprobs:
    """Chat's shape, with `top` alternatives each. Written directly as JSON, from a part per token id that is kept."""
    return ChatLogprobs(
        [_chat_entry(labels, id, entry, data, top) for id, entry, _, data in iter_delivered_tokens(piece)]
    )


def _chat_entry(labels: Labels, id: int, entry: TokenLogprobs, data: bytes | None, top: int) -> msgspec.Raw:
    written = labels.written
    others = entry.top_ids[:top]
    # all numbers at once, by a library that writes them ten times as fast as repr; −inf is null there
    numbers = _encode([entry.logprob, *entry.top_logprobs[:top]])[1:-1].decode()
    if "null" in numbers:
        possible = dict(iter_top_tokens(entry, top))
        others = list(possible)
        numbers = _encode([entry.logprob, *possible.values()])[1:-1].decode().replace("null", str(FLOOR))
    tops = "},".join([written[other] for other in others])
    entropies = "" if entry.entropy is None else f',"entropy":{entry.entropy!r},"varentropy":{entry.varentropy!r}'
    own = written[id] if data is None else labels.write(id, list(data))
    whole = f'{own},"top_logprobs":[{tops}{"}" if tops else ""}]{entropies}}}'
    return msgspec.Raw((whole % tuple(numbers.split(","))).encode())


def prompt_logprobs(
    labels: Labels, token_ids: Sequence[int], entries: Sequence[TokenLogprobs], top: int
) -> PromptLogprobEntries:
    """vLLM's shape, for a whole prompt. entries: logprobs of its last tokens, at most of all but the first. Written as
    JSON token by token: to encode a million at once would hold up the event loop."""
    begin = len(token_ids) - len(entries)
    found: PromptLogprobEntries = [None] * begin
    for id, entry in zip(token_ids[begin:], entries, strict=True):
        here = {
            other: PromptLogprob(clamp_logprob(logprob), rank, labels.names[other][0])
            for rank, (other, logprob) in enumerate(iter_top_tokens(entry, top), start=1)
        }
        here.setdefault(id, PromptLogprob(clamp_logprob(entry.logprob), entry.rank, labels.names[id][0]))
        found.append(msgspec.Raw(_encode(here)))
    return found


class CompletionLogprobsWriter:
    """Completions' shape for one choice, piece by piece, after the prompt if it is echoed."""

    def __init__(self, labels: Labels, top: int, entropies: bool = False) -> None:
        """entropies: list them too."""
        self._entropies, self._labels, self._top = entropies, labels, top
        self._begin = 0  # where in the text the output begins

    def write_prompt(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs], skip_special: bool
    ) -> CompletionLogprobs:
        """The tokens of an echoed prompt; its first token has no logprob. Call it first, if at all. skip_special: its
        text leaves out special tokens."""
        params = SamplingParams(logprobs=0, ignore_eos=True, skip_special_tokens=skip_special, output_kind="cumulative")
        stream = TextStream(self._labels.tokenizer, params)
        stream.feed(token_ids, [TokenLogprobs(0.0, 1, [], []), *entries])
        whole = stream.flush("length")
        lists = self.write(whole)
        self._begin = len(whole.text)
        lists.token_logprobs[0] = lists.top_logprobs[0] = None
        return lists

    def write(self, piece: Delta) -> CompletionLogprobs:
        """The next tokens. The sampled token is always among its alternatives, so there may be one more than asked
        for."""
        return self._write_logprobs(
            (id, entry, self._begin + offset, data) for id, entry, offset, data in iter_delivered_tokens(piece)
        )

    def _write_logprobs(self, tokens: Iterable[tuple[int, TokenLogprobs, int, bytes | None]]) -> CompletionLogprobs:
        lists = CompletionLogprobs([], [], [], [], *(([], []) if self._entropies else ()))
        for id, entry, offset, data in tokens:
            lists.tokens.append(self._labels.legacy_label(id, data))
            lists.token_logprobs.append(clamp_logprob(entry.logprob))
            lists.top_logprobs.append(self._label_alternatives(id, entry))
            lists.text_offset.append(offset)
            if not isinstance(lists.entropy, UnsetType) and not isinstance(lists.varentropy, UnsetType):
                lists.entropy.append(entry.entropy)
                lists.varentropy.append(entry.varentropy)
        return lists

    def _label_alternatives(self, id: int, entry: TokenLogprobs) -> dict[str, float]:
        by_name: dict[str, float] = {}
        for other, logprob in iter_top_tokens(entry, self._top):
            # two tokens may spell the same: the likelier
            by_name.setdefault(self._labels.legacy_label(other), clamp_logprob(logprob))
        by_name.setdefault(self._labels.legacy_label(id), clamp_logprob(entry.logprob))
        return by_name
