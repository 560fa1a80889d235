"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from starlette.responses import Response

from tailrace.api.body import BodyReader
from tailrace.api.chat_prompt import chat_text, check_messages, encode_chat
from tailrace.api.chat_tools import flatten_tools
from tailrace.api.received import Received, answers
from tailrace.api.schema.tokenize import TOKENIZE_REFUSED, Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from tailrace.api.streaming import json_response
from tailrace.errors import ParameterError
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.tool_parsers.functions import check_tools

TOKENIZE = BodyReader(TokenizeRequest, TOKENIZE_REFUSED)
DETOKENIZE = BodyReader(DetokenizeRequest, {})
ONLY_OF_MESSAGES = (
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "reasoning_effort",
    "enable_thinking",
    "thinking",
    "reasoning",
    "thinking_token_budget",
    "verbosity",
    "documents",
)


@answers(TOKENIZE)
async def tokenize_input(received: Received[TokenizeRequest]) -> Response:
    """Token ids of a prompt or of messages, as a completion would have them."""
    ask, service = received.ask, received.service
    info = service.client.model
    if (ask.prompt is None) == (not ask.messages):
        raise ParameterError("prompt: either prompt or messages must be given, and not both", "prompt")
    check_body_size(received, "messages" if ask.prompt is None else "prompt")
    if ask.prompt is None:
        check_messages(ask)
        check_tools(ask.tools, nested=True)
        ask.tools = flatten_tools(ask.tools).tools
        ids = await encode_chat(received, ask, bound=False)
        text, special = "", bool(ask.add_special_tokens)
        if ask.return_token_offsets:
            text = await received.render(lambda: chat_text(service.tokenizer, ask))
    else:
        for name in ONLY_OF_MESSAGES:
            if getattr(ask, name) is not None:
                raise ParameterError(f"{name} has no effect without messages", name)
        text, special = ask.prompt, ask.add_special_tokens is not False
        ids = await received.run(lambda: service.tokenizer.encode(text, special), len(text))

    def write_tokens() -> Response:
        strings = [service.tokenizer.token_of(id) for id in ids] if ask.return_token_strs else None
        offsets = find_offsets(service.tokenizer, text, ids, special) if ask.return_token_offsets else UNSET
        return json_response(Tokenized(len(ids), info.max_model_len, ids, strings, offsets))

    return await received.run(write_tokens, len(ids))


def find_offsets(tokenizer: Tokenizer, text: str | None, ids: list[int], special: bool) -> list[tuple[int, int]] | None:
    """Return where in a text its tokens begin and end; None without a text, or if it has other tokens."""
    if text is None:
        return None
    found = tokenizer.backend.encode(text, add_special_tokens=special)
    return found.offsets if found.ids == ids else None


@answers(DETOKENIZE)
async def detokenize_tokens(received: Received[DetokenizeRequest]) -> Response:
    """The text of token ids."""
    ask, service = received.ask, received.service
    info = service.client.model
    check_body_size(received, "tokens")

    def decode_tokens() -> Response:
        for place, id in enumerate(ask.tokens):
            if id >= info.vocab_size:
                raise ParameterError(f"tokens[{place}] must be in 0 … {info.vocab_size - 1}, got {id}", "tokens")
        return json_response(Detokenized(service.tokenizer.decode(ask.tokens)))

    return await received.run(decode_tokens, len(ask.tokens))


def check_body_size(received: Received[Any], field: str) -> None:
    """Raise ParameterError for a body that is too large for these endpoints: no context length bounds their output."""
    most = received.service.config.max_tokenize_kib << 10
    if received.size > most:
        raise ParameterError(
            f"{field}: the body must have at most {most} bytes here (--max-tokenize-kib), got {received.size}",
            field,
        )
