"""A request's body → the hash of its prompt's first blocks, as the engine's prefix cache computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from tailrace.api.chat_prompt import chat_text
from tailrace.api.chat_tools import read_tools
from tailrace.api.messages_input import conversation_of
from tailrace.api.response_input import read_chat
from tailrace.api.routes import chat, compact, completions, generate, messages, responses, token_io
from tailrace.api.schema.responses import ResponsesRequest
from tailrace.engine.block_hash import prefix_hash
from tailrace.errors import ModelNotFoundError, TailraceError
from tailrace.text.tokenizer import Tokenizer

CHARS = 8  # characters per token at the prompt's beginning that are kept; tokens of text have about four


class RoutedModel(NamedTuple):
    """The properties of a model that routing needs. block_size: of its engine's cache. adapters: in the engine's
    order. aliases: other names of the model."""

    name: str
    tokenizer: Tokenizer
    block_size: int
    adapters: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


class Beginning(NamedTuple):
    """The beginning of a prompt: text, which may begin with special tokens, or token ids."""

    model: str | None
    text: Callable[[Tokenizer], str] | None
    token_ids: list[int] | None = None
    special: bool = False


class PromptKeys:
    """Computes keys from the first `blocks` blocks. A request that names no model uses the first one."""

    def __init__(self, models: Sequence[RoutedModel], blocks: int, max_body_items: int) -> None:
        self._models, self._blocks, self._max_items = models, blocks, max_body_items
        named = {adapter: (model, i) for model in models for i, adapter in enumerate(model.adapters, 1)}
        self._served = named | {name: (model, 0) for model in models for name in (model.name, *model.aliases)}

    def of(self, path: str, raw: bytes) -> bytes | None:
        """Return the key. None: the prompt has no full block, or the request has no prompt that can be read here. The
        replica reports invalid requests."""
        read = READERS.get(path)
        if read is None or not self._blocks:
            return None
        try:
            beginning = read(raw, self._max_items)
            if beginning is None:
                return None
            model, adapter = self._find_model(beginning.model)
            return prefix_hash(self._token_ids(beginning, model), model.block_size, self._blocks, adapter)
        except TailraceError:
            return None

    def _find_model(self, name: str | None) -> tuple[RoutedModel, int]:
        if name is None:
            return self._models[0], 0
        if name not in self._served:
            raise ModelNotFoundError(f"the model {name!r:.200} does not exist", "model")
        return self._served[name]

    def _token_ids(self, beginning: Beginning, model: RoutedModel) -> list[int]:
        """Return the prompt's first tokens.

        If the text was cut, the last tokens may not be the prompt's. They lie beyond the blocks that count, unless
        tokens have more than CHARS characters on average.
        """
        if beginning.text is None:
            return beginning.token_ids or []
        text = beginning.text(model.tokenizer)[: (self._blocks + 1) * model.block_size * CHARS]
        return model.tokenizer.encode(text, beginning.special)


def of_chat(raw: bytes, most: int) -> Beginning:
    ask = chat.READER.decoded(raw, most)
    with_tools = read_tools(ask).mode != "none"
    special = bool(ask.add_special_tokens)
    return Beginning(ask.model, lambda tokenizer: chat_text(tokenizer, ask, with_tools), special=special)


def of_message(raw: bytes, most: int) -> Beginning:
    ask = messages.READER.decoded(raw, most)
    conversation, choice = conversation_of(ask)
    return Beginning(ask.model, lambda tokenizer: chat_text(tokenizer, conversation, choice.mode != "none"))


def of_response(raw: bytes, most: int) -> Beginning | None:
    return begin_response(responses.READER.decoded(raw, most))


def of_compaction(raw: bytes, most: int) -> Beginning | None:
    return begin_response(compact.order_summary(compact.READER.decoded(raw, most)))


def begin_response(ask: ResponsesRequest) -> Beginning | None:
    if ask.previous_response_id is not None or ask.conversation is not None:  # the beginning is stored elsewhere
        return None
    if isinstance(ask.input, list):  # an item behind a reference is stored elsewhere
        ask.input = list(takewhile(lambda item: not item.is_reference, ask.input))
        if not ask.input:
            return None
    chat = read_chat(ask, b"[]")
    return Beginning(ask.model, lambda tokenizer: chat_text(tokenizer, chat.ask, chat.choice.mode != "none"))


def of_completion(raw: bytes, most: int) -> Beginning:
    """Return the beginning of the first prompt; it decides for all."""
    ask = completions.READER.decoded(raw, most)
    first: Any = completions.prompts_of(ask.prompt)[0]
    if isinstance(first, str):
        return Beginning(ask.model, lambda tokenizer: first, special=ask.add_special_tokens is not False)
    return Beginning(ask.model, None, first)


def of_native(raw: bytes, most: int) -> Beginning:
    """Return the beginning of the first prompt; it decides for all."""
    ask = generate.READER.decoded(raw, most)
    first = generate.prompts_of(ask)[0]
    if isinstance(first, str):
        return Beginning(ask.model, lambda tokenizer: first, special=True)
    return Beginning(ask.model, None, first)


def of_tokens(raw: bytes, most: int) -> Beginning:
    ask = token_io.TOKENS.decoded(raw, most)
    return Beginning(ask.model, None, ask.token_ids)


READERS: dict[str, Callable[[bytes, int], Beginning | None]] = {
    "/v1/chat/completions": of_chat,
    "/v1/messages": of_message,
    "/v1/responses": of_response,
    "/v1/responses/compact": of_compaction,
    "/inference/v1/generate": of_tokens,
    "/v1/completions": of_completion,
    "/generate": of_native,
}
