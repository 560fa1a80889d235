"""Messages as OpenAI's API has them → as a template wants them. Nothing is lost on the way: a message stays as it came
where the template writes it so, and changes its form, not its words, where it does not."""

from __future__ import annotations

import json
from typing import Any

from tailrace.errors import RequestError
from tailrace.text.templates.forms import REASONING, EmptyForm, Message, TemplateForms

SYSTEM = ("system", "developer")
BETWEEN_PARTS, BETWEEN_SYSTEMS, BEHIND_THOUGHT = "\n", "\n\n", "\n\n"  # the first two as vLLM joins them


def fit_messages(messages: list[Message], forms: TemplateForms) -> list[Message]:
    """The messages as the template wants them. Keys whose value is null are left out, as transformers does.

    Raises:
        RequestError: the template would leave out a system message in silence.
    """
    fitted = [{key: value for key, value in message.items() if value is not None} for message in messages]
    if not forms.developer:
        fitted = [m | {"role": "system"} if m.get("role") == "developer" else m for m in fitted]
    _check_systems(fitted, forms)
    if not forms.all_systems:
        fitted = join_systems(fitted)
    names: dict[str, str] = {}
    for i, message in enumerate(fitted):
        message = with_reasoning(message)
        if "tool_calls" in message:
            message = with_calls(message, forms, names)
        elif forms.result_names and message.get("role") == "tool" and "name" not in message:
            name = names.get(message.get("tool_call_id", ""))
            message = message if name is None else message | {"name": name}
        fitted[i] = with_content(message, forms)
    return fitted


def _check_systems(messages: list[Message], forms: TemplateForms) -> None:
    started = False
    for i, message in enumerate(messages):
        if message.get("role") not in SYSTEM:
            started = True
        elif started and not forms.late_systems:
            raise RequestError(
                f"messages[{i}].role: the model's chat template leaves out a {message['role']} message that is not at "
                "the start",
                f"messages[{i}].role",
            )


def join_systems(messages: list[Message]) -> list[Message]:
    """The system messages at the start as one."""
    first = next((i for i, message in enumerate(messages) if message.get("role") not in SYSTEM), len(messages))
    if first < 2:
        return list(messages)
    texts = [text_of(message.get("content", "")) for message in messages[:first]]
    return [messages[0] | {"content": BETWEEN_SYSTEMS.join(filter(None, texts))}, *messages[first:]]


def with_reasoning(message: Message) -> Message:
    """What the model thought, under each name that templates read."""
    thought = next((message[name] for name in REASONING if message.get(name) is not None), None)
    if thought is None or not isinstance(thought, str):
        return message
    return {**dict.fromkeys(REASONING[1:], thought), **message, REASONING[0]: thought}


def with_calls(message: Message, forms: TemplateForms, names: dict[str, str]) -> Message:
    """The calls with arguments as the template writes them. names: gets the name of each call by its id."""
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
        whole = BEHIND_THOUGHT.join((thought, text_of(message["content"])))
        message = message | dict.fromkeys(REASONING, whole) | {"content": ""}
    if message.get("content") or not forms.empty:
        return message
    given: EmptyForm = "empty" if "content" in message else "missing"
    form = given if given in forms.empty else forms.empty[0]
    rest = {key: value for key, value in message.items() if key != "content"}
    return rest | {"missing": {}, "empty": {"content": ""}, "null": {"content": None}}[form]


def fit_arguments(arguments: Any, forms: TemplateForms) -> Any:
    """A call's arguments as an object or as its JSON text. What is no JSON object stays as the model wrote it."""
    arguments = {} if arguments is None or arguments == "" else arguments
    if isinstance(arguments, str) and "string" not in forms.arguments and forms.arguments:
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    if not isinstance(arguments, str) and "object" not in forms.arguments and forms.arguments:
        return json.dumps(arguments, ensure_ascii=False)
    return arguments


def with_content(message: Message, forms: TemplateForms) -> Message:
    """The content as a string, or as a list of parts."""
    content, written = message.get("content"), forms.contents.get(message.get("role", ""), ())
    if content is None or not written:
        return message if not isinstance(content, list) or written else message | {"content": text_of(content)}
    if isinstance(content, str):
        return message if "text" in written else message | {"content": [{"type": "text", "text": content}]}
    if "parts" in written or ("part" in written and len(content) == 1) or not only_text(content):
        return message
    text = text_of(content)
    return message | {"content": text if "text" in written else [{"type": "text", "text": text}]}


def only_text(parts: list[Any]) -> bool:
    """True if there are no parts but text."""
    return all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts)


def text_of(content: Any) -> str:
    """A content's text."""
    if isinstance(content, str):
        return content
    return BETWEEN_PARTS.join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
