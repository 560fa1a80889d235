"""The order and the roles of messages as a template writes them, with substitutes for turns that it leaves out or
refuses.

A turn that the template writes stays as the client sent it. Otherwise its words move to a turn that the template
writes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from tailrace.errors import RequestError
from tailrace.text.templates.forms import REASONING, Message, TurnForms

SYSTEM = ("system", "developer")
BETWEEN_PARTS, BETWEEN_TURNS = "\n", "\n\n"  # both as vLLM joins them
INVALID = "INVALID_JSON"  # the key in the object that replaces arguments that are no JSON object
CALL = "<tool_call>\n{}\n</tool_call>"
RESULT = "<tool_response>\n{}\n</tool_response>"


def fit_turns(messages: list[Message], forms: TurnForms) -> list[Message]:
    """Return the messages in turns that the template writes.

    Raises:
        RequestError: a tool's result has no call, and the template would leave it out.
    """
    messages = messages if forms.empty_answers else drop_empty_answers(messages, forms)
    messages = messages if forms.turns_before_results else move_results(messages)
    check_results(messages, forms)
    turns = messages if keeps_calls(forms) else list(fit_calls(messages, forms))
    if not forms.parallel:
        turns = split_calls(turns)
    turns = fit_results(turns, forms)
    turns = join_systems(turns) if not forms.all_systems else turns
    turns = fold_systems(turns, forms)
    return join_turns(turns, forms)


def drop_empty_answers(messages: list[Message], forms: TurnForms) -> list[Message]:
    """Return the messages without empty answers. The last one stays: it may be continued."""

    def is_empty(message: Message) -> bool:
        thoughts = REASONING if forms.thoughts != "field" else ()
        has = any(message.get(key) for key in ("content", "tool_calls", *thoughts))
        return message.get("role") == "assistant" and not has

    return [message for message in messages[:-1] if not is_empty(message)] + messages[-1:]


def move_results(messages: list[Message]) -> list[Message]:
    """Return the messages with results directly after their calls, and the turns between them after the results."""
    found: list[Message] = []
    place = None  # after the last call or its last result
    for message in messages:
        if message.get("role") == "tool" and place is not None:
            found.insert(place, message)
            place += 1
            continue
        found.append(message)
        place = len(found) if message.get("tool_calls") else place
    return found


def has_no_result(messages: list[Message], i: int) -> bool:
    """Return whether a turn of the user or the system follows a message with calls, and no result comes before the next
    calls."""
    behind = list(itertools.takewhile(lambda message: not message.get("tool_calls"), messages[i + 1 :]))
    roles = [message.get("role") for message in behind]
    return bool(roles) and roles[0] != "assistant" and "tool" not in roles


def check_results(messages: list[Message], forms: TurnForms) -> None:
    """Raise RequestError for a result without a call, if the template would leave it out."""
    if forms.stray_results:
        return
    called = False
    for i, message in enumerate(messages):
        called |= bool(message.get("tool_calls"))
        if message.get("role") == "tool" and not called:
            raise RequestError(
                f"messages[{i}]: the model's chat template leaves out a tool's result when no message before it has "
                "tool_calls",
                f"messages[{i}]",
            )


def keeps_calls(forms: TurnForms) -> bool:
    """Return whether `fit_calls` changes no message."""
    return forms.calls == "field" and forms.open_calls and forms.text_and_calls not in ("turn", "answered")


def fit_calls(messages: list[Message], forms: TurnForms) -> Iterator[Message]:
    """Yield the messages with calls in the form that the template writes."""
    answers = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    answered = max((i for i in answers if not messages[i].get("tool_calls")), default=-1)
    for i, message in enumerate(messages):
        calls = message.get("tool_calls")
        apart = forms.text_and_calls == "turn" or (forms.text_and_calls == "answered" and i < answered)
        as_text = forms.calls == "text" or (not forms.open_calls and bool(calls) and has_no_result(messages, i))
        if calls and as_text:
            texts = [join_content_text(message.get("content") or ""), *(CALL.format(call_text(call)) for call in calls)]
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            yield rest | {"content": BETWEEN_PARTS.join(filter(None, texts))}
        elif not calls or (forms.calls == "field" and not (apart and message.get("content"))):
            yield message
        elif forms.calls == "field":
            yield {key: value for key, value in message.items() if key != "tool_calls"}
            yield {key: value for key, value in message.items() if key not in ("content", *REASONING)}
        else:
            if message.get("content"):
                yield {key: value for key, value in message.items() if key != "tool_calls"}
            for function in map(function_of, calls):
                arguments = function.get("arguments") or {}
                text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                yield {"role": "assistant", "metadata": function.get("name", ""), "content": text}


def function_of(call: Any) -> dict[str, Any]:
    """Return a call's function; {} if the call lacks a valid one."""
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def call_text(call: Any) -> str:
    """Return a call as JSON text."""
    function = function_of(call)
    written = {"name": function.get("name", ""), "arguments": as_object(function.get("arguments"))}
    return json.dumps(written, ensure_ascii=False)


