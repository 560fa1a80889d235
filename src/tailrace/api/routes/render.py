"""POST /render behind the paths of chats, completions, messages and responses: prompts as token ids, in vLLM's shapes
(decision 0107)."""

from __future__ import annotations

from typing import Any, cast

from starlette.responses import Response

from tailrace.api.body import BodyReader
from tailrace.api.chat_prompt import chat_text
from tailrace.api.messages_input import to_chat
from tailrace.api.prepare import PreparedRequest, prepare_chat
from tailrace.api.received import Received, answers
from tailrace.api.routes.chat import prepare_completion
from tailrace.api.routes.completions import prepare_texts, prompts_of
from tailrace.api.routes.messages import READER as MESSAGES_READER
from tailrace.api.routes.responses import READER as RESPONSES_READER
from tailrace.api.routes.responses import prepare_response
from tailrace.api.routes.token_io import check_prompt, prepare_tokens
from tailrace.api.routes.tokenize import find_offsets
from tailrace.api.schema.chat import ChatRequest
from tailrace.api.schema.completions import CompletionRequest
from tailrace.api.schema.messages import MessagesRequest
from tailrace.api.schema.responses import ResponsesRequest
from tailrace.api.schema.token_io import (
    RENDER_CHAT_REFUSED,
    RENDER_COMPLETION_REFUSED,
    RenderChatRequest,
    RenderCompletionRequest,
    Rendered,
)
from tailrace.api.streaming import json_response
from tailrace.api.token_params import find_difference, read_params, write_params
from tailrace.api.work_queue import JSON_BYTES
from tailrace.errors import ParameterError

RENDER_CHAT = BodyReader(RenderChatRequest, RENDER_CHAT_REFUSED)
RENDER_COMPLETION = BodyReader(RenderCompletionRequest, RENDER_COMPLETION_REFUSED)


@answers(RENDER_CHAT)
async def render_chat(received: Received[RenderChatRequest]) -> Response:
    """A chat's prompt as token ids, with the sampling parameters that generate the same tokens."""
    ask, chat = received.ask, cast(Received[ChatRequest], received)
    prepared, _, choice = await prepare_completion(chat)
    text = None
    if ask.return_token_offsets:
        tools = choice.mode != "none"
        text = await received.render(lambda: chat_text(received.service.tokenizer, ask, tools))
    special = bool(ask.add_special_tokens)
    id = f"chatcmpl-{received.request_id}"
    [rendered] = await make_rendered(received, ask, id, prepared, [text], special)
    return json_response(rendered)


@answers(RENDER_COMPLETION)
async def render_completion(received: Received[RenderCompletionRequest]) -> Response:
    """The same of each prompt of a completion."""
    ask = received.ask
    for name in ("echo", "best_of"):
        if getattr(ask, name):
            raise ParameterError(f"{name} can't be rendered", name)
    prompts = prompts_of(ask.prompt)
    prepared = await prepare_texts(received, ask, prompts)
    texts = [prompt if isinstance(prompt, str) and ask.return_token_offsets else None for prompt in prompts]
    special = ask.add_special_tokens is not False
    id = f"cmpl-{received.request_id}"
    return json_response(await make_rendered(received, ask, id, prepared, texts, special))


@answers(MESSAGES_READER)
async def render_message(received: Received[MessagesRequest]) -> Response:
    """Return the prompt of a message of Anthropic's API as token ids, with its sampling parameters."""
    chat = await received.run(lambda: to_chat(received.ask), received.size // JSON_BYTES)
    prepared, _ = await prepare_chat(received, chat)
    id = f"msg_{received.request_id}"
    [rendered] = await make_rendered(received, chat.ask, id, prepared, [None], False)
    return json_response(rendered)


@answers(RESPONSES_READER)
async def render_response(received: Received[ResponsesRequest]) -> Response:
    """Return the prompt of a response as token ids, with the conversation that it continues. Store nothing."""
    prepared, _, chat = await prepare_response(received)
    id = f"resp_{received.request_id}"
    [rendered] = await make_rendered(received, chat.ask, id, prepared, [None], False)
    return json_response(rendered)


async def make_rendered(
    received: Received[Any],
    ask: ChatRequest | CompletionRequest,
    id: str,
    prepared: PreparedRequest,
    texts: list[str | None],
    special: bool,
) -> list[Rendered]:
    """What generates the same tokens as a prepared request, prompt by prompt.

    Args:
        ask: the request as a chat or a completion. texts: of the prompts whose offsets are asked for. special: they
            have special tokens.

    Raises:
        ParameterError: the request needs more than sampling parameters.
    """
    service = received.service
    if ask.use_beam_search:
        raise ParameterError("use_beam_search can't be rendered", "use_beam_search")
    params = write_params(ask, prepared.params, ask.response_format)
    for ids in prepared.prompts:
        check_prompt(received, ids, "prompt")
    again = await prepare_tokens(received, read_params(params), prepared.prompts)
    if (name := find_difference(prepared.params, again.params)) is not None:
        field = prepared.grammar_field if name == "grammar" else name
        raise ParameterError(f"{field}: a request with it can't be rendered; send it to its own endpoint", field)
    several, size = len(prepared.prompts) > 1, sum(len(text or "") for text in texts)
    pairs = [*zip(texts, prepared.prompts, strict=True)]
    offsets = await received.run(lambda: [find_offsets(service.tokenizer, *pair, special) for pair in pairs], size)
    return [
        Rendered(
            request_id=f"{id}-{place}" if several else id,
            token_ids=ids,
            token_offsets=offsets[place],
            sampling_params=params,
            model=service.model_name,
            stream=received.ask.streamed,
            stream_options=ask.stream_options if received.ask.streamed else None,
            cache_salt=ask.cache_salt,
            priority=ask.priority or 0,
            return_token_ids=ask.return_token_ids,
        )
        for place, ids in enumerate(prepared.prompts)
    ]
