"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from uuid import uuid4

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.access_log import origin_of
from tailrace.api.beam_fields import beam_request, check_no_beams
from tailrace.api.body import BodyReader
from tailrace.api.channels import Channels, channels_of, with_channels
from tailrace.api.chunks import UsageOf, Work, effective, head, pieces
from tailrace.api.conversation import check_conversation, encode
from tailrace.api.fold import fold_chat
from tailrace.api.front_end import service_for
from tailrace.api.generate import Generation
from tailrace.api.guidance import longest, of_chat
from tailrace.api.logprobs import chat_logprobs, prompt_logprobs
from tailrace.api.respond import request_id, respond
from tailrace.api.sampling import check_scores, effort, num_logprobs, output_limit, sampling_params
from tailrace.api.schema.chat import (
    CHAT_REFUSED,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatRequest,
    FunctionDelta,
    ToolCallDelta,
)
from tailrace.api.service import Service
from tailrace.api.tool_choice import Choice, choice_of, with_grammar
from tailrace.api.turns import JSON_BYTES
from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.text.channel_splitter import ChannelSplitter, Segment
from tailrace.text.output import Delta
from tailrace.text.tool_parsers.functions import check_tools

READER = BodyReader(ChatRequest, CHAT_REFUSED)


async def create_chat_completion(request: Request) -> Response:
    """A chat completion, streamed or whole."""
    ask = await READER.read(request)
    service = service_for(request, ask.model)
    info = service.supervisor.check()
    size = request.state.size

    def looked_at() -> Choice:
        check_conversation(ask)
        check_tools(ask.tools, nested=True)
        return choice_of(ask.tool_choice, ask.tools, ask.parallel_tool_calls)

    choice = await service.turns.run(request, looked_at, size // JSON_BYTES)
    with_tools = choice.mode != "none"
    prompt = await encode(request, ask, size, with_tools)
    negative = await of_chat(request, ask, size, with_tools)
    asked, field = max_tokens(ask)
    taken, taker = longest(len(prompt), negative, "messages")
    limit = output_limit(taken, info.max_model_len, asked, field, taker)
    top = logprobs_asked(ask, service.config.max_logprobs)
    if ask.prompt_logprobs is not None:
        num_logprobs(ask.prompt_logprobs, service.config.max_logprobs, "prompt_logprobs")
        check_scores(len(prompt) * (ask.prompt_logprobs + 1), "prompt_logprobs")
    channels = channels_of(service, ask, prompt)

    def prepared() -> tuple[SamplingParams, str]:
        params = sampling_params(
            ask, service.tokenizer, service.defaults, max_tokens=limit, logprobs=top, negative_prompt=negative
        )
        return with_grammar(service, ask, choice, ask.tools, prompt, with_channels(params, service, ask, channels))

    params, grammar_field = await service.turns.run(request, prepared, effort(ask, size))
    id = f"chatcmpl-{request_id(request, ask)}"
    origin = origin_of(request, "chat", ask)
    if ask.use_beam_search:
        if params.grammar is not None:
            raise ParameterError(f"{grammar_field} can't be had with use_beam_search", grammar_field)
        generation = beam_request(service, ask, id, prompt, params, origin)
    else:
        check_no_beams(ask)
        if ask.best_of not in (None, 1):
            raise ParameterError("best_of is for use_beam_search here; leave it out (or 1)", "best_of")
        generation = Generation(service, id, [prompt], params, origin, grammar_field)
    told = chunks(service, ask, generation, channels, "stop" if choice.mode == "named" else "tool_calls")
    return await respond(request, generation, told, fold_chat, ask.streamed)


async def chunks(
    service: Service, ask: ChatRequest, generation: Work, channels: Channels, called: str = "tool_calls"
) -> AsyncGenerator[ChatChunk, None]:
    """The answer as it comes: per choice the role, text, the finish reason; at the end the usage, if reported. called: the reason where
    the model stopped after a call.

    Raises:
        TailraceError: see Generation.deltas.
    """
    shared = head(service, generation.id)
    usage = UsageOf(ask, generation)
    greeted: set[int] = set()
    with_ids = bool(ask.return_token_ids)
    splitters: dict[int, ChannelSplitter] = {}
    async with aclosing(generation.deltas()) as deltas:
        async for index, delta in deltas:
            if index not in greeted:
                greeted.add(index)
                splitters[index] = ChannelSplitter(*channels)
                choice = ChatChunkChoice(index, ChatDelta("assistant", ""), token_ids=[] if with_ids else UNSET)
                ids = generation.prompts[0] if with_ids and len(greeted) == 1 else UNSET
                told = effective(ask, generation) if len(greeted) == 1 else UNSET
                scores, entries = UNSET, generation.prompt_logprobs(0)
                if ask.prompt_logprobs is not None and len(greeted) == 1 and entries is not None:
                    scores = await generation.answer(
                        partial(prompt_logprobs, service.labels, generation.prompts[0], entries, ask.prompt_logprobs),
                        len(entries) * (ask.prompt_logprobs + 1),
                    )
                yield ChatChunk(
                    **shared,
                    choices=[choice],
                    usage=usage.so_far(),
                    prompt_token_ids=ids,
                    prompt_logprobs=scores,
                    sampling_params=told,
                )
            for piece in pieces(delta, with_ids):
                for choice in choices_of(
                    service, index, piece, splitters[index], generation.params.alternatives, with_ids
                ):
                    if choice.finish_reason == "stop" and splitters[index].called:
                        choice = msgspec.structs.replace(choice, finish_reason=called)
                    yield ChatChunk(**shared, choices=[choice], usage=usage.so_far())
    if ask.reports_usage:
        yield ChatChunk(**shared, choices=[], usage=generation.usage)


def choices_of(
    service: Service, index: int, piece: Delta, channels: ChannelSplitter, top: int | None, with_ids: bool
) -> Iterator[ChatChunkChoice]:
    """One piece of one choice: its text by channels, ids and logprobs with the first of them; or its end."""
    ids = list(piece.token_ids) if with_ids else UNSET
    if piece.finish_reason is not None:
        for segment in channels.flush():
            yield ChatChunkChoice(index, delta_of(segment), token_ids=[] if with_ids else UNSET)
        yield ChatChunkChoice(index, ChatDelta(), None, piece.finish_reason, piece.stop_reason, ids)
        return
    logprobs = None
    if top is not None and piece.logprobs is not None:
        logprobs = chat_logprobs(service.labels, piece, top)
    deltas = [delta_of(segment) for segment in channels.feed(piece.text)]
    if not deltas and (logprobs is not None or with_ids):
        deltas = [ChatDelta(content="")]  # their text is held back, or was a marker
    for delta in deltas:
        yield ChatChunkChoice(index, delta, logprobs, token_ids=ids)
        logprobs, ids = None, [] if with_ids else UNSET


def delta_of(segment: Segment) -> ChatDelta:
    """A segment as a chunk says it."""
    if segment.call is not None:
        place, name, arguments, id = segment.call
        if not name:
            return ChatDelta(tool_calls=[ToolCallDelta(index=place, function=FunctionDelta(arguments=arguments))])
        function, id = FunctionDelta(name=name, arguments=arguments), id or f"call_{uuid4().hex[:24]}"
        return ChatDelta(tool_calls=[ToolCallDelta(index=place, id=id, type="function", function=function)])
    return (
        ChatDelta(reasoning_content=segment.text) if segment.channel == "reasoning" else ChatDelta(content=segment.text)
    )


# ---- what is asked


def max_tokens(ask: ChatRequest) -> tuple[int | None, str]:
    """The limit asked for, and the name it came under.

    Raises:
        ParameterError: two limits that differ.
    """
    old, new = ask.max_tokens, ask.max_completion_tokens
    if new is None:
        return old, "max_tokens"
    if old is not None and old != new:
        raise ParameterError(
            f"max_completion_tokens ({new}) and max_tokens ({old}) are two names of one limit", "max_completion_tokens"
        )
    return new, "max_completion_tokens"


def logprobs_asked(ask: ChatRequest, limit: int) -> int | None:
    """How many alternatives to report per token; None is no logprobs at all.

    Raises:
        ParameterError: top_logprobs without logprobs, or out of range.
    """
    if ask.top_logprobs is not None:
        num_logprobs(ask.top_logprobs, limit, "top_logprobs")
        if ask.top_logprobs and not ask.logprobs:
            raise ParameterError("top_logprobs needs logprobs to be true", "top_logprobs")
    return (ask.top_logprobs or 0) if ask.logprobs else None
