"""Log-probabilities in OpenAI's two shapes: chat's list of entries, and the parallel lists of completions.

A token whose bytes are no whole characters is written as OpenAI does, with its bytes escaped: `\\xf0\\x9f` (chat),
`bytes:\\xf0\\x9f` (completions); `bytes` always has the true ones. JSON has no −inf: FLOOR stands for it.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import UnsetType

from tailrace.api.schema.chat import ChatLogprobs
from tailrace.api.schema.common import PromptLogprob, PromptLogprobEntries
from tailrace.api.schema.completions import CompletionLogprobs
from tailrace.wire.messages import TokenLogprobs

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode

FLOOR = -9999.0  # also vLLM's


class Table(dict[int, T]):
    """Token id → what `make` makes of it, once."""

    def __init__(self, make: Callable[[int], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, id: int) -> T:
        made = self[id] = self._make(id)
        return made


class Labels:
    """How tokens are written.

    Attributes:
        names: id → (text or escaped bytes, bytes, whether it is text).
        written: id → JSON of the token, still open, as a format for its logprob: `{"token":…,"logprob":%s,"bytes":[…]`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        def name(id: int) -> tuple[str, list[int], bool]:
            data = tokenizer.bytes_of(id)
            try:
                return data.decode("utf-8"), list(data), True
            except UnicodeDecodeError:
                return "".join(f"\\x{byte:02x}" for byte in data), list(data), False

        def write(id: int) -> str:
            label, data, _ = self.names[id]
            token = msgspec.json.encode(label).decode().replace("%", "%%")
            return f'{{"token":{token},"logprob":%s,"bytes":{msgspec.json.encode(data).decode()}'

        self.names, self.written = Table(name), Table(write)

    def legacy(self, id: int) -> str:
        """The name of a token among completions' logprobs."""
        label, _, whole = self.names[id]
        return label if whole else f"bytes:{label}"


def finite(logprob: float) -> float:
    """−inf becomes FLOOR."""
    return logprob if logprob > FLOOR else FLOOR


def chat_logprobs(labels: Labels, token_ids: Iterable[int], entries: Iterable[TokenLogprobs], top: int) -> ChatLogprobs:
    """Chat's shape; `top` alternatives each. Written as JSON at once, from parts that each token has once and for all."""
    return ChatLogprobs([_chat_entry(labels, i, entry, top) for i, entry in zip(token_ids, entries, strict=True)])


def _chat_entry(labels: Labels, id: int, entry: TokenLogprobs, top: int) -> msgspec.Raw:
    written = labels.written
    # all numbers at once, by a library that writes them ten times as fast as repr; −inf is null there
    numbers = _encode([entry.logprob, *entry.top_logprobs[:top]])[1:-1].decode().replace("null", str(FLOOR)).split(",")
    tops = "},".join([written[other] for other in entry.top_ids[:top]])
    told = "" if entry.entropy is None else f',"entropy":{entry.entropy!r},"varentropy":{entry.varentropy!r}'
    whole = f'{written[id]},"top_logprobs":[{tops}{"}" if tops else ""}]{told}}}'
    return msgspec.Raw((whole % tuple(numbers)).encode())


def prompt_logprobs(
    labels: Labels, token_ids: Sequence[int], entries: Sequence[TokenLogprobs], top: int
) -> PromptLogprobEntries:
    """vLLM's shape, of a whole prompt; `entries` are those of all tokens but the first."""
    found: PromptLogprobEntries = [None]
    for id, entry in zip(token_ids[1:], entries, strict=True):
        here = {
            other: PromptLogprob(finite(logprob), rank, labels.names[other][0])
            for rank, (other, logprob) in enumerate(
                zip(entry.top_ids[:top], entry.top_logprobs[:top], strict=True), start=1
            )
        }
        here.setdefault(id, PromptLogprob(finite(entry.logprob), entry.rank, labels.names[id][0]))
        found.append(here)
    return found


class CompletionLogprobsWriter:
    """Completions' shape for one choice, piece by piece; keeps count of where in the text the next token begins."""

    def __init__(self, labels: Labels, top: int, hidden: frozenset[int], entropies: bool = False) -> None:
        """`hidden`: tokens that leave no text. entropies: they are listed too."""
        self._entropies = entropies
        self._labels, self._top, self._hidden = labels, top, hidden
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._offset = 0

    def write_prompt(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs], hidden: frozenset[int]
    ) -> CompletionLogprobs:
        """The tokens of an echoed prompt, whose text hides `hidden`; the first has no logprob. To be called first, if at all."""
        own, self._hidden = self._hidden, hidden
        first = TokenLogprobs(0.0, 1, [], [])
        lists = self.write(token_ids, [first, *entries])
        lists.token_logprobs[0] = lists.top_logprobs[0] = None
        self._hidden = own
        return lists

    def write(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """The next tokens. The drawn token is always among its alternatives: there may be one more than asked for."""
        lists = CompletionLogprobs([], [], [], [], *(([], []) if self._entropies else ()))
        for id, entry in zip(token_ids, entries, strict=True):
            lists.tokens.append(self._labels.legacy(id))
            lists.token_logprobs.append(finite(entry.logprob))
            lists.top_logprobs.append(self._alternatives(id, entry))
            lists.text_offset.append(self._offset)
            if not isinstance(lists.entropy, UnsetType) and not isinstance(lists.varentropy, UnsetType):
                lists.entropy.append(entry.entropy)
                lists.varentropy.append(entry.varentropy)
            if id not in self._hidden:
                self._offset += len(self._decode(bytes(self._labels.names[id][1])))
        return lists

    def _alternatives(self, id: int, entry: TokenLogprobs) -> dict[str, float]:
        by_name: dict[str, float] = {}
        for other, logprob in zip(entry.top_ids[: self._top], entry.top_logprobs[: self._top], strict=True):
            by_name.setdefault(
                self._labels.legacy(other), finite(logprob)
            )  # two tokens may spell the same: the likelier
        by_name.setdefault(self._labels.legacy(id), finite(entry.logprob))
        return by_name