def as_object(arguments: Any) -> dict[str, Any]:
    """Return arguments as a JSON object. Text that is no JSON object, such as arguments that were cut, becomes a value
    in an object."""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            parsed = arguments
        arguments = {} if parsed is None else parsed if isinstance(parsed, dict) else {INVALID: arguments}
    return arguments or {}


def split_calls(messages: list[Message]) -> list[Message]:
    """Return the messages with one call each. The results that follow move after their calls."""
    found: list[Message] = []
    i = 0
    while i < len(messages):
        message, i = messages[i], i + 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            found.append(message)
            continue
        results: list[Message] = []
        while i < len(messages) and messages[i].get("role") == "tool":
            results.append(messages[i])
            i += 1
        for number, call in enumerate(calls):
            rest = message if number == 0 else {"role": message["role"]}
            found.append(rest | {"tool_calls": [call]})
            mine = [result for result in results if result.get("tool_call_id") == call.get("id")]
            results = [result for result in results if result not in mine]
            found += mine
        found += results
    return found


def fit_results(messages: list[Message], forms: TurnForms) -> list[Message]:
    """Return the messages with tools' results under the role that the template writes, or as text of the user."""
    if forms.results == "tool":
        return messages
    found: list[Message] = []
    for message in messages:
        if message.get("role") != "tool":
            found.append(message)
        elif forms.results != "user":
            found.append(message | {"role": forms.results})
        else:
            text = RESULT.format(join_content_text(message.get("content") or ""))
            last = found[-1] if found and found[-1].get("of_tool") else None
            if last is None:
                found.append({"role": "user", "content": text, "of_tool": True})
            else:
                last["content"] = last["content"] + BETWEEN_PARTS + text
    return [{key: value for key, value in message.items() if key != "of_tool"} for message in found]


def join_systems(messages: list[Message]) -> list[Message]:
    """Return the messages with one system message at the start."""
    first = count_systems(messages)
    if first < 2:
        return list(messages)
    texts = [join_content_text(message.get("content", "")) for message in messages[:first]]
    return [messages[0] | {"content": BETWEEN_TURNS.join(filter(None, texts))}, *messages[first:]]


def count_systems(messages: list[Message]) -> int:
    """Return the number of system messages at the start."""
    return next((i for i, message in enumerate(messages) if message.get("role") not in SYSTEM), len(messages))


def fold_systems(messages: list[Message], forms: TurnForms) -> list[Message]:
    """Return the messages with system messages as text of the user, if the template does not write them.

    The text joins the user's turn before it, else the user's turn after it, else it becomes a turn of its own. So it
    keeps its place, and a longer conversation begins with the same text.
    """
    first = 0 if forms.systems == "nowhere" else count_systems(messages)
    if forms.systems == "anywhere":
        first = len(messages)
    if first == len(messages) == count_systems(messages) and not forms.lone_system:
        first -= 1
    if not any(message.get("role") in SYSTEM for message in messages[first:]):
        return messages
    found, joins = messages[:first], False
    for message in messages[first:]:
        role = message.get("role")
        if role in SYSTEM:
            if not message.get("content"):
                continue
            message = message | {"role": "user"}
            if found and found[-1].get("role") == "user":
                found[-1] = join_messages(found[-1], message)
            else:
                found.append(message)
                joins = True
        elif role == "user" and joins:
            found[-1], joins = join_messages(found[-1], message), False
        else:
            found.append(message)
            joins = False
    return found


def join_turns(messages: list[Message], forms: TurnForms) -> list[Message]:
    """Return the messages with consecutive turns joined, if the template does not write both."""
    if forms.users and forms.assistants and forms.users_behind_results:
        return messages
    found: list[Message] = []
    for message in messages:
        before, role = (found[-1] if found else {}), message.get("role")
        same = before.get("role") == role and not before.get("tool_calls") and "metadata" not in before
        users = role == "user" and same and not forms.users
        behind = role == "user" and before.get("role") == forms.results and not forms.users_behind_results
        if users or behind or (role == "assistant" and same and not forms.assistants and "metadata" not in message):
            found[-1] = join_messages(before, message)
        else:
            found.append(message)
    return found


def join_messages(first: Message, then: Message) -> Message:
    """Return two messages as one with the role of the first. It has both contents and thoughts, and the calls of the
    second."""
    joined = {**then, **first}
    for key in ("content", *REASONING):
        parts = [message[key] for message in (first, then) if message.get(key)]
        if len(parts) == 2:
            joined[key] = join_contents(*parts)
        elif parts:
            joined[key] = parts[0]
    return joined


def join_contents(first: Any, then: Any) -> Any:
    """Return two contents as one: as text if all of both is text, else as parts."""
    both = (first, then)
    if all(isinstance(content, str) or only_text(content) for content in both):
        return BETWEEN_TURNS.join(map(join_content_text, both))
    lists = ([{"type": "text", "text": content}] if isinstance(content, str) else content for content in both)
    return [part for parts in lists for part in parts]


def only_text(parts: list[Any]) -> bool:
    """Return whether all parts are text."""
    return all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts)


def join_content_text(content: Any) -> str:
    """Return a content's text."""
    if isinstance(content, str):
        return content
    return BETWEEN_PARTS.join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
