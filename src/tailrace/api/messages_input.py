"""The request of /v1/messages as a chat: Anthropic's turns, tools and thinking in the form of /v1/chat/completions.
Knows no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tailrace.api.anthropic_tools import make_function
from tailrace.api.chat_prompt import check_messages
from tailrace.api.foreign_calls import describe_part, is_foreign_call, is_readable
from tailrace.api.foreign_content import list_of
from tailrace.api.prepare import ChatInput, TokenLimit
from tailrace.api.schema.chat import ChatMessage, ChatRequest, Part, ReasoningEffort, ThinkingOptions
from tailrace.api.schema.common import GenerateRequest
from tailrace.api.schema.message_blocks import InputMessage, MessageBlock
from tailrace.api.schema.messages import Asked, MessagesRequest
from tailrace.api.schema.structured import JsonSchema, JsonSchemaFormat
from tailrace.api.tool_choice import ToolChoice, choice_of
from tailrace.errors import ParameterError, format_json
from tailrace.text.reasoning_probe import SWITCHES
from tailrace.text.tool_parsers.functions import check_tools, make_value_error

ERROR = "Error: "  # before the result of a tool that failed; a chat's messages have no field for it
REFERENCE = "Available tool: "  # before the name of a tool_reference: templates have no place for one
HEADER = "x-anthropic-billing-header:"  # see system_text
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# fields of all endpoints that mean nothing here, or have another name
ABSENT = (
    *("prompt_logprobs", "logprob_token_ids", "report_entropy", "return_token_ids", "explain", "return_sampling_mask"),
    *("stream_options", "prompt_logprob_token_ids"),
)
UNSEEN = ("redacted_thinking", "fallback")  # blocks of the model's turn that are not passed to the model
# fields beyond the sampling fields that mean what they mean in a chat
PASSED = ("negative_prompt", "separate_reasoning", "stop_scope", "reasoning_budget_message", "reasoning_control")


def to_chat(ask: MessagesRequest) -> ChatInput:
    """The request as a chat.

    Raises:
        ParameterError: naming the field.
    """
    if ask.n not in (None, 1):
        raise ParameterError(f"n must be 1, got {ask.n}", "n")
    if ask.stop is not None:
        raise ParameterError("stop_sequences takes the place of stop here", "stop_sequences")
    if ask.thinking_token_budget is not None:
        raise ParameterError(
            "thinking.budget_tokens takes the place of thinking_token_budget here", "thinking.budget_tokens"
        )
    for name in ABSENT:
        if getattr(ask, name):
            raise ParameterError(f"{name} can't be had with /v1/messages", name)
    chat, choice = conversation_of(ask)
    form = None if ask.output_config is None else ask.output_config.format
    chat = msgspec.structs.replace(
        chat,
        **{name: getattr(ask, name) for name in GenerateRequest.__struct_fields__}
        | {name: getattr(ask, name) for name in PASSED},
        thinking_token_budget=None if ask.thinking is None else ask.thinking.budget_tokens,
        response_format=None if form is None else JsonSchemaFormat(JsonSchema(form.schema)),
    )
    chat.stop = ask.stop_sequences
    limit = TokenLimit(ask.max_tokens, "max_tokens", ends_with_context=True)
    return ChatInput(chat, choice, chat.tools, limit, format_field="output_config.format")


def conversation_of(ask: Asked) -> tuple[ChatRequest, ToolChoice]:
    """What becomes the prompt, and which tools may be called.

    Raises:
        ParameterError: naming the field.
    """
    if not ask.messages:
        raise ParameterError("messages must have at least one message, got none", "messages")
    messages = [] if not ask.system else [ChatMessage(role="system", content=system_text(ask.system, "system"))]
    for i, message in enumerate(ask.messages):
        messages += turns_of(message, f"messages[{i}]")
    check_results(ask.messages)
    continued = ask.messages[-1].role == "assistant"
    if continued and messages[-1].tool_calls:
        place = f"messages[{len(ask.messages) - 1}]"
        raise ParameterError(f"{place}: behind a tool_use must come its tool_result, in a message of the user", place)
    flat = [make_function(tool, f"tools[{i}]") for i, tool in enumerate(ask.tools or ())]
    check_tools(flat, nested=False)
    check_references(ask.messages, flat)
    chat = ChatRequest(
        messages=messages,
        tools=[nest_function(tool) for tool in flat] or None,
        chat_template_kwargs=ask.chat_template_kwargs,
        reasoning_effort=effort_of(ask),
        thinking=None if (on := switch_of(ask)) is None else ThinkingOptions(type="enabled" if on else "disabled"),
        add_generation_prompt=not continued,
        continue_final_message=continued,
    )
    check_messages(chat)
    choice = choice_of_tools(ask, flat)
    chat.tool_choice = "none" if choice.mode == "none" else None
    return chat, choice


def check_results(messages: list[InputMessage]) -> None:
    """Raise ParameterError for a tool_result without its tool_use before it."""
    made: set[str | None] = set()
    for i, message in enumerate(messages):
        for j, block in enumerate(() if isinstance(message.content, str) else message.content):
            if block.type == "tool_use":
                made.add(block.id)
            elif block.type == "tool_result" and block.tool_use_id not in made:
                name = f"messages[{i}].content[{j}].tool_use_id"
                id = format_json(block.tool_use_id)
                raise ParameterError(f"{name}: no tool_use of the id {id} comes before its tool_result", name)


def turns_of(message: InputMessage, place: str) -> list[ChatMessage]:
    """A message as the turns of a chat: a tool's result is a turn of its own."""
    role = "system" if message.role == "developer" else message.role
    if isinstance(message.content, str):
        return [ChatMessage(role=role, content=message.content)]
    if role == "assistant":
        return [assistant_turn(message.content, place)]
    if role == "system":
        return [ChatMessage(role="system", content=system_text(message.content, f"{place}.content"))]
    turns: list[ChatMessage] = []
    said: list[Part] = []
    for j, block in enumerate(message.content):
        here = f"{place}.content[{j}]"
        if block.type != "tool_result":
            said.append(Part("text", read_text(block, here, ("text", "tool_result"))))
            continue
        if said:
            turns.append(ChatMessage(role="user", content=join_parts(said)))
            said = []
        turns.append(result_turn(block, here))
    if said or not turns:
        turns.append(ChatMessage(role="user", content=join_parts(said)))
    return turns


