"""Calls in a section, each between its own markers, with the name outside of the JSON: DeepSeek and Kimi."""

from __future__ import annotations

import re

from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quoted
from tailrace.text.tool_parsers.values import json_value

DEEPSEEK = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
KIMI = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
KIMI_ID = re.compile(r"(?:functions\.)?(?P<name>.+):\d+")
FENCE = ("```json", "```")


def deepseek_v3(parser: CallParser) -> Parsing[None]:
    """V3.1: name, separator, arguments. V3 and R1: the word "function", separator, name, and the arguments in a JSON
    code block."""
    begin, separator, end = DEEPSEEK
    while True:
        yield from parser.whitespace()
        yield from parser.begin_call(begin)
        name = yield from parser.word()
        yield from parser.expect(separator)
        yield from parser.whitespace()
        fenced = (yield from parser.peek()) != "{"
        if fenced:
            if name != "function":
                raise NotACallError(name)
            name = yield from parser.word()
            yield from parser.whitespace()
            yield from parser.expect(FENCE[0])
        yield from parser.whitespace()
        parser.start_call(name)
        yield from json_value(parser, parser.add_arguments)
        yield from parser.whitespace()
        if fenced:
            yield from parser.expect(FENCE[1])
            yield from parser.whitespace()
        yield from parser.expect(end)
        parser.end_call()
        if (yield from parser.close()):
            return


def kimi_k2(parser: CallParser) -> Parsing[None]:
    """functions.NAME:NUMBER is the call's id, which the model expects to see again with its result."""
    begin, separator, end = KIMI
    while True:
        yield from parser.whitespace()
        yield from parser.begin_call(begin)
        yield from parser.whitespace()
        id = yield from parser.word()
        yield from parser.whitespace()
        yield from parser.expect(separator)
        yield from parser.whitespace()
        numbered = KIMI_ID.fullmatch(id)
        parser.start_call(numbered["name"] if numbered else id.removeprefix("functions."), id if numbered else None)
        yield from json_value(parser, parser.add_arguments)
        yield from parser.whitespace()
        yield from parser.expect(end)
        parser.end_call()
        if (yield from parser.close()):
            return


# ---- the grammars


def deepseek_grammar(writer: GrammarWriter) -> CallGrammar:
    """A JSON code block if the model's template has one, else plain JSON."""
    begin, separator, end = map(writer.mark, DEEPSEEK)
    closing = writer.mark("<｜tool▁calls▁end｜>")
    fenced = writer.model_writes(FENCE[0])

    def call(name: str, arguments: str) -> str:
        if fenced:
            return rf'"function" {separator} {quoted(name)} "\n```json\n" {arguments} "\n```"'
        return f"{quoted(name)} {separator} {arguments}"

    calls = writer.calls(
        lambda f: f"{begin} {call(f.name, writer.arguments(f))} {end}", quoted("\n") if fenced else '""'
    )
    return CallGrammar("<｜tool▁calls▁begin｜>", f"{calls} {closing}")


def kimi_grammar(writer: GrammarWriter) -> CallGrammar:
    """The model chooses the numbers, which continue from earlier calls."""
    begin, separator, end = map(writer.mark, KIMI)
    closing = writer.mark("<|tool_calls_section_end|>")
    number = writer.rule("NUMBER", "/[0-9]{1,4}/")
    calls = writer.calls(
        lambda f: f"{begin} {quoted(f'functions.{f.name}:')} {number} {separator} {writer.arguments(f)} {end}", '""'
    )
    return CallGrammar("<|tool_calls_section_begin|>", f"{calls} {closing}")
