"""The input of /v1/responses as a chat, and a response's output as the messages of the next turn. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from tailrace.api.chat_prompt import check_messages
from tailrace.api.custom_tools import write_custom_arguments
from tailrace.api.foreign_tools import restore_places
from tailrace.api.schema.chat import ChatMessage, ChatRequest, Part
from tailrace.api.schema.common import GenerateRequest
from tailrace.api.schema.responses import InputItem, InputPart, OutputItem, ResponsesRequest
from tailrace.api.schema.structured import FlatJsonSchemaFormat, JsonSchema, JsonSchemaFormat, ResponseFormat
from tailrace.api.thinking_fields import GivenField, read_agreed_value
from tailrace.api.tool_choice import ToolChoice, choice_of
from tailrace.api.tool_kinds import (
    FlatTools,
    flatten_tools,
    make_function_name,
    rename_choice,
)
from tailrace.errors import ParameterError, format_json
from tailrace.text.tool_parsers.functions import check_tools

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}  # type of an item → its field
COMPACTIONS = ("compaction", "compaction_summary")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
# reports of tokens that have no place in the answer
ABSENT = (
    *("prompt_logprobs", "prompt_logprob_token_ids", "logprob_token_ids", "report_entropy"),
    *("return_token_ids", "return_sampling_mask"),
)


class ResponseChat(NamedTuple):
    """A request as a chat, which tools the model may call, and the tools as functions."""

    ask: ChatRequest
    choice: ToolChoice
    tools: FlatTools


def read_chat(ask: ResponsesRequest, before: bytes) -> ResponseChat:
    """Return the request as a chat. before: the messages of the conversation that it continues, as JSON, or b"".

    Raises:
        ParameterError: naming the field.
    """
    tools = flatten_tools(ask.tools)
    try:
        check_tools(tools.functions, nested=False)
        wanted = rename_choice(ask.tool_choice, tools.offered)
        choice = choice_of(wanted, tools.functions, ask.parallel_tool_calls)
        choice = choice._replace(custom={own: one.lark for own, one in tools.offered.items() if one.custom})
    except ParameterError as error:
        raise restore_places(error, tools.places) from None
    return ResponseChat(to_chat(ask, before, tools.functions, wanted), choice, tools)


def to_chat(
    ask: ResponsesRequest, before: bytes, functions: list[dict[str, Any]] | None, tool_choice: Any
) -> ChatRequest:
    """Return the request as a chat, with these functions as its tools. before: see `read_chat`.

    Raises:
        ParameterError: naming the field.
    """
    check_absent(ask)
    messages = [] if ask.instructions is None else [ChatMessage(role="system", content=ask.instructions)]
    if before:
        messages += msgspec.json.decode(before, type=list[ChatMessage])
    items = read_input(ask.input)
    made = {call.get("id") for message in messages for call in message.tool_calls or ()}
    messages += turns_of(items)
    if not items or not messages:
        raise ParameterError("input must hold a message", "input")
    check_results(items, made)
    of_text = (ask.text and ask.text.verbosity) or None
    verbosities = [GivenField("verbosity", ask.verbosity), GivenField("text.verbosity", of_text)]
    shared = {name: getattr(ask, name) for name in GenerateRequest.__struct_fields__}
    chat = ChatRequest(
        **shared,
        messages=messages,
        tools=[tool_of(tool) for tool in functions or ()] or None,
        tool_choice=tool_choice,
        chat_template_kwargs=ask.chat_template_kwargs,
        reasoning=ask.reasoning,
        enable_thinking=ask.enable_thinking,
        thinking=ask.thinking,
        reasoning_effort=ask.reasoning_effort,
        verbosity=read_agreed_value(verbosities),
        separate_reasoning=ask.separate_reasoning,
        stop_scope=ask.stop_scope,
        thinking_token_budget=ask.thinking_token_budget,
        reasoning_budget_message=ask.reasoning_budget_message,
        reasoning_control=ask.reasoning_control,
        negative_prompt=ask.negative_prompt,
        response_format=response_format(ask),
    )
    check_messages(chat)
    return chat


def check_absent(ask: ResponsesRequest) -> None:
    """Raise ParameterError for a field of all endpoints that means nothing here, or has another name."""
    if ask.max_tokens is not None:
        raise ParameterError("max_tokens: here it is max_output_tokens", "max_tokens")
    if ask.n not in (None, 1):
        raise ParameterError(f"n must be 1, got {ask.n}", "n")
    for name in ABSENT:
        if getattr(ask, name):
            raise ParameterError(f"{name} can't be had with /v1/responses", name)
    if ask.reasoning is not None and ask.reasoning.exclude:
        raise ParameterError("reasoning.exclude: not supported; leave it out (or false)", "reasoning.exclude")


def check_results(items: list[InputItem], made: set[str | None]) -> None:
    """Raise ParameterError, as OpenAI does, for a function's output without its call before it.

    Args:
        made: ids of the calls before the items.
    """
    for place, item in enumerate(items):
        if item.type in CALLS:
            made.add(item.call_id)
        elif (item.type in OUTPUTS or item.role == "tool") and item.call_id not in made:
            name = f"input[{place}].call_id"
            id = format_json(item.call_id)
            raise ParameterError(f"{name}: no tool call found for function call output with call_id {id}", name)


def turns_of(items: list[InputItem]) -> list[ChatMessage]:
    """Input items as the turns of a chat. What a model writes in one answer is one turn: its thoughts, its text and its
    calls. Templates write calls of one turn as parallel ones, and choose the thoughts that the model sees again."""
    turns: list[ChatMessage] = []
    for place, item in enumerate(items):
        message = message_of(item, f"input[{place}]")
        if message is None:
            continue
        if turns and is_one_turn(turns[-1], message):
            turns[-1] = merge_messages(turns[-1], message)
        else:
            turns.append(message)
    return turns


def is_one_turn(first: ChatMessage, then: ChatMessage) -> bool:
    """Both are the model's, and not two plain messages."""
    more = any(message.tool_calls or message.reasoning_content is not None for message in (first, then))
    return first.role == then.role == "assistant" and more