def assistant_turn(blocks: list[MessageBlock], place: str) -> ChatMessage:
    """Return the model's turn: text, thoughts and calls. Redacted thoughts are dropped, because no model here can read
    them. Calls that another server has run, and blocks that have nothing but text, are paragraphs of the text."""
    said: list[str] = [""]  # paragraphs; the last one goes on
    thought, calls = [], []
    for j, block in enumerate(blocks):
        here = f"{place}.content[{j}]"
        if is_foreign_call(block) or is_readable(block):
            said += [describe_part(block, here), ""]
            continue
        check_type(block, here, ("text", "thinking", *UNSEEN, "tool_use"))
        if block.type == "text":
            said[-1] += require_field(block, "text", here)
        elif block.type == "thinking":
            thought.append(require_field(block, "thinking", here))
        elif block.type == "tool_use":
            function = {"name": require_field(block, "name", here), "arguments": write_arguments(block, here)}
            calls.append({"id": require_field(block, "id", here), "type": "function", "function": function})
    text = "\n\n".join(filter(None, said))
    return ChatMessage(
        role="assistant", content=text, tool_calls=calls or None, reasoning_content="".join(thought) or None
    )


def write_arguments(block: MessageBlock, place: str) -> str:
    """Return the input of a tool_use as the text of a chat's arguments. A text, or null, is a call that was cut."""
    given = {} if block.input is None else require_field(block, "input", place)
    return given if isinstance(given, str) else msgspec.json.encode(given).decode()


def result_turn(block: MessageBlock, place: str) -> ChatMessage:
    """The result of a tool."""
    if isinstance(block.content, MessageBlock):
        raise make_value_error(f"{place}.content", "a text, or a list of blocks", {"type": block.content.type})
    content = read_text_content(block.content or "", f"{place}.content", ("text", "tool_reference"))
    if block.is_error:
        parts = [Part("text", content)] if isinstance(content, str) else content
        content = join_parts([Part("text", f"{ERROR}{parts[0].text}"), *parts[1:]])
    return ChatMessage(role="tool", content=content, tool_call_id=require_field(block, "tool_use_id", place))


