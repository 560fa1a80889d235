"""The types of chunks and whole answers, as the official client declares them (ChatCompletionChunk, ChatCompletion and
Completion of openai's Python package). Fields beyond them are allowed. tests/test_chunk_types.py holds this
against the package.
"""

from __future__ import annotations

from typing import Any

from tailrace_conform.plain import quoted

FINISH = {
    True: (None, "stop", "length", "tool_calls", "content_filter", "function_call"),
    False: (None, "", "stop", "length", "content_filter"),
}
ROLES = (None, "developer", "system", "user", "assistant", "tool")
KINDS = {str: "a text", int: "an integer", list: "a list"}
OBJECTS = {True: "chat.completion.chunk", False: "text_completion"}
WHOLE_CHAT = "chat.completion"


def chunk_problem(chunk: Any, chat: bool, whole: bool = False) -> str | None:
    """What is wrong with a chunk, or with a whole answer, or None. An error object is neither, and is not judged
    here."""
    if not isinstance(chunk, dict):
        return "the answer is no object" if whole else "the chunk is no object"
    if "error" in chunk:
        return None
    for name, kind in (("id", str), ("created", int), ("model", str), ("choices", list)):
        if not isinstance(chunk.get(name), kind) or isinstance(chunk.get(name), bool):
            return f"{name} is {shown(chunk, name)}, not {KINDS[kind]}"
    kind = WHOLE_CHAT if whole and chat else OBJECTS[chat]
    if chunk.get("object") != kind:
        return f"object is {shown(chunk, 'object')}, not {quoted(kind)}"
    if chunk.get("usage") is not None and (said := usage_problem(chunk["usage"])):
        return said
    return next((said for one in chunk["choices"] if (said := choice_problem(one, chat, whole))), None)


def shown(found: dict[str, Any], name: str) -> str:
    return quoted(found[name]) if name in found else "missing"


def usage_problem(usage: Any) -> str | None:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    if isinstance(usage, dict) and all(type(usage.get(name)) is int for name in names):
        return None
    return f"usage lacks one of {', '.join(names)}"


def choice_problem(one: Any, chat: bool, whole: bool) -> str | None:
    if not isinstance(one, dict) or type(one.get("index")) is not int:
        return "a choice has no integer as index"
    if one.get("finish_reason") not in FINISH[chat] or (whole and not one.get("finish_reason")):
        return f"finish_reason is {shown(one, 'finish_reason')}"
    if not chat:
        return None if isinstance(one.get("text"), str) else f"text is {shown(one, 'text')}, not a text"
    name = "message" if whole else "delta"
    if not isinstance(one.get(name), dict):
        return f"{name} is {shown(one, name)}, not an object"
    return message_problem(one[name]) if whole else delta_problem(one[name])


def message_problem(message: dict[str, Any]) -> str | None:
    if not isinstance(message.get("content"), str | None):
        return f"content is {shown(message, 'content')}, not a text"
    if message.get("role") != "assistant":
        return f"role is {shown(message, 'role')}"
    return calls_problem(message, whole=True)


def delta_problem(delta: dict[str, Any]) -> str | None:
    if not isinstance(delta.get("content"), str | None):
        return f"content is {shown(delta, 'content')}, not a text"
    if delta.get("role") not in ROLES:
        return f"role is {shown(delta, 'role')}"
    return calls_problem(delta, whole=False)


def calls_problem(said: dict[str, Any], whole: bool) -> str | None:
    """Of a message's tool calls, or a delta's, which has an index for each and may lack the rest."""
    calls = said.get("tool_calls")
    if not isinstance(calls, list | None):
        return f"tool_calls is {shown(said, 'tool_calls')}, not a list"
    text = str if whole else str | None
    for call in calls or ():
        if not isinstance(call, dict) or not (whole or type(call.get("index")) is int):
            return "a tool call is no object" if whole else "a tool call's delta has no integer as index"
        if not isinstance(call.get("id"), text):
            return f"a tool call's id is {shown(call, 'id')}, not a text"
        function = call.get("function")
        if function is None and not (whole and call.get("type") == "function"):
            continue
        if not isinstance(function, dict) or not all(isinstance(function.get(n), text) for n in ("name", "arguments")):
            return "a tool call's name and arguments must be texts"
    return None
