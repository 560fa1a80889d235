"""The full answer is a fold of the stream's chunks: what a client that never streamed gets is what one that did put together."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TypeVar

from msgspec import UNSET, UnsetType

from tailrace.api.schema.chat import AnswerMessage, ChatChoice, ChatChunk, ChatCompletion, ChoiceLogprobs
from tailrace.api.schema.completions import Completion, CompletionChoice, Logprobs

T = TypeVar("T")


async def gather(chunks: AsyncIterable[T]) -> list[T]:
    """All of them."""
    return [chunk async for chunk in chunks]


def chat(chunks: list[ChatChunk]) -> ChatCompletion:
    """Chat chunks → the completion."""
    choices: dict[int, ChatChoice] = {}
    for chunk in chunks:
        for new in chunk.choices:
            whole = choices.setdefault(new.index, ChatChoice(new.index, AnswerMessage(""), None, None))
            whole.message.content += new.delta.content or ""
            if new.logprobs is not None:
                whole.logprobs = whole.logprobs or ChoiceLogprobs([])
                whole.logprobs.content += new.logprobs.content
            _finish(whole, new)
    last = chunks[-1]
    usage = None if isinstance(last.usage, UnsetType) else last.usage
    ordered = [choices[index] for index in sorted(choices)]
    return ChatCompletion(last.id, last.created, last.model, ordered, usage, system_fingerprint=last.system_fingerprint)


def completion(chunks: list[Completion]) -> Completion:
    """Completion chunks → the completion."""
    choices: dict[int, CompletionChoice] = {}
    for chunk in chunks:
        for new in chunk.choices:
            whole = choices.setdefault(new.index, CompletionChoice(new.index, ""))
            whole.text += new.text
            if new.logprobs is not None:
                whole.logprobs = whole.logprobs or Logprobs([], [], [], [])
                for name in Logprobs.__struct_fields__:
                    getattr(whole.logprobs, name).extend(getattr(new.logprobs, name))
            _finish(whole, new)
    last = chunks[-1]
    ordered = [choices[index] for index in sorted(choices)]
    return Completion(
        last.id, last.created, last.model, ordered, system_fingerprint=last.system_fingerprint, usage=last.usage
    )


def _finish(whole: ChatChoice | CompletionChoice, new: object) -> None:
    """Reasons and token ids, which both kinds have."""
    whole.finish_reason = getattr(new, "finish_reason", None) or whole.finish_reason
    reason = getattr(new, "stop_reason", UNSET)
    if reason is not UNSET:
        whole.stop_reason = reason
    ids: Iterable[int] | UnsetType = getattr(new, "token_ids", UNSET)
    if not isinstance(ids, UnsetType):
        before = [] if isinstance(whole.token_ids, UnsetType) else whole.token_ids
        whole.token_ids = [*before, *ids]
