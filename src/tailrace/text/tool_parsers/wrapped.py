"""Calls that are JSON objects with the function's name in them (Hermes, Granite, Llama 3), and Mistral's, which began as such."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.text.tool_parsers.block import Block, NotACallError, Read, forget
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.script import Script, Written, quoted
from tailrace.text.tool_parsers.values import json_text, json_value

ARGUMENTS = ("arguments", "parameters")
BESIDE = ("type", "id")  # what else stands in a call; a bare object that begins with anything else is other text


def json_calls(block: Block) -> Read[None]:
    """Objects {"name": …, "arguments": …}: one, a list of them, or several with a semicolon or nothing between."""
    yield from block.white()
    listed = yield from block.literal("[")
    while True:
        yield from block.white()
        yield from block.begin("{")
        yield from json_call(block)
        yield from block.white()
        again = yield from block.literal("," if listed else ";")
        if not again and (listed or (yield from block.peek()) != "{"):
            break
    if listed:
        yield from block.expect("]")
        block.end()
    yield from block.close()


def json_call(block: Block) -> Read[None]:
    """What follows a call's opening brace, keys in any order. Arguments that come before the name wait for it, and without a marker
    the name waits for the arguments."""
    name, early, given = "", list[str](), False
    while True:
        key = yield from json_key(block)
        if key == "name" and not name:
            name = yield from json_text(block)
            block.known(name)
            if given or not block.bare:
                block.name(name)
                block.say("".join(early))
        elif key in ARGUMENTS and not given:
            given = True
            if name and block.undecided:
                block.name(name)
            yield from json_value(block, block.say if name else early.append)
        elif key in BESIDE or not (block.bare and block.undecided):
            yield from json_value(block, forget)
        else:
            raise NotACallError(key)
        yield from block.white()
        if (yield from block.literal("}")):
            break
        yield from block.expect(",")
    if block.undecided:
        block.name(name)
    if not given:
        block.say("{}")
    block.end()


def json_key(block: Block) -> Read[str]:
    """A key and its colon."""
    yield from block.white()
    key = yield from json_text(block)
    yield from block.white()
    yield from block.expect(":")
    yield from block.white()
    return key


def mistral(block: Block) -> Read[None]:
    """[TOOL_CALLS] before a list of objects or, in newer models, before each name[ARGS]{…}; some put [CALL_ID]… in between."""
    block.short_ids = True  # the templates of these models refuse any other id in the next turn
    yield from block.white()
    if (yield from block.peek()) in "[{":
        yield from json_calls(block)
        return
    name, id = (yield from block.word()), None
    if (yield from block.literal("[CALL_ID]")):
        id = yield from block.word()
    yield from block.literal("[ARGS]")
    yield from block.white()
    if (yield from block.peek()) != "{":
        raise NotACallError("{")
    block.name(name, id)
    yield from json_value(block, block.say)
    block.end()


# ---- the same as grammars


def json_object(script: Script, arguments: str = "arguments") -> Callable[[Function], str]:
    """One call as an object."""

    def form(function: Function) -> str:
        head = f'{{"name": "{function.name}", "{arguments}": '
        return f'{quoted(head)} {script.arguments(function)} "}}"'

    return form


def hermes_script(script: Script) -> Written:
    """Each call in tags of its own, on a line of its own."""
    opening, closing = (script.mark(tag) for tag in ("<tool_call>", "</tool_call>"))
    calls = script.calls(json_object(script), rf'"\n" {closing} "\n" {opening} "\n"')
    return Written("<tool_call>", rf'"\n" {calls} "\n" {closing}')


def granite_script(script: Script) -> Written:
    """A list behind a marker; which, depends on the model."""
    listed = f'"[" {script.calls(json_object(script), quoted(", "))} "]"'
    if script.knows("<|tool_call|>") or not script.knows("<tool_call>"):
        return Written("<|tool_call|>", listed)
    return Written("<tool_call>", f"{listed} {script.mark('</tool_call>')}")


def llama_script(script: Script) -> Written:
    """Bare objects, as the template asks for."""
    calls = script.calls(json_object(script, "parameters"), quoted("; "))
    return Written("", calls, r'\s*\{\s*"(name|parameters|arguments|type|id)"(?s:.*)')


def mistral_script(script: Script) -> Written:
    """The newer form where the model knows its marker, else a list."""
    opening = "[TOOL_CALLS]"
    if not script.knows("[ARGS]"):
        return Written(opening, f'" "? "[" {script.calls(json_object(script), quoted(", "))} "]"')
    separator = script.mark("[ARGS]")
    calls = script.calls(lambda f: f"{quoted(f.name)} {separator} {script.arguments(f)}", script.mark(opening))
    return Written(opening, calls)
