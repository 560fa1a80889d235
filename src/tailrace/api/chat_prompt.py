"""Messages → token ids, through the model's chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request

from tailrace.api.prompt_length import check_length
from tailrace.api.service import service_of
from tailrace.errors import ParameterError

if TYPE_CHECKING:
    from tailrace.api.schema.chat import ChatMessage, Conversation

# arguments that this server gives to the template, and those that would let a request choose the template
RESERVED = frozenset(
    {
        "messages",
        "conversation",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "unfinished",
        "chat_template",
        "tokenize",
        "return_tensors",
        "return_dict",
        "padding",
        "truncation",
    }
)


def check_messages(ask: Conversation) -> None:
    """Refuse fields that would have no effect, or that the template must not get.

    Raises:
        ParameterError: naming the field.
    """
    if not ask.messages:
        raise ParameterError("messages must have at least one message, got none", "messages")
    if ask.continue_final_message and ask.add_generation_prompt:
        raise ParameterError(
            "continue_final_message can't be true where add_generation_prompt is", "continue_final_message"
        )
    if ask.continue_final_message and ask.messages[-1].role != "assistant":
        raise ParameterError("continue_final_message needs a last message of the assistant", "continue_final_message")
    for name in ask.chat_template_kwargs or ():
        if name in RESERVED:
            raise ParameterError(f"chat_template_kwargs must not hold {name!r}", "chat_template_kwargs")


async def encode_chat(
    request: Request, ask: Conversation, with_tools: bool = True, field: str = "messages", bound: bool = True
) -> list[int]:
    """The prompt's token ids, through the model's chat template.

    Args:
        field: what the client calls the messages. bound: refuse a prompt that can't fit the context.

    Raises:
        RequestError: a part that is not text, or the template refuses the messages. ContextLengthError: they are too
            long.
    """
    service = service_of(request)
    options: dict[str, Any] = dict(ask.chat_template_kwargs or {})
    continued = bool(ask.continue_final_message)
    open_turn = not continued if ask.add_generation_prompt is None else ask.add_generation_prompt
    tools = (ask.tools or None) if with_tools else None

    def work() -> list[int]:
        messages = [template_message(i, message) for i, message in enumerate(ask.messages)]
        text = service.tokenizer.render_chat(
            messages, tools=tools, add_generation_prompt=open_turn, unfinished=continued, **options
        )
        if bound:
            check_length(service, text, field)
        return service.tokenizer.encode(text, add_special_tokens=False)

    return await service.work_queue.run(request, work, request.state.size)


def template_message(i: int, message: ChatMessage) -> dict[str, Any]:
    """A message as templates expect it: content is one string, text parts joined by line breaks."""
    fields: dict[str, Any] = msgspec.to_builtins(message)
    if isinstance(message.content, list):
        texts = []
        for j, part in enumerate(message.content):
            name = f"messages[{i}].content[{j}]"
            if part.type != "text":
                raise ParameterError(f'{name}.type must be "text", got {part.type!r}', f"{name}.type")
            if part.text is None:
                raise ParameterError(f"{name}.text: required, but missing", f"{name}.text")
            texts.append(part.text)
        fields["content"] = "\n".join(texts)
    elif message.content is None:
        if message.role in ("system", "developer", "user"):
            raise ParameterError(f"messages[{i}].content: required, but missing", f"messages[{i}].content")
        fields["content"] = ""
    return fields