def read_text_content(
    content: str | list[MessageBlock], place: str, served: Sequence[str] = ("text",)
) -> str | list[Part]:
    """Content of which only text is served. served: types of blocks; see `read_text`."""
    if isinstance(content, str):
        return content
    return join_parts([Part("text", read_text(block, f"{place}[{j}]", served)) for j, block in enumerate(content)])


def read_text(block: MessageBlock, place: str, served: Sequence[str]) -> str:
    """Return the text of a block that is text, or has nothing else. served: the types that can be here. The name of a
    tool_reference becomes text.

    Raises:
        ParameterError: the block is of another type, or lacks its text.
    """
    if is_readable(block):
        return describe_part(block, place)
    check_type(block, place, served)
    if block.type == "tool_reference":
        return f"{REFERENCE}{require_field(block, 'tool_name', place)}"
    return require_field(block, "text", place)


def check_references(messages: list[InputMessage], tools: list[dict[str, Any]]) -> None:
    """Raise ParameterError for a tool_reference to a tool that the request does not have."""
    names = {tool["name"] for tool in tools}
    for i, message in enumerate(messages):
        for j, result in enumerate(() if isinstance(message.content, str) else message.content):
            for k, block in enumerate(list_of(result.content)):
                if block.type == "tool_reference" and block.tool_name not in names:
                    place = f"messages[{i}].content[{j}].content[{k}].tool_name"
                    raise ParameterError(f"{place}: tools has no {format_json(block.tool_name)}", place)


def system_text(content: str | list[MessageBlock], place: str) -> str | list[Part]:
    """Return the text of a system message without Claude Code's header for its vendor's accounts.

    The header is a block of its own with a number that differs each time. With it no two prompts would share a prefix.
    """
    if isinstance(content, list):
        content = [block for block in content if not (block.text or "").startswith(HEADER)]
    return read_text_content(content, place)


def join_parts(parts: list[Part]) -> str | list[Part]:
    """Parts as a chat's content; one alone is a string."""
    return parts if len(parts) > 1 else "".join(part.text or "" for part in parts)


def check_type(block: MessageBlock, place: str, served: Sequence[str]) -> None:
    """Raise ParameterError for a block of a type that can't be here."""
    if block.type not in served:
        raise ParameterError(
            f"{place}.type must be {' or '.join(served)}, got {format_json(block.type)}", f"{place}.type"
        )


def require_field(block: MessageBlock, name: str, place: str) -> Any:
    """A field that blocks of this type have.

    Raises:
        ParameterError: it is missing.
    """
    if (value := getattr(block, name)) is None or value is msgspec.UNSET:
        raise ParameterError(f"{place}.{name}: required, but missing", f"{place}.{name}")
    return value


def nest_function(tool: dict[str, Any]) -> dict[str, Any]:
    """A flat function in the form of Chat, which is that of templates."""
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def choice_of_tools(ask: Asked, tools: list[dict[str, Any]]) -> ToolChoice:
    """Which tools may be called.

    Raises:
        ParameterError: naming the field.
    """
    asked = ask.tool_choice
    if asked is None:
        return choice_of(None, tools, None)
    many = not asked.disable_parallel_tool_use
    if asked.type != "tool":
        return choice_of(CHOICES[asked.type], tools, many)
    if asked.name is None:
        raise ParameterError("tool_choice.name: required, but missing", "tool_choice.name")
    return choice_of({"type": "function", "name": asked.name}, tools, many)


def switch_of(ask: Asked) -> bool | None:
    """Whether to think, unless the template's own variable says it.

    Raises:
        ParameterError: a budget is given, but the type of thinking is not "enabled".
    """
    thinking = ask.thinking
    if thinking is None:
        return None
    if thinking.type != "enabled" and thinking.budget_tokens is not None:
        raise ParameterError('thinking.budget_tokens needs the type "enabled"', "thinking.budget_tokens")
    own = any(name in (ask.chat_template_kwargs or {}) for name in SWITCHES)
    return None if own else thinking.type != "disabled"


def effort_of(ask: Asked) -> ReasoningEffort | None:
    """The effort, unless the template's own variable says it."""
    if ask.output_config is None or "reasoning_effort" in (ask.chat_template_kwargs or {}):
        return None
    return ask.output_config.effort
