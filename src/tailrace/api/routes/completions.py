"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tailrace import __version__
from tailrace.api import fold
from tailrace.api.generation import Generation
from tailrace.api.respond import new_id, respond
from tailrace.api.schema.common import finite, read_body
from tailrace.api.schema.completions import (
    DEFAULT_MAX_TOKENS,
    Completion,
    CompletionChoice,
    CompletionRequest,
    Logprobs,
)
from tailrace.api.service import Service
from tailrace.text.stream import Delta
from tailrace.text.tokenizer import Tokenizer


async def completions(request: Request) -> Response:
    """Continue one or several prompts."""
    service = Service.of(request)
    body = await read_body(request, CompletionRequest)
    service.check_name(body.model)
    body.refuse_unsupported()
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = body.sampling(service.tokenizer, service.defaults, limit, body.num_logprobs())
    prompts = [await encode(service.tokenizer, prompt, body.add_special_tokens) for prompt in body.prompts()]
    for prompt in prompts:
        service.check_fit(prompt, params, "prompt")
    echoes = [service.tokenizer.decode(ids) for ids in prompts] if body.echo else None
    generation = Generation(service, prompts, params, new_id("cmpl", body.request_id), body.priority or 0)
    chunks = completion_chunks(service, generation, echoes, bool(body.return_token_ids))
    return await respond(request, chunks, fold.completion, bool(body.stream), body.include_usage)


async def encode(tokenizer: Tokenizer, prompt: str | list[int], add_special_tokens: bool) -> list[int]:
    """A prompt as token ids; long texts off the event loop."""
    if isinstance(prompt, list):
        return prompt
    return await asyncio.to_thread(tokenizer.encode, prompt, add_special_tokens)


async def completion_chunks(
    service: Service, generation: Generation, echoes: list[str] | None, with_ids: bool
) -> AsyncGenerator[Completion, None]:
    """The stream: text per choice (first its prompt, if it is echoed), its finish; at the end the usage."""
    created = int(time.time())

    def chunk(choices: list[CompletionChoice]) -> Completion:
        fingerprint = f"tailrace-{__version__}"
        return Completion(generation.id, created, service.model_name, choices, system_fingerprint=fingerprint)

    started: set[int] = set()
    async for choices in generation.deltas():
        for index, delta in choices:
            text = delta.text
            if echoes is not None and index not in started:
                started.add(index)
                text = echoes[index // generation.params.n] + text
            choice = CompletionChoice(index, text, logprobs(service.tokenizer, delta))
            if delta.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
            choice.token_ids = list(delta.token_ids) if with_ids else UNSET
            yield chunk([choice])
    last = chunk([])
    last.usage = generation.usage
    yield last


def logprobs(tokenizer: Tokenizer, delta: Delta) -> Logprobs | None:
    """A delta's logprobs in the legacy shape; None where none were asked for. The drawn token is always among the top."""
    if delta.logprobs is None:
        return None
    shaped = Logprobs([], [], [], list(delta.offsets))
    for token, details in zip(delta.token_ids, delta.logprobs, strict=True):
        text = tokenizer.text_of(token)
        top: dict[str, float] = {}
        for rival, value in zip(details.top_ids, details.top_logprobs, strict=True):
            top.setdefault(tokenizer.text_of(rival), finite(value))
        top.setdefault(text, finite(details.logprob))
        shaped.tokens.append(text)
        shaped.token_logprobs.append(finite(details.logprob))
        shaped.top_logprobs.append(top)
    return shaped
