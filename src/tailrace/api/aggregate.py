"""The full answer as a fold of the stream's chunks. Each endpoint has one generator of chunks, for streams and full
answers alike."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.schema.chat import AnswerMessage, ChatChoice, ChatChunk, ChatCompletion, ChatLogprobs
from tailrace.api.schema.chat_calls import AnswerToolCall, CustomCall, FunctionCall, ToolCallDelta
from tailrace.api.schema.common import PromptLogprobEntries, Timings, Usage
from tailrace.api.schema.completions import Completion, CompletionChoice, CompletionLogprobs

ChunkT = TypeVar("ChunkT", ChatChunk, Completion)
E = TypeVar("E")
T = TypeVar("T")


@dataclass(slots=True)
class AggregatedCall:
    """One tool call so far."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    custom: bool = False

    def add(self, delta: ToolCallDelta) -> None:
        """Its id and name come once."""
        self.id = delta.id or self.id
        if function := delta.function:
            self.name = function.name or self.name
            self.arguments.append(function.arguments)
        if custom := delta.custom:
            self.custom = True
            self.name = custom.name or self.name
            self.arguments.append(custom.input)

    def whole(self) -> AnswerToolCall:
        """The call as the full answer has it."""
        text = "".join(self.arguments)
        if self.custom:
            return AnswerToolCall(self.id, type="custom", custom=CustomCall(self.name, text))
        return AnswerToolCall(self.id, FunctionCall(self.name, text))


@dataclass(slots=True)
class AggregatedChoice:
    """One choice so far."""

    text: list[str] = field(default_factory=list)
    reasoning_content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, AggregatedCall] = field(default_factory=dict)
    chat_logprobs: list[msgspec.Raw] | None = None
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobEntries | UnsetType = UNSET
    explanations: list[msgspec.Raw] | UnsetType = UNSET
    sampling_mask: list[msgspec.Raw] | UnsetType = UNSET
    prompt_token_id_logprobs: list[list[float]] | UnsetType = UNSET

    def end(self, finish_reason: str | None, stop_reason: str | int | UnsetType | None) -> None:
        """Note the end, if this chunk brings it."""
        if finish_reason is not None:
            self.finish_reason = finish_reason
            self.stop_reason = None if isinstance(stop_reason, UnsetType) else stop_reason

    def add_ids(self, token_ids: list[int] | UnsetType) -> None:
        """Note the ids, if they are reported."""
        if not isinstance(token_ids, UnsetType):
            if isinstance(self.token_ids, UnsetType):
                self.token_ids = []
            self.token_ids.extend(token_ids)

    def add_records(self, records: list[msgspec.Raw] | UnsetType) -> None:
        """Note why tokens came, if that is reported."""
        if not isinstance(records, UnsetType):
            if isinstance(self.explanations, UnsetType):
                self.explanations = []
            self.explanations.extend(records)

    def add_mask(self, mask: list[msgspec.Raw] | UnsetType) -> None:
        """Note which ids tokens were drawn from, if that is reported."""
        if not isinstance(mask, UnsetType):
            if isinstance(self.sampling_mask, UnsetType):
                self.sampling_mask = []
            self.sampling_mask.extend(mask)


class Folded(NamedTuple, Generic[ChunkT]):
    """The content of a whole stream. last: its last chunk. choices: by index, in order."""

    last: ChunkT
    usage: Usage
    choices: dict[int, AggregatedChoice]
    sampling_params: dict[str, Any] | UnsetType
    timings: Timings | UnsetType


async def fold_chunks(
    chunks: AsyncGenerator[ChunkT, None], add: Callable[[ChunkT, Callable[[int], AggregatedChoice]], None]
) -> Folded[ChunkT]:
    """All chunks of a stream. `chunks` is closed in every case; its errors are passed on.

    Args:
        add(chunk, choice): adds a chunk to its choices; choice(index) is one so far.
    """
    choices: defaultdict[int, AggregatedChoice] = defaultdict(AggregatedChoice)
    usage: Usage | None = None
    sampling_params: dict[str, Any] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    chunk: ChunkT | None = None
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            usage = chunk.usage or usage
            sampling_params = chunk.sampling_params or sampling_params
            timings = chunk.timings or timings
            add(chunk, choices.__getitem__)
    assert chunk is not None
    assert usage is not None, "a stream to be folded ends with its usage"
    return Folded(chunk, usage, dict(sorted(choices.items())), sampling_params, timings)


async def last_seen(events: AsyncGenerator[E, None], of: Callable[[E], T | UnsetType | None]) -> T:
    """The last thing that the events bring, where each may bring one. `events` is closed in every case."""
    last: T | None = None
    async with contextlib.aclosing(events):
        async for event in events:
            last = of(event) or last
    assert last is not None
    return last


