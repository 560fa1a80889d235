"""Log-probabilities in OpenAI's two shapes: chat's list of entries, and the parallel lists of completions.

A token whose bytes are no whole characters is written as OpenAI does, with its bytes escaped: `\\xf0\\x9f` (chat),
`bytes:\\xf0\\x9f` (completions); `bytes` always has the true ones. JSON has no −inf: FLOOR stands for it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import UnsetType

from tailrace.api.schema.chat import ChatLogprobs, TokenLogprob, TopLogprob
from tailrace.api.schema.common import PromptLogprob, PromptLogprobEntries
from tailrace.api.schema.completions import CompletionLogprobs
from tailrace.wire.messages import TokenLogprobs

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

FLOOR = -9999.0  # also vLLM's


class Labels:
    """Token id → how it is written and its bytes; each is worked out once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, list[int], bool]] = {}

    def __getitem__(self, id: int) -> tuple[str, list[int], bool]:
        """(text or escaped bytes, bytes, whether it is text)."""
        known = self._known.get(id)
        if known is None:
            data = self._tokenizer.bytes_of(id)
            try:
                known = data.decode("utf-8"), list(data), True
            except UnicodeDecodeError:
                known = "".join(f"\\x{byte:02x}" for byte in data), list(data), False
            self._known[id] = known
        return known

    def legacy(self, id: int) -> str:
        """The name of a token among completions' logprobs."""
        label, _, whole = self[id]
        return label if whole else f"bytes:{label}"


def finite(logprob: float) -> float:
    """−inf becomes FLOOR."""
    return max(logprob, FLOOR)


def chat_logprobs(labels: Labels, token_ids: Iterable[int], entries: Iterable[TokenLogprobs], top: int) -> ChatLogprobs:
    """Chat's shape; `top` alternatives each."""
    return ChatLogprobs([_chat_entry(labels, i, entry, top) for i, entry in zip(token_ids, entries, strict=True)])


def _chat_entry(labels: Labels, id: int, entry: TokenLogprobs, top: int) -> TokenLogprob:
    label, data, _ = labels[id]
    tops = []
    for other, logprob in zip(entry.top_ids[:top], entry.top_logprobs[:top], strict=True):
        name, other_data, _ = labels[other]
        tops.append(TopLogprob(name, finite(logprob), other_data))
    told = () if entry.entropy is None or entry.varentropy is None else (entry.entropy, entry.varentropy)
    return TokenLogprob(label, finite(entry.logprob), data, tops, *told)


def prompt_logprobs(
    labels: Labels, token_ids: Sequence[int], entries: Sequence[TokenLogprobs], top: int
) -> PromptLogprobEntries:
    """vLLM's shape, of a whole prompt; `entries` are those of all tokens but the first."""
    found: PromptLogprobEntries = [None]
    for id, entry in zip(token_ids[1:], entries, strict=True):
        here = {
            other: PromptLogprob(finite(logprob), rank, labels[other][0])
            for rank, (other, logprob) in enumerate(
                zip(entry.top_ids[:top], entry.top_logprobs[:top], strict=True), start=1
            )
        }
        here.setdefault(id, PromptLogprob(finite(entry.logprob), entry.rank, labels[id][0]))
        found.append(here)
    return found


class CompletionLogprobsWriter:
    """Completions' shape for one choice, piece by piece; keeps count of where in the text the next token begins."""

    def __init__(self, labels: Labels, top: int, hidden: frozenset[int]) -> None:
        """`hidden`: tokens that leave no text."""
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
        entropies = bool(entries) and entries[0].entropy is not None
        lists = CompletionLogprobs([], [], [], [], *(([], []) if entropies else ()))
        for id, entry in zip(token_ids, entries, strict=True):
            lists.tokens.append(self._labels.legacy(id))
            lists.token_logprobs.append(finite(entry.logprob))
            lists.top_logprobs.append(self._alternatives(id, entry))
            lists.text_offset.append(self._offset)
            if not isinstance(lists.entropy, UnsetType) and not isinstance(lists.varentropy, UnsetType):
                lists.entropy.append(entry.entropy or 0.0)
                lists.varentropy.append(entry.varentropy or 0.0)
            if id not in self._hidden:
                self._offset += len(self._decode(bytes(self._labels[id][1])))
        return lists

    def _alternatives(self, id: int, entry: TokenLogprobs) -> dict[str, float]:
        by_name: dict[str, float] = {}
        for other, logprob in zip(entry.top_ids[: self._top], entry.top_logprobs[: self._top], strict=True):
            by_name.setdefault(
                self._labels.legacy(other), finite(logprob)
            )  # two tokens may spell the same: the likelier
        by_name.setdefault(self._labels.legacy(id), finite(entry.logprob))
        return by_name