def merge_messages(first: ChatMessage, then: ChatMessage) -> ChatMessage:
    """Two parts of a turn as one: items stand apart as paragraphs do."""
    texts = [message.content for message in (first, then) if isinstance(message.content, str) and message.content]
    thoughts = [message.reasoning_content for message in (first, then) if message.reasoning_content is not None]
    return ChatMessage(
        role="assistant",
        content="\n\n".join(texts),
        reasoning_content="\n\n".join(thoughts) if thoughts else None,
        tool_calls=[*(first.tool_calls or ()), *(then.tool_calls or ())] or None,
    )


def response_format(ask: ResponsesRequest) -> ResponseFormat | None:
    """text.format as Chat has it."""
    form = None if ask.text is None else ask.text.format
    if isinstance(form, FlatJsonSchemaFormat):
        return JsonSchemaFormat(JsonSchema(form.schema, form.name, form.strict, form.description))
    return form


def read_input(given: str | list[InputItem]) -> list[InputItem]:
    """Return the input of a request as items. A text is a message of the user."""
    return [InputItem(role="user", content=given)] if isinstance(given, str) else given


def message_of(item: InputItem, name: str) -> ChatMessage | None:
    """An input item as the chat template takes it; None: it says nothing to the model.

    Raises:
        ParameterError: naming what it lacks.
    """
    if item.is_reference:
        raise ParameterError(f"{name}: an item_reference needs the id of a stored item", name)
    if item.type in COMPACTIONS:
        if not isinstance(item.content, list):
            raise ParameterError(f"{name}.encrypted_content: required, but missing", f"{name}.encrypted_content")
        return ChatMessage(role="assistant", content=join_input_text(item.content, f"{name}.content"))
    if item.type == "reasoning":
        whole = item.content if isinstance(item.content, list) else ()
        thought = join_input_text(whole, f"{name}.content") or join_input_text(item.summary or (), f"{name}.summary")
        return ChatMessage(role="assistant", content="", reasoning_content=thought) if thought else None
    if item.type in CALLS:
        text = item.input if item.type == "custom_tool_call" else item.arguments
        if item.name is None or text is None:
            raise ParameterError(f"{name}: a {item.type} needs name and {CALLS[item.type]}", name)
        arguments = write_custom_arguments(text) if item.type == "custom_tool_call" else text
        function = {"name": make_function_name(item.name, item.namespace), "arguments": arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        return ChatMessage(role="assistant", content="", tool_calls=[call])
    if item.type in OUTPUTS:
        if item.output is None:
            raise ParameterError(f"{name}: a {item.type} needs output", name)
        output = item.output if isinstance(item.output, str) else texts_of(item.output, f"{name}.output")
        return ChatMessage(role="tool", content=output, tool_call_id=item.call_id)
    if item.role is None or item.content is None:
        raise ParameterError(f"{name}: a message needs role and content", name)
    if isinstance(item.content, str):
        return ChatMessage(role=item.role, content=item.content)
    return ChatMessage(role=item.role, content=join_input_text(item.content, f"{name}.content"))


def join_input_text(parts: Sequence[InputPart], name: str) -> str:
    """The text of all parts."""
    return "".join(part.text or "" for part in texts_of(parts, name))


TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def texts_of(parts: Sequence[InputPart], name: str) -> list[Part]:
    """Parts as a chat has them.

    Raises:
        ParameterError: one of them is no text.
    """
    for part in parts:
        if part.type not in TEXTS or part.text is None:
            raise ParameterError(f"{name}: only text can be served, got {format_json(part.type)}", name)
    return [Part("text", part.text) for part in parts]


def tool_of(tool: dict[str, Any]) -> dict[str, Any]:
    """A function as chat templates expect it: its fields one level deeper."""
    return {
        "type": "function",
        "function": {key: value for key, value in tool.items() if key not in ("type", "strict")},
    }


def to_messages(output: list[OutputItem]) -> list[dict[str, Any]]:
    """The output as the messages of the next turn: the same as where a client sends its items back."""
    return msgspec.to_builtins(turns_of([sent_back(item) for item in output]))


def sent_back(item: OutputItem) -> InputItem:
    """An item of an output as one of an input."""
    names = ("type", "role", "call_id", "name", "namespace", "arguments", "input")
    fields = {name: value for name in names if (value := getattr(item, name)) is not UNSET}
    parts = [{"type": part.type, "text": part.text} for part in item.content or ()]
    return msgspec.convert(fields | {"content": parts}, InputItem)


def to_items(messages: list[ChatMessage], id: str) -> list[dict[str, Any]]:
    """The messages that a response of this id answers, as OpenAI lists them. The ids of items come from theirs."""
    found: list[dict[str, Any]] = []

    def add_item(kind: str, prefix: str, **fields: Any) -> None:
        own = f"{prefix}_{id.removeprefix('resp_')}_{len(found)}"
        found.append({"id": own, "type": kind, "status": "completed", **fields})

    for message in messages:
        parts = message.content or []
        texts = [parts] if isinstance(parts, str) else [part.text or "" for part in parts]
        if message.role == "tool":
            content = texts[0] if isinstance(parts, str) else [{"type": "input_text", "text": text} for text in texts]
            add_item("function_call_output", "fco", call_id=message.tool_call_id, output=content)
            continue
        mine = message.role == "assistant"
        kind: dict[str, Any] = {"type": "output_text", "annotations": []} if mine else {"type": "input_text"}
        content = [kind | {"text": text} for text in texts]
        if message.reasoning_content is not None:
            add_item(
                "reasoning", "rs", summary=[], content=[{"type": "reasoning_text", "text": message.reasoning_content}]
            )
        if any(texts) or not mine:
            add_item("message", "msg", role=message.role, content=content)
        for call in message.tool_calls or ():
            function = call["function"]
            add_item("function_call", "fc", call_id=call["id"], name=function["name"], arguments=function["arguments"])
    return found
