"""What a template does with messages, found out by rendering small conversations and looking for their words.

A form counts as written if its words are in the text, in order, and not as Python or JSON would print the list or the
dict that holds them: `[{'type': 'text', …`, `{"city": \\"Paris\\"}`. A template that fails on a form does not write it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from tailrace.text.templates.environment import TemplateProgram
from tailrace.text.templates.forms import ArgumentForm, ContentForm, EmptyForm, Message, TemplateForms

# words that no template writes by itself; trimming and case leave them as they are
FIRST, SECOND, ASKED, RESULT = "qzfirst", "qzsecond", "qzasked", "qzresult"
CALLED, OTHER, NAMED = "qzcalled", "qzother", "qznamed"
KEY, VALUE = "qzkey", "qzvalue"

Try = Callable[..., str]

CONTENTS: dict[ContentForm, str | list[dict[str, str]]] = {
    "text": f"{FIRST} {SECOND}",
    "parts": [{"type": "text", "text": FIRST}, {"type": "text", "text": SECOND}],
    "part": [{"type": "text", "text": f"{FIRST} {SECOND}"}],
}
ARGUMENTS: dict[ArgumentForm, Any] = {"object": {KEY: VALUE}, "string": f'{{"{KEY}": "{VALUE}"}}'}
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
PRINTED_ARGUMENTS = re.compile(rf"""\{{'{KEY}'|\\+"{KEY}""")


def probe(program: TemplateProgram, special_tokens: dict[str, str]) -> TemplateForms:
    """See the module's text. special_tokens: the template's variables of this kind."""

    def render(*messages: Message, tools: list[Message] | None = None) -> str:
        """The text; "" where the template fails. A template for conversations with tools fails without them."""
        given = {"messages": list(messages), "documents": None, "add_generation_prompt": True}
        for attempt in (tools,) if tools else (None, [TOOLS["nested"]]):
            try:
                return program.run({**special_tokens, **given, "tools": attempt})
            except Exception:  # what a template can't do, it says in any way it likes
                continue
        return ""

    developer = "developer" in program.constants and FIRST in render({"role": "developer", "content": FIRST}, USER)
    arguments, empty = _calls(render)
    before = [USER, _call(arguments[0], empty[0])] if arguments else [USER]
    openings: dict[str, list[Message]] = {"user": [], "system": [], "assistant": [USER], "tool": before}
    openings |= {"developer": []} if developer else {}
    contents = {role: forms for role in openings if (forms := _contents(render, role, openings[role]))}
    systems = ({"role": "system", "content": FIRST}, {"role": "system", "content": SECOND})
    if developer:
        systems = (systems[0], {"role": "developer", "content": SECOND})
    return TemplateForms(
        contents,
        arguments,
        empty,
        _tools(render),
        developer,
        _in_order(render(*systems, USER), FIRST, SECOND),
        _late(program, special_tokens, systems[1]),
        bool(arguments) and NAMED in render(*before, _result("c1") | {"name": NAMED}, tools=[TOOLS["nested"]]),
        bool(arguments) and _parallel(render, arguments[0], empty[0]),
    )


def _calls(render: Try) -> tuple[tuple[ArgumentForm, ...], tuple[EmptyForm, ...]]:
    """The forms of arguments, and of the missing content beside them, in which a call is written."""
    written = {
        (arguments, empty)
        for arguments in ARGUMENTS
        for empty in EMPTY
        if _writes_call(render(USER, _call(arguments, empty), _result("c1"), tools=[TOOLS["nested"]]))
    }
    found = tuple(form for form in ARGUMENTS if any(arguments == form for arguments, _ in written))
    return found, tuple(form for form in EMPTY if all((arguments, form) in written for arguments in found))


def _writes_call(text: str) -> bool:
    whole = _in_order(text, KEY, VALUE) and PRINTED_ARGUMENTS.search(text) is None
    return whole and CALLED in text


def _parallel(render: Try, arguments: ArgumentForm, empty: EmptyForm) -> bool:
    call, other = _call(arguments, empty), _call(arguments, empty, OTHER, "c2")
    both = call | {"tool_calls": call["tool_calls"] + other["tool_calls"]}
    results = (_result("c1"), _result("c2"))
    return _in_order(render(USER, both, *results, tools=[TOOLS["nested"]]), CALLED, OTHER)


def _contents(render: Try, role: str, before: list[Message]) -> tuple[ContentForm, ...]:
    tools = [TOOLS["nested"]] if role == "tool" else None
    behind = [] if role in ("user", "tool") else [USER]
    fields = {"role": role, **({"tool_call_id": _id("c1"), "name": CALLED} if role == "tool" else {})}
    return tuple(
        form
        for form, content in CONTENTS.items()
        if _writes_parts(render(*before, fields | {"content": content}, *behind, tools=tools))
    )


def _writes_parts(text: str) -> bool:
    return _in_order(text, FIRST, SECOND) and PRINTED_PART.search(text) is None


def _tools(render: Try) -> Literal["nested", "flat", "none"]:
    return next((form for form, tool in TOOLS.items() if CALLED in render(USER, tools=[tool])), "none")


def _late(program: TemplateProgram, special_tokens: dict[str, str], system: Message) -> bool:
    """True unless a system message behind others is left out in silence."""
    messages = [USER, {"role": "assistant", "content": FIRST}, system, USER]
    values = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
    try:
        return SECOND in program.run({**special_tokens, **values})
    except Exception:
        return True


def _call(arguments: ArgumentForm, empty: EmptyForm, name: str = CALLED, id: str = "c1") -> Message:
    function = {"name": name, "arguments": ARGUMENTS[arguments]}
    call = {"id": _id(id), "type": "function", "function": function}
    return {"role": "assistant", **EMPTY[empty], "tool_calls": [call]}


def _result(id: str) -> Message:
    return {"role": "tool", "tool_call_id": _id(id), "content": RESULT}


def _id(id: str) -> str:
    return f"qzcall0{id}"  # nine letters and digits, as Mistral's templates demand


def _in_order(text: str, first: str, second: str) -> bool:
    place = text.find(first)
    return place >= 0 and text.find(second, place) >= 0
