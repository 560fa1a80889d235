"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from tailrace.api.aggregate import fold_chat
from tailrace.api.body import BodyReader
from tailrace.api.channels import Channels
from tailrace.api.chat_prompt import check_messages
from tailrace.api.chat_tools import DeltaWriter, read_tools
from tailrace.api.chunks import UsageReporter, Work, add_progress, dump_params, make_chunk_head, split_delta
from tailrace.api.explanations import encode_records, size_of
from tailrace.api.logprobs import chat_logprobs, prompt_logprobs
from tailrace.api.prepare import UNLIMITED, ChatInput, PreparedRequest, TokenLimit, prepare_chat, start_request
from tailrace.api.received import Received, answers
from tailrace.api.resumption import answer_resumably, check_stream_fields
from tailrace.api.sampling import check_scores, num_logprobs
from tailrace.api.sampling_masks import mask_size, written_masks
from tailrace.api.schema.chat import (
    CHAT_REFUSED,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
)
from tailrace.api.service import Service
from tailrace.api.streaming import make_response
from tailrace.api.tool_choice import ANY_TOOL, ToolChoice
from tailrace.api.work_queue import JSON_BYTES
from tailrace.errors import ParameterError
from tailrace.text.output import Delta
from tailrace.text.splitter import ReasoningTokens, Splitter

THOUGHT_NAMES = {
    "both": ("reasoning_content", "reasoning"),
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
}  # --reasoning-field → the fields of an answer
READER = BodyReader(ChatRequest, CHAT_REFUSED)


@answers(READER)
async def create_chat_completion(received: Received[ChatRequest]) -> Response:
    """A chat completion, streamed or whole."""
    check_stream_fields(received)
    ask, service = received.ask, received.service
    prepared, channels, choice = await prepare_completion(received)
    origin = received.origin("chat", ask)
    generation = start_request(service, ask, f"chatcmpl-{origin.request_id}", prepared, origin)
    chunks = ChatChunks(service, ask, generation, channels, choice).stream()
    chunks = add_progress(service, ask, generation, chunks, ChatChunk)
    if ask.resumable:
        return await answer_resumably(received, generation, chunks)
    return await make_response(received.request, generation, chunks, fold_chat, ask.streamed)