async def fold_chat(chunks: AsyncGenerator[ChatChunk, None]) -> ChatCompletion:
    """All chunks → the full answer. `chunks` is closed in every case; its errors are passed on."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobEntries | UnsetType = UNSET
    named_logprobs: list[list[float]] | UnsetType = UNSET

    def collect_chunk(chunk: ChatChunk, choice_of: Callable[[int], AggregatedChoice]) -> None:
        nonlocal prompt_token_ids, prompt_logprobs, named_logprobs
        prompt_token_ids = chunk.prompt_token_ids or prompt_token_ids
        prompt_logprobs = chunk.prompt_logprobs or prompt_logprobs
        named_logprobs = chunk.prompt_token_id_logprobs or named_logprobs
        for choice in chunk.choices:
            so_far = choice_of(choice.index)
            so_far.text.append(choice.delta.content or "")
            so_far.reasoning_content.append(choice.delta.reasoning_content or "")
            so_far.reasoning.append(choice.delta.reasoning or "")
            for call in choice.delta.tool_calls or ():
                so_far.tool_calls.setdefault(call.index, AggregatedCall()).add(call)
            if choice.logprobs is not None:
                if so_far.chat_logprobs is None:
                    so_far.chat_logprobs = []
                so_far.chat_logprobs.extend(choice.logprobs.content)
            so_far.end(choice.finish_reason, choice.stop_reason)
            so_far.add_ids(choice.token_ids)
            so_far.add_records(choice.explanations)
            so_far.add_mask(choice.sampling_mask)

    whole = await fold_chunks(chunks, collect_chunk)
    return ChatCompletion(
        id=whole.last.id,
        created=whole.last.created,
        model=whole.last.model,
        system_fingerprint=whole.last.system_fingerprint,
        usage=whole.usage,
        choices=[_chat_choice(index, choice) for index, choice in whole.choices.items()],
        prompt_token_ids=prompt_token_ids,
        prompt_logprobs=prompt_logprobs,
        prompt_token_id_logprobs=named_logprobs,
        sampling_params=whole.sampling_params,
        timings=whole.timings,
    )


def _chat_choice(index: int, whole: AggregatedChoice) -> ChatChoice:
    return ChatChoice(
        index=index,
        message=AnswerMessage(
            "".join(whole.text) or (None if whole.tool_calls else ""),
            reasoning_content="".join(whole.reasoning_content) or UNSET,
            reasoning="".join(whole.reasoning) or UNSET,
            tool_calls=[whole.tool_calls[index].whole() for index in sorted(whole.tool_calls)] or UNSET,
        ),
        logprobs=None if whole.chat_logprobs is None else ChatLogprobs(whole.chat_logprobs),
        finish_reason=whole.finish_reason,
        stop_reason=whole.stop_reason,
        token_ids=whole.token_ids,
        explanations=whole.explanations,
        sampling_mask=whole.sampling_mask,
    )


async def fold_completion(chunks: AsyncGenerator[Completion, None]) -> Completion:
    """All chunks → the full answer. `chunks` is closed in every case; its errors are passed on."""

    def collect_chunk(chunk: Completion, choice_of: Callable[[int], AggregatedChoice]) -> None:
        for choice in chunk.choices:
            so_far = choice_of(choice.index)
            so_far.text.append(choice.text)
            so_far.logprobs = _join_logprobs(so_far.logprobs, choice.logprobs)
            so_far.end(choice.finish_reason, choice.stop_reason)
            so_far.add_ids(choice.token_ids)
            so_far.add_records(choice.explanations)
            so_far.add_mask(choice.sampling_mask)
            so_far.prompt_token_ids = choice.prompt_token_ids or so_far.prompt_token_ids
            so_far.prompt_logprobs = choice.prompt_logprobs or so_far.prompt_logprobs
            so_far.prompt_token_id_logprobs = choice.prompt_token_id_logprobs or so_far.prompt_token_id_logprobs

    whole = await fold_chunks(chunks, collect_chunk)
    return Completion(
        id=whole.last.id,
        created=whole.last.created,
        model=whole.last.model,
        system_fingerprint=whole.last.system_fingerprint,
        usage=whole.usage,
        choices=[_completion_choice(index, choice) for index, choice in whole.choices.items()],
        sampling_params=whole.sampling_params,
        timings=whole.timings,
    )


def _completion_choice(index: int, whole: AggregatedChoice) -> CompletionChoice:
    return CompletionChoice(
        index,
        "".join(whole.text),
        whole.logprobs,
        whole.finish_reason,
        whole.stop_reason,
        whole.token_ids,
        whole.prompt_token_ids,
        whole.prompt_logprobs,
        whole.explanations,
        whole.sampling_mask,
        whole.prompt_token_id_logprobs,
    )


def _join_logprobs(so_far: CompletionLogprobs | None, new: CompletionLogprobs | None) -> CompletionLogprobs | None:
    if so_far is None or new is None:
        return so_far or new
    for name in so_far.__struct_fields__:
        if not isinstance(more := getattr(new, name), UnsetType):
            getattr(so_far, name).extend(more)
    return so_far
