"""Messages → token ids, through the model's chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import Request

from tailrace.api.body import log_once
from tailrace.api.prompt_length import check_length
from tailrace.api.service import service_of
from tailrace.errors import ParameterError

if TYPE_CHECKING:
    from tailrace.api.schema.chat import ChatMessage, Conversation, Part
    from tailrace.text.tokenizer import Tokenizer

# arguments that this server gives to the template, and those that would let a request choose the template
RESERVED = frozenset(
    {
        "messages",
        "conversation",
        "tools",
        "documents",
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
# the names under which templates ask how much to think, and whether
EFFORTS = ("reasoning_effort", "reasoning_strength", "thinking_effort")
SWITCHES = ("enable_thinking", "thinking")
C = TypeVar("C", bound="Conversation")
REFUSED_OF_MESSAGES = {"audio": "only text can be served", "function_call": "not supported; tool_calls has its place"}


def stray_result(messages: list[ChatMessage]) -> ChatMessage | None:
    """The first result of a tool for which no message before it has the call."""
    made: set[str | None] = set()
    for message in messages:
        made |= {call.get("id") for call in message.tool_calls or ()}
        if message.role == "tool" and message.tool_call_id not in made:
            return message
    return None


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
            raise ParameterError(f"chat_template_kwargs must not hold {name!r}", "chat_template_kwargs")
    if ask.reasoning_effort not in (None, kwargs.get("reasoning_effort", ask.reasoning_effort)):
        raise ParameterError(
            f"reasoning_effort ({ask.reasoning_effort!r}) and chat_template_kwargs.reasoning_effort "
            f"({kwargs['reasoning_effort']!r:.100}) differ",
            "reasoning_effort",
        )


def with_effort(tokenizer: Tokenizer, ask: C) -> C:
    """The request with its reasoning_effort moved to the variables that the chat template reads. "none" turns thinking
    off, any other effort turns it on, where the template has a switch; what chat_template_kwargs holds stays."""
    effort, reads = ask.reasoning_effort, tokenizer.template_reads
    if effort is None:
        return ask
    found: dict[str, Any] = {name: effort != "none" for name in SWITCHES if reads(name)}
    if effort != "none" or not found:
        found |= {name: effort for name in EFFORTS if reads(name)}
    if not found:
        log_once("reasoning_effort (the chat template does not ask for it)")
    kwargs = {**found, **(ask.chat_template_kwargs or {})}
    return msgspec.structs.replace(ask, chat_template_kwargs=kwargs, reasoning_effort=None)  # type: ignore[arg-type, return-value]


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

    def work() -> list[int]:
        text = chat_text(service.tokenizer, ask, with_tools)
        if bound:
            check_length(service, text, field)
        return service.tokenizer.encode(text, add_special_tokens=False)

    return await service.work_queue.run(request, work, request.state.size)


def chat_text(tokenizer: Tokenizer, ask: Conversation, with_tools: bool = True) -> str:
    """The prompt's text, as the model's chat template writes it.

    Raises:
        RequestError: a part that is not text, or the template refuses the messages.
    """
    ask = with_effort(tokenizer, ask)
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
    for j, call in enumerate(message.tool_calls or ()):
        check_call(call, f"messages[{i}].tool_calls[{j}]")
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
        ParameterError: it is not, or has none.
    """
    if part.type not in ("text", "refusal"):
        raise ParameterError(f'{name}.type must be "text" or "refusal", got {part.type!r:.100}', f"{name}.type")
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
        raise ParameterError(f'{name}.type must be "function", got {call["type"]!r:.100}', f"{name}.type")
    function = call.get("function")
    if not isinstance(function, dict):
        raise ParameterError(f"{name}.function must be an object, got {function!r:.100}", f"{name}.function")
    if not isinstance(function.get("name"), str):
        got = function.get("name")
        raise ParameterError(f"{name}.function.name must be a string, got {got!r:.100}", f"{name}.function.name")
    if not isinstance(function.get("arguments"), str | dict | None):
        got = function["arguments"]
        raise ParameterError(
            f"{name}.function.arguments must be JSON in a string, or an object, got {got!r:.100}",
            f"{name}.function.arguments",
        )
