"""Insertion of a call message's text into a prompt, for templates that write the calls without the text.

Mistral's templates write the calls of a message and leave out its text. They also refuse two answers in a row, so the
text can't become a message of its own. Their models write the text and then the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from tailrace.errors import RequestError
from tailrace.text.templates.forms import CallOpening, Message
from tailrace.text.templates.turns import function_of, join_content_text

Run = Callable[[list[Message]], "str | None"]


def find_opening(answer: str | None, call: str | None, word: str, name: str) -> CallOpening | None:
    """Return the template's output before an answer's text and before a call's name. Return None if either can't be
    found.

    Args:
        answer: a rendered conversation that ends with the text `word`. None if the template failed.
        call: the same conversation, except for the last message. It ends with a call of the function `name` and the
            call's result. None if the template failed.
    """
    if answer is None or call is None:
        return None
    same = next((i for i, (a, b) in enumerate(zip(answer, call, strict=False)) if a != b), 0)
    lead, found, _ = answer[same:].partition(word)
    calls, called, _ = call[same:].partition(name)
    return CallOpening(lead, calls) if found and called and calls else None


def render_with_texts(messages: list[Message], form: Any, run: Run) -> str | None:
    """Return the prompt of messages that already have the template's forms. Insert the texts beside calls.

    Args:
        form: `TurnForms.text_and_calls`.
        run: renders messages; None if the template fails.
    Raises:
        RequestError: the template writes the calls at an unexpected place.
    """
    if not isinstance(form, CallOpening):
        return run(messages)
    mark, texts, marked = uuid4().hex, {}, []
    for message in messages:
        calls, text = message.get("tool_calls"), join_content_text(message.get("content") or "")
        if calls and text and (function := function_of(calls[0])):
            name = f"{mark}z{len(texts)}z"
            texts[name] = text
            named = {"name": f"{name}{function.get('name', '')}"}  # the name is the first key, as in the probe
            function = named | {key: value for key, value in function.items() if key != "name"}
            message = message | {"tool_calls": [calls[0] | {"function": function}, *calls[1:]]}
        marked.append(message)
    written = run(marked)
    for name, text in texts.items():
        if written is None:
            return None
        if written.count(form.calls + name) != 1 or written.count(name) != 1:
            raise RequestError(
                "messages: the model's chat template has no place for the text beside a call", "messages"
            )
        written = written.replace(form.calls + name, form.lead + text + form.calls)
    return written
