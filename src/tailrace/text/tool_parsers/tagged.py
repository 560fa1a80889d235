"""Calls whose arguments stand one by one between tags, as bare text: Qwen3-Coder and GLM-4.5. A call goes out whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.text.tool_parsers.block import Block, Read
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.script import Script, Written, quoted
from tailrace.text.tool_parsers.unquoted import is_text, sequence, text, unsayable
from tailrace.text.tool_parsers.values import json_of, unquoted


def qwen3_coder(block: Block) -> Read[None]:
    """<function=NAME>, <parameter=KEY>, each value on lines of its own."""
    while True:
        yield from block.white()
        yield from block.begin("<function=")
        name = yield from block.word()
        yield from block.expect(">")
        schemas = block.tools.get(name, {})
        arguments: dict[str, str] = {}
        yield from block.white()
        while not (yield from block.literal("</function>")):
            yield from block.expect("<parameter=")
            key = yield from block.until(">")
            text = yield from unquoted(block, "</parameter>", schemas.get(key), ("<parameter=", "</function>"))
            text = text.removeprefix("\n").removesuffix("\n")
            arguments[key] = json_of(text, schemas.get(key))
            yield from block.white()
        block.whole(name, arguments)
        if (yield from block.close()):
            return


def glm4(block: Block) -> Read[None]:
    """The name, then pairs of <arg_key> and <arg_value>; the closing marker says that there are no more."""
    yield from block.white()
    name = yield from block.word()
    schemas = block.tools.get(name, {})
    arguments: dict[str, str] = {}
    while not (yield from block.close()):
        yield from block.expect("<arg_key>")
        key = (yield from block.until("</arg_key>")).strip()
        yield from block.white()
        yield from block.expect("<arg_value>")
        schema = schemas.get(key)
        arguments[key] = json_of((yield from unquoted(block, "</arg_value>", schema, ("<arg_key>",))), schema)
    block.whole(name, arguments)


# ---- the same as grammars


def qwen3_coder_script(script: Script) -> Written:
    """Tags and values on lines of their own."""
    opening, closing = (script.mark(tag) for tag in ("<tool_call>", "</tool_call>"))

    def form(function: Function) -> str:
        def parameter(name: str, schema: Mapping[str, Any], id: str) -> str:
            field = key_of(function, name)
            head, end = quoted(f"<parameter={name}>\n"), "\n</parameter>"
            if is_text(schema):
                value = text(script, schema, id, field, ("</parameter>", "</tool_call>"), end)
                return f"{head} {value} {quoted(LINE)}"
            return f"{head} {script.json(schema)} {quoted(end)} {quoted(LINE)}"

        return rf'{quoted(f"<function={function.name}>")} "\n" {sequence(script, function, parameter)} "</function>"'

    calls = script.calls(form, rf'"\n" {closing} "\n" {opening} "\n"')
    return Written("<tool_call>", rf'"\n" {calls} "\n" {closing}')


def glm4_script(script: Script) -> Written:
    """A call in tags, keys and values in tags of their own."""
    opening, closing = (script.mark(tag) for tag in ("<tool_call>", "</tool_call>"))

    def form(function: Function) -> str:
        def parameter(name: str, schema: Mapping[str, Any], id: str) -> str:
            field, end = key_of(function, name), "</arg_value>"
            head = f"{script.mark('<arg_key>')} {quoted(name)} {script.mark('</arg_key>')} {NEWLINE} {script.mark('<arg_value>')}"
            ended = script.token(end) is None
            if is_text(schema):
                value = text(script, schema, id, field, (end, "</tool_call>"), end if ended else "")
            else:
                value = f"{script.json(schema)} {quoted(end) if ended else ''}"
            return f"{head} {value} {'' if ended else script.mark(end)} {NEWLINE}"

        return f"{quoted(function.name)} {NEWLINE} {sequence(script, function, parameter)}"

    calls = script.calls(form, f"{closing} {NEWLINE} {opening}")
    return Written("<tool_call>", f"{calls} {closing}")


LINE = "\n"
NEWLINE = r'"\n"?'  # GLM-4.5 puts one there, later ones don't


def key_of(function: Function, name: str) -> str:
    """Where a parameter is, for messages.

    Raises:
        ParameterError: its name can't stand between tags.
    """
    if not name or name != name.strip() or set("<>\n") & set(name):
        raise unsayable(function.name, f"the name {name!r:.100}")
    return f"{function.name}.{name}"
