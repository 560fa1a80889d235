"""Detection of the forms that a template writes: it renders small conversations, whose words must be in the output.

A form counts as written if its words are in the text, in order. They must not be there as Python or JSON prints a list
or a dict: `[{'type': 'text', …`, `{"city": \\"Paris\\"}`. A template that fails on a form does not write it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from tailrace.errors import RequestError
from tailrace.text.templates.forms import REASONING, ArgumentForm, ContentForm, EmptyForm, Message, TemplateForms
from tailrace.text.templates.program import TemplateProgram

# words that no template writes by itself; trimming and changes of case leave them unchanged
FIRST, SECOND, ASKED, RESULT = "qzfirst", "qzsecond", "qzasked", "qzresult"
CALLED, OTHER, NAMED = "qzcalled", "qzother", "qznamed"
KEY, VALUE = "qzkey", "qzvalue"

Try = Callable[..., str]
Attempt = Callable[[list[Message], list[Message] | None], str | None]

CONTENTS: dict[ContentForm, str | list[dict[str, str]]] = {
    "text": f"{FIRST} {SECOND}",
    "parts": [{"type": "text", "text": FIRST}, {"type": "text", "text": SECOND}],
    "part": [{"type": "text", "text": f"{FIRST} {SECOND}"}],
}
ARGUMENTS: tuple[ArgumentForm, ...] = ("object", "string")
EMPTY: dict[EmptyForm, Message] = {"missing": {}, "empty": {"content": ""}, "null": {"content": None}}
FUNCTION = {
    "name": CALLED,
    "description": "d",
    "parameters": {"type": "object", "properties": {KEY: {"type": "string", "description": "d"}}, "required": [KEY]},
}
TOOLS: dict[Literal["nested", "flat"], Message] = {
    "nested": {"type": "function", "function": FUNCTION},
    "flat": FUNCTION,
}
USER: Message = {"role": "user", "content": ASKED}
PRINTED_PART = re.compile(rf"""text\\?['"]\s*:\s*\\?['"]\s*({FIRST}|{SECOND})""")
PRINTED_ARGUMENTS = re.compile(rf"""'{KEY}': '{VALUE}'|\\+"{KEY}\\+":""")


def make_attempt(program: TemplateProgram, special_tokens: dict[str, str]) -> Attempt:
    """Return a function that renders messages with tools. It returns None if the template fails. special_tokens: the
    template's variables of this kind."""

    def try_render(messages: list[Message], tools: list[Message] | None) -> str | None:
        given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
        try:
            return program.run({**special_tokens, **given})
        except RequestError:
            return None

    return try_render


def probe_template(program: TemplateProgram, attempt: Attempt) -> TemplateForms:
    """Return the template's forms, see the module's docstring. `probe_turns` finds the turns. attempt: see
    `make_attempt`."""

    def render_text(*messages: Message, tools: list[Message] | None = None) -> str:
        """Return the text, "" if the template fails. A template for conversations with tools fails without them."""
        given = [message | {"content": parts} if message is USER and parts else message for message in messages]
        text = attempt(given, tools)
        return (attempt(given, [TOOLS["nested"]]) if text is None and tools is None else text) or ""

    parts: list[dict[str, str]] = []
    contents = {"user": _probe_contents(render_text, "user", [])}
    if "text" not in contents["user"] and contents["user"]:
        parts = [{"type": "text", "text": ASKED}]
    developer = "developer" in program.constants and bool(_probe_contents(render_text, "developer", []))
    arguments, empty = _probe_calls(render_text)
    before = [USER, call_message(arguments[0], empty[0])] if arguments else [USER]
    openings: dict[str, list[Message]] = {"system": [], "assistant": [USER], "tool": before}
    openings |= {"developer": []} if developer else {}
    contents |= {role: _probe_contents(render_text, role, opening) for role, opening in openings.items()}

    return TemplateForms(
        {role: forms for role, forms in contents.items() if forms},
        arguments,
        empty,
        _probe_tools(render_text),
        developer,
        bool(arguments)
        and NAMED in render_text(*before, result_message("c1") | {"name": NAMED}, tools=[TOOLS["nested"]]),
        not arguments or _thought_and_text(render_text, arguments[0], empty[0]),
    )