async def prepare_completion(received: Received[ChatRequest]) -> tuple[PreparedRequest, Channels, ToolChoice]:
    """The request as the engine takes it, the channels of the answer, and which tools may be called.

    Raises:
        RequestError: naming the field.
    """
    ask, service = received.ask, received.service

    def check_tool_choice() -> ToolChoice:
        check_messages(ask)
        return read_tools(ask)

    choice = await received.run(check_tool_choice, received.size // JSON_BYTES)
    top = logprobs_asked(ask, service.config.max_logprobs)
    prepared, channels = await prepare_chat(received, ChatInput(ask, choice, ask.tools, token_limit(ask)), top)
    if ask.prompt_logprobs is not None:
        check_scores(len(prepared.prompts[0]) * (ask.prompt_logprobs + 1), "prompt_logprobs")
    if rows := prepared.params.prompt_logprob_token_ids:
        check_scores(sum(map(len, rows)), "prompt_logprob_token_ids")
    if not ask.use_beam_search and ask.best_of not in (None, 1):
        raise ParameterError("best_of is for use_beam_search here; leave it out (or 1)", "best_of")
    return prepared, channels, choice


class ChatChunks:
    """The answer as it comes: per choice the role, text, the finish reason; at the end the usage, if it is reported.

    Args:
        choice: which tools may be called.
    """

    def __init__(
        self, service: Service, ask: ChatRequest, generation: Work, channels: Channels, choice: ToolChoice = ANY_TOOL
    ) -> None:
        self._service, self._ask, self._generation = service, ask, generation
        self._channels, self._custom = channels, choice.custom
        # the finish reason if the model stopped after a tool call
        self._called = "stop" if choice.mode == "named" else "tool_calls"
        self._with_ids = bool(ask.return_token_ids)
        self._thought_names = () if hides_thoughts(ask) else THOUGHT_NAMES[service.config.reasoning_field]
        self._splitters: dict[int, Splitter] = {}  # of the choices that have begun
        self._writers: dict[int, DeltaWriter] = {}

    async def stream(self) -> AsyncGenerator[ChatChunk, None]:
        """The chunks.

        Raises:
            TailraceError: see Generation.deltas.
        """
        generation, splitters = self._generation, self._splitters
        shared, usage = make_chunk_head(self._service, generation.id), UsageReporter(self._ask, generation)
        top = generation.params.alternatives
        counters: dict[int, ReasoningTokens] = {}
        async with aclosing(generation.deltas()) as deltas:
            async for index, delta in deltas:
                if index not in splitters:
                    first = {} if splitters else await self._only_once()
                    splitters[index] = self._channels.make_splitter()
                    self._writers[index] = DeltaWriter(self._thought_names, self._custom)
                    if self._channels.counts:
                        counters[index] = ReasoningTokens(splitters[index])
                        generation.thoughts = list(counters.values())
                    ids = [] if self._with_ids else UNSET
                    choice = ChatChunkChoice(index, ChatDelta("assistant", ""), token_ids=ids)
                    yield ChatChunk(**shared, choices=[choice], usage=usage.so_far(), **first)
                splitter = splitters[index]
                if index in counters:
                    counters[index].add(delta.offsets)
                for piece in split_delta(delta, self._with_ids):
                    reports = await self._make_reports(piece, top)
                    for choice in choices_of(index, piece, splitter, reports, self._writers[index]):
                        if choice.finish_reason == "stop" and splitter.called:
                            choice = msgspec.structs.replace(choice, finish_reason=self._called)
                        yield ChatChunk(**shared, choices=[choice], usage=usage.so_far())
        if usage.has_last_chunk:
            yield ChatChunk(**shared, choices=[], usage=usage.at_end(), timings=usage.timings)

    async def _make_reports(self, piece: Delta, top: int | None) -> ChatReports:
        """What is reported of a piece's tokens."""
        labels = self._service.labels
        ids = list(piece.token_ids) if self._with_ids else UNSET
        logprobs = None
        if top is not None and piece.logprobs is not None:
            logprobs = chat_logprobs(self._service.labels_for(self._ask), piece, top)
        records, mask, run = UNSET, UNSET, self._generation.run
        if piece.explanations:
            records = await run(partial(encode_records, labels, piece), size_of(piece))
        if piece.survivors:
            mask = await run(partial(written_masks, piece), mask_size(piece))
        return ChatReports(logprobs, ids, records, mask)

    async def _only_once(self) -> dict[str, Any]:
        """Further fields of the first chunk, if asked for: the prompt's ids and logprobs, and the parameters."""
        ask, generation = self._ask, self._generation
        found: dict[str, Any] = {"sampling_params": dump_params(ask, generation)}
        if self._with_ids:
            found["prompt_token_ids"] = generation.prompts[0]
        top, entries = ask.prompt_logprobs, generation.prompt_logprobs(0)
        if top is not None and entries is not None:
            work = partial(prompt_logprobs, self._service.labels, generation.prompts[0], entries, top)
            found["prompt_logprobs"] = await generation.run(work, len(entries) * (top + 1))
        if (named := generation.named_logprobs(0)) is not None:
            found["prompt_token_id_logprobs"] = named
        return found


class ChatReports(NamedTuple):
    """What is reported of a piece's tokens, where it is asked for."""

    logprobs: ChatLogprobs | None
    token_ids: list[int] | UnsetType
    explanations: list[msgspec.Raw] | UnsetType = UNSET
    sampling_mask: list[msgspec.Raw] | UnsetType = UNSET

    @property
    def rest(self) -> ChatReports:
        """What further chunks of the piece say."""
        return ChatReports(None, UNSET if self.token_ids is UNSET else [])


def choices_of(
    index: int, piece: Delta, channels: Splitter, reports: ChatReports, writer: DeltaWriter
) -> Iterator[ChatChunkChoice]:
    """The choices for one piece: its text by channels, with the reports in the first; or its end."""
    segments = channels.feed(piece.text) if piece.finish_reason is None else channels.flush(piece.cut)
    deltas = [delta for segment in segments for delta in writer.write(segment)]
    if piece.finish_reason is not None:
        deltas += writer.end()
        for delta in deltas:
            yield ChatChunkChoice(index, delta, token_ids=reports.rest.token_ids)
        yield ChatChunkChoice(index, ChatDelta(), None, piece.finish_reason, piece.stop_reason, reports.token_ids)
        return
    if not deltas and reports != NOTHING:
        deltas = [ChatDelta(content="")]  # the text is held back, or was a marker
    for delta in deltas:
        logprobs, ids, records, mask = reports
        yield ChatChunkChoice(index, delta, logprobs, token_ids=ids, explanations=records, sampling_mask=mask)
        reports = reports.rest


NOTHING = ChatReports(None, UNSET)


# ---- what is asked


def hides_thoughts(ask: ChatRequest) -> bool:
    """Return whether the answer leaves out what the model thinks."""
    return ask.include_reasoning is False or bool(ask.reasoning and ask.reasoning.exclude)


def token_limit(ask: ChatRequest) -> TokenLimit:
    """The limit asked for, and the name it came under.

    Raises:
        ParameterError: two limits that differ.
    """
    old, new = ask.max_tokens, ask.max_completion_tokens
    old, new = (None if limit == UNLIMITED else limit for limit in (old, new))
    if new is None:
        return TokenLimit(old, "max_tokens")
    if old is not None and old != new:
        raise ParameterError(
            f"max_completion_tokens ({new}) and max_tokens ({old}) are two names of one limit",
            "max_completion_tokens",
            mentions=["max_tokens"],
        )
    return TokenLimit(new, "max_completion_tokens")


def logprobs_asked(ask: ChatRequest, limit: int) -> int | None:
    """How many alternatives to report per token; None: no logprobs.

    Raises:
        ParameterError: top_logprobs without logprobs, or out of range.
    """
    if ask.top_logprobs is not None:
        num_logprobs(ask.top_logprobs, limit, "top_logprobs")
        if ask.top_logprobs and not ask.logprobs:
            raise ParameterError("top_logprobs needs logprobs to be true", "top_logprobs", mentions=["logprobs"])
    return (ask.top_logprobs or 0) if ask.logprobs else None
