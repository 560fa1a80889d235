"""Messages of OpenAI's API → messages in a template's forms.

Nothing is lost: a message stays unchanged if the template supports its form. Otherwise its form changes, never its
text.
"""

from __future__ import annotations

import json
from typing import Any

from tailrace.text.templates.forms import REASONING, EmptyForm, Message, TemplateForms
from tailrace.text.templates.turns import as_object, fit_turns, join_content_text, only_text

BEHIND_THOUGHT = "\n\n"
NAMES = frozenset(REASONING)
THOUGHT = "<think>\n{}\n</think>\n\n"


def fit_messages(messages: list[Message], forms: TemplateForms, tools: bool = True) -> list[Message]:
    """Return the messages in the template's forms. Keys whose value is null are left out, as in transformers.

    tools: whether the request has tools.

    Raises:
        RequestError: see `fit_turns`.
    """
    fitted = [
        {key: value for key, value in m.items() if value is not None} if None in m.values() else m for m in messages
    ]
    if not forms.developer:
        fitted = [m | {"role": "system"} if m.get("role") == "developer" else m for m in fitted]
    turns = forms.turns if tools or forms.turns.calls_without_tools else forms.turns._replace(calls="text")
    fitted = fit_turns(fitted, turns)
    names: dict[str, str] = {}
    texts = {role for role, written in forms.contents.items() if "text" in written and role != forms.turns.results}
    for i, message in enumerate(fitted):
        if len(message) == 2 and isinstance(message.get("content"), str) and message.get("role") in texts:
            continue  # nothing but a role and a text
        message = with_reasoning(message, forms.turns.thoughts)
        if "tool_calls" in message:
            message = with_calls(message, forms, names)
        elif forms.result_names and message.get("role") == forms.turns.results and "name" not in message:
            name = names.get(message.get("tool_call_id", ""))
            message = message if name is None else message | {"name": name}
        fitted[i] = with_content(message, forms)
    return fitted


def with_reasoning(message: Message, form: str) -> Message:
    """Return the message with the model's thoughts under each name that templates read, or in the content."""
    if NAMES.isdisjoint(message):
        return message
    thought = next((message[name] for name in REASONING if message.get(name) is not None), None)
    if thought is None or not isinstance(thought, str):
        return message
    content = message.get("content") or ""
    if form == "part" and thought:
        rest = [{"type": "text", "text": content}] if isinstance(content, str) and content else list(content)
        message = message | {"content": [{"type": "thinking", "thinking": thought}, *rest]}
    elif form == "text" and thought:
        message = message | {"content": THOUGHT.format(thought) + join_content_text(content)}
    return {**dict.fromkeys(REASONING[1:], thought), **message, REASONING[0]: thought}


def with_calls(message: Message, forms: TemplateForms, names: dict[str, str]) -> Message:
    """Return the message with its calls' arguments in the template's form. names: gets the name of each call by its
    id."""
    calls = []
    for call in message["tool_calls"]:
        function = call.get("function")
        if isinstance(function, dict):
            names[str(call.get("id", ""))] = function.get("name", "")
            call = call | {"function": function | {"arguments": fit_arguments(function.get("arguments"), forms)}}
        calls.append(call)
    if not calls:
        return {key: value for key, value in message.items() if key != "tool_calls"}
    message = message | {"tool_calls": calls}
    if not forms.thought_and_text and message.get("content") and isinstance(thought := message.get(REASONING[0]), str):
        whole = BEHIND_THOUGHT.join((thought, join_content_text(message["content"])))
        message = message | dict.fromkeys(REASONING, whole) | {"content": ""}
    if message.get("content") or not forms.empty:
        return message
    given: EmptyForm = "empty" if "content" in message else "missing"
    form = given if given in forms.empty else forms.empty[0]
    rest = {key: value for key, value in message.items() if key != "content"}
    return rest | {"missing": {}, "empty": {"content": ""}, "null": {"content": None}}[form]


def fit_arguments(arguments: Any, forms: TemplateForms) -> Any:
    """Return a call's arguments as an object or as text."""
    arguments = {} if arguments is None or arguments in ("", "null") else arguments
    if isinstance(arguments, str) and "string" not in forms.arguments and forms.arguments:
        return as_object(arguments)
    if not isinstance(arguments, str) and "object" not in forms.arguments and forms.arguments:
        return json.dumps(arguments, ensure_ascii=False)
    return arguments


def with_content(message: Message, forms: TemplateForms) -> Message:
    """Return the message with its content as a string, or as a list of parts."""
    content, written = message.get("content"), forms.contents.get(message.get("role", ""), ())
    if content is None or not written:
        return (
            message if not isinstance(content, list) or written else message | {"content": join_content_text(content)}
        )
    if isinstance(content, str):
        return message if "text" in written else message | {"content": [{"type": "text", "text": content}]}
    if "parts" in written or ("part" in written and len(content) == 1) or not only_text(content):
        return message
    text = join_content_text(content)
    return message | {"content": text if "text" in written else [{"type": "text", "text": text}]}
