"""Calls whose arguments stand one by one between tags, as bare text: Qwen3-Coder and GLM-4.5. A call is sent when it is
complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.text.tool_parsers.call_parser import CallParser, Parsing
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quoted
from tailrace.text.tool_parsers.unquoted import is_text, not_expressible, parameter_sequence, text_terminal
from tailrace.text.tool_parsers.values import json_of, unquoted


def qwen3_coder(parser: CallParser) -> Parsing[None]:
    """<function=NAME>, then <parameter=KEY> with each value on its own lines."""
    while True:
        yield from parser.whitespace()
        yield from parser.begin_call("<function=")
        name = yield from parser.word()
        yield from parser.expect(">")
        parameters = parser.parameters_of(name)
        arguments: list[tuple[str, str]] = []
        yield from parser.whitespace()
        while not (yield from parser.accept("</function>")):
            yield from parser.expect("<parameter=")
            key = yield from parser.until(">")
            text = yield from unquoted(parser, "</parameter>", parameters.property(key), ("<parameter=", "</function>"))
            text = text.removeprefix("\n").removesuffix("\n")
            arguments.append((key, json_of(text, parameters.property(key))))
            yield from parser.whitespace()
        parser.add_call(name, arguments)
        if (yield from parser.close()):
            return


def glm4(parser: CallParser) -> Parsing[None]:
    """The name, then pairs of <arg_key> and <arg_value>, up to the closing marker."""
    yield from parser.whitespace()
    name = yield from parser.word()
    parameters = parser.parameters_of(name)
    arguments: list[tuple[str, str]] = []
    while not (yield from parser.close()):
        yield from parser.expect("<arg_key>")
        key = (yield from parser.until("</arg_key>")).strip()
        yield from parser.whitespace()
        yield from parser.expect("<arg_value>")
        declared = parameters.property(key)
        text = yield from unquoted(parser, "</arg_value>", declared, ("<arg_key>",))
        arguments.append((key, json_of(text, declared)))
    parser.add_call(name, arguments)


# ---- the grammars


def qwen3_coder_grammar(writer: GrammarWriter) -> CallGrammar:
    """Tags and values on their own lines."""
    opening, closing = (writer.mark(tag) for tag in ("<tool_call>", "</tool_call>"))

    def form(function: Function) -> str:
        def parameter(name: str, schema: Mapping[str, Any], id: str) -> str:
            field = key_of(function, name)
            head, end = quoted(f"<parameter={name}>\n"), "\n</parameter>"
            if is_text(schema):
                value = text_terminal(writer, schema, id, field, ("</parameter>", "</tool_call>"), end)
                return f"{head} {value} {quoted(LINE)}"
            return f"{head} {writer.json(schema)} {quoted(end)} {quoted(LINE)}"

        head, arguments = quoted(f"<function={function.name}>"), parameter_sequence(writer, function, parameter)
        return rf'{head} "\n" {arguments} "</function>"'

    calls = writer.calls(form, rf'"\n" {closing} "\n" {opening} "\n"')
    return CallGrammar("<tool_call>", rf'"\n" {calls} "\n" {closing}')


def glm4_grammar(writer: GrammarWriter) -> CallGrammar:
    """Each call in tags, keys and values in tags of their own."""
    opening, closing = (writer.mark(tag) for tag in ("<tool_call>", "</tool_call>"))

    def form(function: Function) -> str:
        def parameter(name: str, schema: Mapping[str, Any], id: str) -> str:
            field, end = key_of(function, name), "</arg_value>"
            key = f"{writer.mark('<arg_key>')} {quoted(name)} {writer.mark('</arg_key>')}"
            head = f"{key} {NEWLINE} {writer.mark('<arg_value>')}"
            ended = writer.token(end) is None
            if is_text(schema):
                value = text_terminal(writer, schema, id, field, (end, "</tool_call>"), end if ended else "")
            else:
                value = f"{writer.json(schema)} {quoted(end) if ended else ''}"
            return f"{head} {value} {'' if ended else writer.mark(end)} {NEWLINE}"

        return f"{quoted(function.name)} {NEWLINE} {parameter_sequence(writer, function, parameter)}"

    calls = writer.calls(form, f"{closing} {NEWLINE} {opening}")
    return CallGrammar("<tool_call>", f"{calls} {closing}")


LINE = "\n"
NEWLINE = r'"\n"?'  # GLM-4.5 writes one there, later models don't


def key_of(function: Function, name: str) -> str:
    """The parameter's place, for messages.

    Raises:
        ParameterError: the name can't stand between tags.
    """
    if not name or name != name.strip() or set("<>\n") & set(name):
        raise not_expressible(function.name, f"the name {name!r:.100}")
    return f"{function.name}.{name}"
