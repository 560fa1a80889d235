"""The items of /v1/responses as the messages of a chat. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tailrace.api import item_tools
from tailrace.api.custom_tools import write_custom_arguments
from tailrace.api.foreign_calls import describe_part, is_foreign_call
from tailrace.api.schema.chat import ChatMessage, Part
from tailrace.api.schema.response_items import InputItem, InputPart
from tailrace.api.tool_kinds import make_function_name
from tailrace.errors import ParameterError
from tailrace.text.tool_parsers.functions import make_value_error

CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    **{call: item_tools.DEFINED[kind].field for call, kind in item_tools.CALLS.items()},
}  # type of an item → its field
COMPACTIONS = ("compaction", "compaction_summary")
OUTPUTS = ("function_call_output", "custom_tool_call_output", *item_tools.OUTPUTS)
REFUSAL = "refusal"
TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def turns_of(items: list[InputItem], begin: int = 0) -> list[ChatMessage]:
    """Input items as the turns of a chat. What a model writes in one answer is one turn: its thoughts, its text and its
    calls. Templates write calls of one turn as parallel ones, and choose the thoughts that the model sees again.

    Args:
        begin: how many of the items are from before the input.
    """
    turns: list[ChatMessage] = []
    foreign = False  # whether the last item is a call that another server has run
    for place, item in enumerate(items, -begin):
        message = message_of(item, f"input[{place}]")
        if message is None:
            continue
        before, foreign = foreign, is_foreign_call(item)
        if turns and is_one_turn(turns[-1], message, before or foreign):
            turns[-1] = merge_messages(turns[-1], message)
        else:
            turns.append(message)
    return turns


def is_one_turn(first: ChatMessage, then: ChatMessage, foreign: bool) -> bool:
    """Both are the model's, and not two plain messages. foreign: one of them is a call that another server has run."""
    more = any(message.tool_calls or message.reasoning_content is not None for message in (first, then))
    return first.role == then.role == "assistant" and (more or foreign)


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
    if is_foreign_call(item):
        return ChatMessage(role="assistant", content=describe_part(item, name))
    if item.type == "reasoning":
        whole = item.content if isinstance(item.content, list) else ()
        thought = join_input_text(whole, f"{name}.content") or join_input_text(item.summary or (), f"{name}.summary")
        return ChatMessage(role="assistant", content="", reasoning_content=thought) if thought else None
    if item.type in CALLS:
        return ChatMessage(role="assistant", content="", tool_calls=[make_call(item, name)])
    if item.type in OUTPUTS:
        return ChatMessage(role="tool", content=read_output(item, name), tool_call_id=find_call_id(item))
    if item.role is None or item.content is None:
        raise ParameterError(f"{name}: a message needs role and content", name)
    if isinstance(item.content, str):
        return ChatMessage(role=item.role, content=item.content)
    return ChatMessage(role=item.role, content=join_input_text(item.content, f"{name}.content"))


def make_call(item: InputItem, name: str) -> dict[str, Any]:
    """Return a call of before as a chat has it.

    Raises:
        ParameterError: naming what it lacks.
    """
    if (kind := item_tools.CALLS.get(item.type or "")) is not None:
        own, arguments = kind, item_tools.write_arguments(kind, getattr(item, CALLS[kind + item_tools.CALL]), name)
    else:
        text = item.input if item.type == "custom_tool_call" else item.arguments
        if item.name is None or text is None:
            raise ParameterError(f"{name}: a {item.type} needs name and {CALLS[item.type or '']}", name)
        if not isinstance(text, str):
            raise make_value_error(f"{name}.arguments", "a string", text)
        own = make_function_name(item.name, item.namespace)
        arguments = write_custom_arguments(text) if item.type == "custom_tool_call" else text
    return {"id": item.call_id, "type": "function", "function": {"name": own, "arguments": arguments}}


def find_call_id(item: InputItem) -> str | None:
    """Return the id of the call whose output an item is. A local shell's output may have it as its own id."""
    return item.call_id or (item.id if item.type == "local_shell_call_output" else None)


def read_output(item: InputItem, name: str) -> str | list[Part]:
    """Return the output of a tool as a chat has it.

    Raises:
        ParameterError: naming what it lacks.
    """
    if isinstance(item.output, InputPart):
        raise make_value_error(f"{name}.output", "a text, or a list of parts", msgspec.to_builtins(item.output))
    if item.type == "apply_patch_call_output":
        if item.status not in ("completed", "failed"):
            raise make_value_error(f"{name}.status", '"completed" or "failed"', item.status)
        text = join_input_text(item.output, f"{name}.output") if isinstance(item.output, list) else item.output
        return f"{item.status}\n{text}" if text else item.status
    if item.output is None:
        raise ParameterError(f"{name}: a {item.type} needs output", name)
    if isinstance(item.output, str):
        return item.output
    if item.type == "shell_call_output":
        return "\n".join(describe_command(part, f"{name}.output[{i}]") for i, part in enumerate(item.output))
    return texts_of(item.output, f"{name}.output")


def describe_command(part: InputPart, name: str) -> str:
    """Return what a command wrote, and how it ended, as text."""
    ended = part.outcome
    if ended is None or (ended.type == "exit" and ended.exit_code is None):
        place = f"{name}.outcome" if ended is None else f"{name}.outcome.exit_code"
        raise ParameterError(f"{place}: required, but missing", place)
    end = "timed out" if ended.type == "timeout" else f"exit code {ended.exit_code}"
    return "\n".join(text for text in (part.stdout, part.stderr, f"[{end}]") if text)


def join_input_text(parts: Sequence[InputPart], name: str) -> str:
    """The text of all parts."""
    return "".join(part.text or "" for part in texts_of(parts, name))


def texts_of(parts: Sequence[InputPart], name: str) -> list[Part]:
    """Parts as a chat has them.

    Raises:
        ParameterError: a part is no text, or lacks it.
    """
    found: list[Part] = []
    for i, part in enumerate(parts):
        if part.type not in (*TEXTS, REFUSAL):
            raise make_value_error(f"{name}[{i}].type", " or ".join((*TEXTS, REFUSAL)), part.type)
        text, field = (part.refusal, REFUSAL) if part.type == REFUSAL else (part.text, "text")
        if text is None:
            raise ParameterError(f"{name}[{i}].{field}: required, but missing", f"{name}[{i}].{field}")
        found.append(Part("text", text))
    return found
