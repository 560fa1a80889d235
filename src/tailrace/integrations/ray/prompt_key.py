"""A request's body → the hash of its prompt's first blocks, as the engine's prefix cache will have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tailrace.api.chat_prompt import chat_text
from tailrace.api.messages_input import conversation_of
from tailrace.api.response_input import to_chat
from tailrace.api.routes import chat, completions, generate, messages, responses
from tailrace.api.tool_choice import choice_of
from tailrace.engine.block_hash import prefix_hash
from tailrace.errors import ModelNotFoundError, TailraceError
from tailrace.text.tokenizer import Tokenizer

CHARS = 8  # per token, of which the prompt's beginning is taken: tokens of text have about four


class RoutedModel(NamedTuple):
    """What is to be known of a model. block_size: of its engine's cache. adapters: in the engine's order."""

    name: str
    tokenizer: Tokenizer
    block_size: int
    adapters: tuple[str, ...] = ()


class Beginning(NamedTuple):
    """How a prompt begins: text, which may begin with special tokens, or token ids."""

    model: str | None
    text: Callable[[Tokenizer], str] | None
    token_ids: list[int] | None = None
    special: bool = False


class PromptKeys:
    """Keys by the first `blocks` blocks. The first of the models is that of requests which name none."""

    def __init__(self, models: Sequence[RoutedModel], blocks: int, max_body_items: int) -> None:
        self._models, self._blocks, self._max_items = models, blocks, max_body_items
        named = {adapter: (model, i) for model in models for i, adapter in enumerate(model.adapters, 1)}
        self._served = named | {model.name: (model, 0) for model in models}

    def of(self, path: str, raw: bytes) -> bytes | None:
        """The key. None: the prompt has no full block, or the request has no prompt that can be read here. What is
        wrong with a request, the replica says."""
        read = READERS.get(path)
        if read is None or not self._blocks:
            return None
        try:
            beginning = read(raw, self._max_items)
            if beginning is None:
                return None
            model, adapter = self._find(beginning.model)
            return prefix_hash(self._token_ids(beginning, model), model.block_size, self._blocks, adapter)
        except TailraceError:
            return None

    def _find(self, name: str | None) -> tuple[RoutedModel, int]:
        if name is None:
            return self._models[0], 0
        if name not in self._served:
            raise ModelNotFoundError(f"the model {name!r:.200} does not exist", "model")
        return self._served[name]

    def _token_ids(self, beginning: Beginning, model: RoutedModel) -> list[int]:
        """The prompt's first tokens. Where the text was cut, its last tokens may not be the prompt's: they are beyond
        the blocks that count, unless a token has more than CHARS characters on average."""
        if beginning.text is None:
            return beginning.token_ids or []
        text = beginning.text(model.tokenizer)[: (self._blocks + 1) * model.block_size * CHARS]
        return model.tokenizer.encode(text, beginning.special)


def of_chat(raw: bytes, most: int) -> Beginning:
    ask = chat.READER.decoded(raw, most)
    with_tools = choice_of(ask.tool_choice, ask.tools, ask.parallel_tool_calls).mode != "none"
    return Beginning(ask.model, lambda tokenizer: chat_text(tokenizer, ask, with_tools))


def of_message(raw: bytes, most: int) -> Beginning:
    ask = messages.READER.decoded(raw, most)
    conversation, choice = conversation_of(ask)
    return Beginning(ask.model, lambda tokenizer: chat_text(tokenizer, conversation, choice.mode != "none"))


def of_response(raw: bytes, most: int) -> Beginning | None:
    ask = responses.READER.decoded(raw, most)
    if ask.previous_response_id is not None:  # the conversation's beginning is where the response is stored
        return None
    conversation = to_chat(ask, b"")
    with_tools = choice_of(ask.tool_choice, ask.tools, ask.parallel_tool_calls).mode != "none"
    return Beginning(ask.model, lambda tokenizer: chat_text(tokenizer, conversation, with_tools))


def of_completion(raw: bytes, most: int) -> Beginning:
    """Of several prompts the first decides."""
    ask = completions.READER.decoded(raw, most)
    first: Any = completions.prompts_of(ask.prompt)[0]
    if isinstance(first, str):
        return Beginning(ask.model, lambda tokenizer: first, special=ask.add_special_tokens is not False)
    return Beginning(ask.model, None, first)


def of_native(raw: bytes, most: int) -> Beginning:
    """Of several prompts the first decides."""
    ask = generate.READER.decoded(raw, most)
    first = generate.prompts_of(ask)[0]
    if isinstance(first, str):
        return Beginning(ask.model, lambda tokenizer: first, special=True)
    return Beginning(ask.model, None, first)


READERS: dict[str, Callable[[bytes, int], Beginning | None]] = {
    "/v1/chat/completions": of_chat,
    "/v1/messages": of_message,
    "/v1/responses": of_response,
    "/v1/completions": of_completion,
    "/generate": of_native,
}
