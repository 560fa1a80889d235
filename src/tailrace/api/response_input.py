"""The request of /v1/responses as a chat. Knows no HTTP."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tailrace.api.chat_prompt import check_messages
from tailrace.api.foreign_tools import restore_places
from tailrace.api.item_messages import CALLS, OUTPUTS, find_call_id, turns_of
from tailrace.api.kept_items import keep_item
from tailrace.api.schema.chat import ChatMessage, ChatRequest
from tailrace.api.schema.common import GenerateRequest
from tailrace.api.schema.response_items import InputItem
from tailrace.api.schema.responses import ResponsesRequest
from tailrace.api.schema.structured import FlatJsonSchemaFormat, JsonSchema, JsonSchemaFormat, ResponseFormat
from tailrace.api.thinking_fields import GivenField, read_agreed_value
from tailrace.api.tool_choice import ToolChoice, choice_of
from tailrace.api.tool_kinds import (
    FlatTools,
    flatten_tools,
    rename_choice,
)
from tailrace.errors import ParameterError, format_json
from tailrace.text.tool_parsers.functions import check_tools

# reports of tokens that have no place in the answer
ABSENT = (
    *("prompt_logprobs", "prompt_logprob_token_ids", "logprob_token_ids", "report_entropy"),
    *("return_token_ids", "return_sampling_mask"),
)


class ResponseChat(NamedTuple):
    """A request as a chat, which tools the model may call, the tools as functions, and the items of the whole
    conversation as they are kept."""

    ask: ChatRequest
    choice: ToolChoice
    tools: FlatTools
    items: list[dict[str, Any]]


def read_chat(ask: ResponsesRequest, before: bytes) -> ResponseChat:
    """Return the request as a chat. before: the items of the conversation that it continues, as JSON.

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
    earlier = msgspec.json.decode(before, type=list[InputItem])
    chat = to_chat(ask, earlier, tools.functions, wanted)
    kept = [*msgspec.json.decode(before), *map(keep_item, read_input(ask.input))]
    return ResponseChat(chat, choice, tools, kept)


def to_chat(
    ask: ResponsesRequest, earlier: list[InputItem], functions: list[dict[str, Any]] | None, tool_choice: Any
) -> ChatRequest:
    """Return the request as a chat, with these functions as its tools. earlier: the items before its input.

    Raises:
        ParameterError: naming the field.
    """
    check_absent(ask)
    messages = [] if ask.instructions is None else [ChatMessage(role="system", content=ask.instructions)]
    items = read_input(ask.input)
    messages += turns_of([*earlier, *items], len(earlier))
    if not items or not messages:
        raise ParameterError("input must hold a message", "input")
    check_results(items, {item.call_id for item in earlier if item.type in CALLS})
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
        elif (item.type in OUTPUTS or item.role == "tool") and find_call_id(item) not in made:
            name = f"input[{place}].call_id"
            id = format_json(find_call_id(item))
            raise ParameterError(f"{name}: no tool call found for function call output with call_id {id}", name)


def response_format(ask: ResponsesRequest) -> ResponseFormat | None:
    """text.format as Chat has it."""
    form = None if ask.text is None else ask.text.format
    if isinstance(form, FlatJsonSchemaFormat):
        return JsonSchemaFormat(JsonSchema(form.schema, form.name, form.strict, form.description))
    return form


def read_input(given: str | list[InputItem]) -> list[InputItem]:
    """Return the input of a request as items. A text is a message of the user."""
    return [InputItem(role="user", content=given)] if isinstance(given, str) else given


def tool_of(tool: dict[str, Any]) -> dict[str, Any]:
    """A function as chat templates expect it: its fields one level deeper."""
    return {
        "type": "function",
        "function": {key: value for key, value in tool.items() if key not in ("type", "strict")},
    }
