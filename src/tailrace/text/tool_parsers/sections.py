"""Calls in a section of their own, each between markers, the name outside the JSON: DeepSeek and Kimi."""

from __future__ import annotations

import re

from tailrace.text.tool_parsers.block import Block, NotACallError, Read
from tailrace.text.tool_parsers.script import Script, Written, quoted
from tailrace.text.tool_parsers.values import json_value

DEEPSEEK = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
KIMI = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
KIMI_ID = re.compile(r"(?:functions\.)?(?P<name>.+):\d+")
FENCE = ("```json", "```")


def deepseek_v3(block: Block) -> Read[None]:
    """Name and arguments around the separator (V3.1), or the word "function" before it and name and fenced JSON behind (V3, R1)."""
    begin, separator, end = DEEPSEEK
    while True:
        yield from block.white()
        yield from block.begin(begin)
        name = yield from block.word()
        yield from block.expect(separator)
        yield from block.white()
        fenced = (yield from block.peek()) != "{"
        if fenced:
            if name != "function":
                raise NotACallError(name)
            name = yield from block.word()
            yield from block.white()
            yield from block.expect(FENCE[0])
        yield from block.white()
        block.name(name)
        yield from json_value(block, block.say)
        yield from block.white()
        if fenced:
            yield from block.expect(FENCE[1])
            yield from block.white()
        yield from block.expect(end)
        block.end()
        if (yield from block.close()):
            return


def kimi_k2(block: Block) -> Read[None]:
    """functions.NAME:NUMBER is the call's id, which the model expects to see again beside its result."""
    begin, separator, end = KIMI
    while True:
        yield from block.white()
        yield from block.begin(begin)
        yield from block.white()
        id = yield from block.word()
        yield from block.white()
        yield from block.expect(separator)
        yield from block.white()
        numbered = KIMI_ID.fullmatch(id)
        block.name(numbered["name"] if numbered else id.removeprefix("functions."), id if numbered else None)
        yield from json_value(block, block.say)
        yield from block.white()
        yield from block.expect(end)
        block.end()
        if (yield from block.close()):
            return


# ---- the same as grammars


def deepseek_script(script: Script) -> Written:
    """Fenced where the model's template is, else plain."""
    begin, separator, end = map(script.mark, DEEPSEEK)
    closing = script.mark("<｜tool▁calls▁end｜>")
    fenced = script.knows(FENCE[0])

    def call(name: str, arguments: str) -> str:
        if fenced:
            return rf'"function" {separator} {quoted(name)} "\n```json\n" {arguments} "\n```"'
        return f"{quoted(name)} {separator} {arguments}"

    calls = script.calls(
        lambda f: f"{begin} {call(f.name, script.arguments(f))} {end}", quoted("\n") if fenced else '""'
    )
    return Written("<｜tool▁calls▁begin｜>", f"{calls} {closing}")


def kimi_script(script: Script) -> Written:
    """The numbers are the model's own: they count on from the calls of before."""
    begin, separator, end = map(script.mark, KIMI)
    closing = script.mark("<|tool_calls_section_end|>")
    number = script.rule("NUMBER", "/[0-9]{1,4}/")
    calls = script.calls(
        lambda f: f"{begin} {quoted(f'functions.{f.name}:')} {number} {separator} {script.arguments(f)} {end}", '""'
    )
    return Written("<|tool_calls_section_begin|>", f"{calls} {closing}")
