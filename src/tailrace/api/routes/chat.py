"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tailrace import __version__
from tailrace.api import fold
from tailrace.api.generation import Generation
from tailrace.api.respond import new_id, respond
from tailrace.api.schema.chat import (
    ChatChunk,
    ChatDelta,
    ChatRequest,
    ChoiceLogprobs,
    ChunkChoice,
    TokenLogprob,
    TopLogprob,
)
from tailrace.api.schema.common import finite, read_body
from tailrace.api.service import Service
from tailrace.text.stream import Delta
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import TokenLogprobs


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service = Service.of(request)
    body = await read_body(request, ChatRequest)
    service.check_name(body.model)
    body.refuse_unsupported()
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    params = body.sampling(service.tokenizer, service.defaults, limit, body.num_logprobs())
    prompt = await asyncio.to_thread(
        service.tokenizer.encode_chat,
        body.template_messages(),
        body.tools,
        body.add_generation_prompt,
        **(body.chat_template_kwargs or {}),
    )
    service.check_fit(prompt, params, "messages")
    generation = Generation(service, [prompt], params, new_id("chatcmpl", body.request_id), body.priority or 0)
    chunks = chat_chunks(service, generation, bool(body.return_token_ids))
    return await respond(request, chunks, fold.chat, bool(body.stream), body.include_usage)


async def chat_chunks(
    service: Service, generation: Generation, with_ids: bool
) -> AsyncGenerator[ChatChunk, None]:
    """The stream: each choice's role with its first text, then text, then its finish; at the end the usage."""
    created = int(time.time())

    def chunk(choices: list[ChunkChoice]) -> ChatChunk:
        fingerprint = f"tailrace-{__version__}"
        return ChatChunk(generation.id, created, service.model_name, choices, system_fingerprint=fingerprint)

    greeted: set[int] = set()
    async for choices in generation.deltas():
        out: list[ChunkChoice] = []
        for index, delta in choices:
            if index not in greeted:
                greeted.add(index)
                out.append(ChunkChoice(index, ChatDelta(role="assistant", content="")))
            choice = ChunkChoice(index, ChatDelta(content=delta.text), logprobs(service.tokenizer, delta))
            if delta.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
            choice.token_ids = list(delta.token_ids) if with_ids else UNSET
            out.append(choice)
        for choice in out:
            yield chunk([choice])
    last = chunk([])
    last.usage = generation.usage
    yield last


def logprobs(tokenizer: Tokenizer, delta: Delta) -> ChoiceLogprobs | None:
    """A delta's logprobs in OpenAI's shape; None where none were asked for."""
    if delta.logprobs is None:
        return None
    pairs = zip(delta.token_ids, delta.logprobs, strict=True)
    return ChoiceLogprobs([entry(tokenizer, token, details) for token, details in pairs])


def entry(tokenizer: Tokenizer, token: int, details: TokenLogprobs) -> TokenLogprob:
    """One drawn token."""

    def top(ids: Sequence[int], values: Sequence[float]) -> list[TopLogprob]:
        return [
            TopLogprob(tokenizer.text_of(i), finite(value), list(tokenizer.bytes_of(i)))
            for i, value in zip(ids, values, strict=True)
        ]

    return TokenLogprob(
        tokenizer.text_of(token),
        finite(details.logprob),
        list(tokenizer.bytes_of(token)),
        top(details.top_ids, details.top_logprobs),
    )