def _probe_calls(render: Try) -> tuple[tuple[ArgumentForm, ...], tuple[EmptyForm, ...]]:
    """Return the forms of arguments with which the template writes a call, and the forms of missing content with them.
    If it writes no call, return the forms of content that it accepts."""
    texts = {
        (arguments, empty): render(USER, call_message(arguments, empty), result_message("c1"), tools=[TOOLS["nested"]])
        for arguments in ARGUMENTS
        for empty in EMPTY
    }
    written = {forms for forms, text in texts.items() if writes_call(text)}
    found: tuple[ArgumentForm, ...] = tuple(
        form for form in ARGUMENTS if any(arguments == form for arguments, _ in written)
    )
    if len(found) > 1 and any(texts["object", empty] != texts["string", empty] for empty in EMPTY):
        found = ("object",)  # a template copies text, but formats an object as the model does
    if not found:
        return (), tuple(form for form in EMPTY if any(texts[arguments, form] for arguments in ARGUMENTS))
    return found, tuple(form for form in EMPTY if all((arguments, form) in written for arguments in found))


def writes_call(text: str) -> bool:
    """Return whether the text has the probe's call with the expected arguments."""
    whole = _in_order(text, KEY, VALUE) and PRINTED_ARGUMENTS.search(text) is None
    return whole and CALLED in text


def _thought_and_text(render: Try, arguments: ArgumentForm, empty: EmptyForm) -> bool:
    """Return False if the template takes a thought or a text beside a call, but refuses both together."""
    call, thought, text = call_message(arguments, empty), dict.fromkeys(REASONING, FIRST), {"content": SECOND}
    alone = all(render(USER, call | one, result_message("c1"), tools=[TOOLS["nested"]]) for one in (thought, text))
    return not alone or bool(render(USER, call | thought | text, result_message("c1"), tools=[TOOLS["nested"]]))


def _probe_contents(render: Try, role: str, before: list[Message]) -> tuple[ContentForm, ...]:
    tools = [TOOLS["nested"]] if role == "tool" else None
    behind = [] if role in ("user", "tool") else [USER]
    fields = {"role": role, **({"tool_call_id": _make_call_id("c1"), "name": CALLED} if role == "tool" else {})}
    return tuple(
        form
        for form, content in CONTENTS.items()
        if _writes_parts(render(*before, fields | {"content": content}, *behind, tools=tools))
    )


def _writes_parts(text: str) -> bool:
    return _in_order(text, FIRST, SECOND) and PRINTED_PART.search(text) is None


def _probe_tools(render: Try) -> Literal["nested", "flat", "none"]:
    if CALLED in render(USER, tools=[TOOLS["nested"]]):
        return "nested"
    return "flat" if CALLED in render(USER, tools=[TOOLS["flat"]]) else "none"


def call_message(
    arguments: ArgumentForm, empty: EmptyForm, name: str = CALLED, id: str = "c1", value: str = VALUE
) -> Message:
    """Return an answer that is a call, with arguments and the missing content in these forms."""
    given = {KEY: value} if arguments == "object" else f'{{"{KEY}": "{value}"}}'
    call = {"id": _make_call_id(id), "type": "function", "function": {"name": name, "arguments": given}}
    return {"role": "assistant", **EMPTY[empty], "tool_calls": [call]}


def result_message(id: str) -> Message:
    """Return the result of a call."""
    return {"role": "tool", "tool_call_id": _make_call_id(id), "name": CALLED, "content": RESULT}


def _make_call_id(id: str) -> str:
    return f"qzcall0{id}"  # nine letters and digits, as Mistral's templates demand


def _in_order(text: str, first: str, second: str) -> bool:
    place = text.find(first)
    return place >= 0 and text.find(second, place) >= 0
