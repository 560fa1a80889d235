"""POST /tokenize and /detokenize."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.body import BodyReader
from tailrace.api.conversation import check_conversation, encode
from tailrace.api.respond import json_answer
from tailrace.api.schema.tokenize import TOKENIZE_REFUSED, Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from tailrace.api.service import service_of
from tailrace.errors import ParameterError

TOKENIZE = BodyReader(TokenizeRequest, TOKENIZE_REFUSED)
DETOKENIZE = BodyReader(DetokenizeRequest, {})
ONLY_OF_MESSAGES = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


async def tokenize(request: Request) -> Response:
    """Token ids of a prompt or a conversation, as a completion of it would have them."""
    service = service_of(request)
    ask = await TOKENIZE.read(request)
    info = service.supervisor.check()
    service.check_model(ask.model)
    if (ask.prompt is None) == (not ask.messages):
        raise ParameterError("prompt: either prompt or messages must be given, and not both", "prompt")
    if ask.prompt is None:
        if ask.add_special_tokens:
            raise ParameterError(
                "add_special_tokens has no effect on messages: the template writes them", "add_special_tokens"
            )
        check_conversation(ask)
        ids = await encode(service, ask)
    else:
        for name in ONLY_OF_MESSAGES:
            if getattr(ask, name) is not None:
                raise ParameterError(f"{name} has no effect without messages", name)
        text, special = ask.prompt, ask.add_special_tokens is not False
        ids = await service.tokenized(lambda: service.tokenizer.encode(text, special), len(text))
    strings = [service.tokenizer.token_of(id) for id in ids] if ask.return_token_strs else None
    return json_answer(Tokenized(len(ids), info.max_model_len, ids, strings))


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    service = service_of(request)
    ask = await DETOKENIZE.read(request)
    info = service.supervisor.check()
    service.check_model(ask.model)
    for place, id in enumerate(ask.tokens):
        if id >= info.vocab_size:
            raise ParameterError(f"tokens[{place}] must be in 0 … {info.vocab_size - 1}, got {id}", "tokens")
    text = await service.tokenized(lambda: service.tokenizer.decode(ask.tokens), len(ask.tokens))
    return json_answer(Detokenized(text))
