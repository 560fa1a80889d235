"""Messages → token ids, through the model's chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.api.custom_tools import flatten_call
from tailrace.api.prompt_length import check_length
from tailrace.api.response_warnings import list_names
from tailrace.api.thinking_fields import list_unread_names, wish_of, with_thinking
from tailrace.errors import ParameterError, RequestError, format_json
from tailrace.text.chosen_template import RESERVED
from tailrace.text.tool_parsers.functions import make_value_error

if TYPE_CHECKING:
    from tailrace.api.received import Received
    from tailrace.api.schema.chat import ChatMessage, Conversation, Part
    from tailrace.text.tokenizer import Tokenizer

UNSEEN_TOOLS = "the model's chat template does not write tools, so the model does not see them"
DROPPED_TEXT = "the model's chat template leaves out text beside tool calls, so the model does not see that text"
REFUSED_OF_MESSAGES = {"audio": "only text can be served", "function_call": "not supported; tool_calls has its place"}


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
    kwargs = ask.chat_template_kwargs or {}
    for name in kwargs:
        if name in RESERVED:
            raise ParameterError(f"chat_template_kwargs must not hold {format_json(name)}", "chat_template_kwargs")
    wish_of(ask)


async def encode_chat(
    received: Received[Any], ask: Conversation, with_tools: bool = True, field: str = "messages", bound: bool = True
) -> list[int]:
    """The prompt's token ids, through the model's chat template.

    Args:
        field: what the client calls the messages. bound: refuse a prompt that can't fit the context.

    Raises:
        RequestError: a part that is not text, or the template refuses the messages. ContextLengthError: they are too
            long.
    """
    service = received.service
    try:
        text = await received.render(lambda: chat_text(service.tokenizer, ask, with_tools))
    except RequestError as error:
        if error.param != "messages":
            raise
        raise error.rename_fields({"messages": field}) from error

    def encode_messages() -> list[int]:
        if ask.tools and with_tools:
            check_tools_seen(received, ask)
        messages = [{"tool_calls": m.tool_calls, "content": m.content or m.refusal} for m in ask.messages]
        if service.tokenizer.drops_text(messages, ask.tools if with_tools else None, ask.documents or None):
            received.warn(DROPPED_TEXT)
        if names := list_unread_names(service.tokenizer, ask.chat_template_kwargs or {}):
            received.warn(f"chat_template_kwargs: the model's chat template does not read {list_names(names)}")
        if bound:
            check_length(service, text, field)
        return service.tokenizer.encode(text, add_special_tokens=bool(ask.add_special_tokens))

    return await received.run(encode_messages, received.size)


def check_tools_seen(received: Received[Any], ask: Conversation) -> None:
    """Warn in the log, once per model, and in the answer's headers if the model does not see the tools.

    Raises:
        ParameterError: likewise, where the operator refuses such requests.
    """
    messages, service = [{"role": message.role} for message in ask.messages], received.service
    if service.tokenizer.writes_tools(messages, ask.documents or None):
        return
    if service.config.unseen_tools == "refuse":
        raise ParameterError(f"tools: {UNSEEN_TOOLS}", "tools")
    received.warn(UNSEEN_TOOLS)
    service.warn_once(f"tools of requests are not seen: {UNSEEN_TOOLS}; --unseen-tools refuse makes them an error")


def chat_text(tokenizer: Tokenizer, ask: Conversation, with_tools: bool = True) -> str:
    """The prompt's text, as the model's chat template writes it.

    Raises:
        RequestError: a part that is not text, or the template refuses the messages.
    """
    ask = with_thinking(tokenizer, ask)
    options: dict[str, Any] = {**(ask.chat_template_kwargs or {}), "documents": ask.documents or None}
    continued = bool(ask.continue_final_message)
    options["add_generation_prompt"] = not continued if ask.add_generation_prompt is None else ask.add_generation_prompt
    tools = (ask.tools or None) if with_tools else None
    messages = [template_message(i, message) for i, message in enumerate(ask.messages)]
    return tokenizer.render_chat(messages, tools=tools, unfinished=continued, **options)


def template_message(i: int, message: ChatMessage) -> dict[str, Any]:
    """A message as templates may see it: its content is a string, or a list of parts that are text.

    Raises:
        ParameterError: a part that is not text, a call that is none of a function, or a message without what its role
            needs.
    """
    for name, why in REFUSED_OF_MESSAGES.items():
        if getattr(message, name) is not None:
            raise ParameterError(f"messages[{i}].{name}: {why}", f"messages[{i}].{name}")
    fields: dict[str, Any] = msgspec.to_builtins(message)
    calls = [flatten_call(call, f"messages[{i}].tool_calls[{j}]") for j, call in enumerate(message.tool_calls or ())]
    for j, call in enumerate(calls):
        check_call(call, f"messages[{i}].tool_calls[{j}]")
    if calls:
        fields["tool_calls"] = calls
    refusal, content = fields.pop("refusal", None), message.content
    if isinstance(content, list):
        fields["content"] = [text_part(part, f"messages[{i}].content[{j}]") for j, part in enumerate(content)]
    if refusal:
        said = [{"type": "text", "text": content}] if isinstance(content, str) and content else fields.get("content")
        fields["content"] = [*said, {"type": "text", "text": refusal}] if said else refusal
    if not fields.get("content"):
        if content is None and message.role in ("system", "developer", "user"):
            raise ParameterError(f"messages[{i}].content: required, but missing", f"messages[{i}].content")
        if content is not None or not message.tool_calls:  # beside calls the template knows best what stands for none
            fields["content"] = ""
    return fields


def text_part(part: Part, name: str) -> dict[str, Any]:
    """A part of a content, which must be text.

    Raises:
        ParameterError: the part is of another type, or its text is missing.
    """
    if part.type not in ("text", "refusal"):
        raise ParameterError(f'{name}.type must be "text" or "refusal", got {format_json(part.type)}', f"{name}.type")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise ParameterError(f"{name}.{part.type}: required, but missing", f"{name}.{part.type}")
    return {"type": "text", "text": text}


def check_call(call: dict[str, Any], name: str) -> None:
    """Refuse a call of before that no template could write.

    Raises:
        ParameterError: naming the place.
    """
    if call.get("type", "function") != "function":
        raise make_value_error(f"{name}.type", '"function" or "custom"', call["type"])
    function = call.get("function")
    if not isinstance(function, dict):
        raise ParameterError(f"{name}.function must be an object, got {format_json(function)}", f"{name}.function")
    if not isinstance(function.get("name"), str):
        got = function.get("name")
        raise ParameterError(f"{name}.function.name must be a string, got {format_json(got)}", f"{name}.function.name")
    if not isinstance(function.get("arguments"), str | dict | None):
        got = function["arguments"]
        raise ParameterError(
            f"{name}.function.arguments must be JSON in a string, or an object, got {format_json(got)}",
            f"{name}.function.arguments",
        )
