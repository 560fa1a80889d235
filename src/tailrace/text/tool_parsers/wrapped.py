"""Calls that are JSON objects with the function's name inside (Hermes, Granite, Llama 3), and Mistral's, which started
that way."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing, forget
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quoted
from tailrace.text.tool_parsers.values import json_text, json_value

ARGUMENTS = ("arguments", "parameters")
BESIDE = ("type", "id")  # other keys of a call; a bare object that begins with any other key is content


def json_calls(parser: CallParser) -> Parsing[None]:
    """Objects {"name": …, "arguments": …}: one, a list of them, or several, separated by semicolons or nothing."""
    yield from parser.whitespace()
    listed = yield from parser.accept("[")
    while True:
        yield from parser.whitespace()
        yield from parser.begin_call("{")
        yield from json_call(parser)
        yield from parser.whitespace()
        again = yield from parser.accept("," if listed else ";")
        if not again and (listed or (yield from parser.peek()) != "{"):
            break
    if listed:
        yield from parser.expect("]")
        parser.end_call()
    yield from parser.close()


def json_call(parser: CallParser) -> Parsing[None]:
    """The rest of a call after its opening brace, with keys in any order. Arguments that come before the name wait for
    it. Without a marker the name waits for the arguments."""
    name, early, given = "", list[str](), False
    while True:
        key = yield from json_key(parser)
        if key == "name" and not name:
            name = yield from json_text(parser)
            parser.require_declared(name)
            if given or not parser.bare:
                parser.start_call(name)
                parser.add_arguments("".join(early))
        elif key in ARGUMENTS and not given:
            given = True
            if name and parser.undecided:
                parser.start_call(name)
            yield from json_value(parser, parser.add_arguments if name else early.append)
        elif key in BESIDE or not (parser.bare and parser.undecided):
            yield from json_value(parser, forget)
        else:
            raise NotACallError(key)
        yield from parser.whitespace()
        if (yield from parser.accept("}")):
            break
        yield from parser.expect(",")
    if parser.undecided:
        parser.start_call(name)
    if not given:
        parser.add_arguments("{}")
    parser.end_call()


def json_key(parser: CallParser) -> Parsing[str]:
    """A key and its colon."""
    yield from parser.whitespace()
    key = yield from json_text(parser)
    yield from parser.whitespace()
    yield from parser.expect(":")
    yield from parser.whitespace()
    return key


def mistral(parser: CallParser) -> Parsing[None]:
    """[TOOL_CALLS] before a list of objects or, in newer models, before each name[ARGS]{…}. Some models write
    [CALL_ID]… in between."""
    parser.short_ids = True  # the templates of these models refuse any other id in the next turn
    yield from parser.whitespace()
    if (yield from parser.peek()) in "[{":
        yield from json_calls(parser)
        return
    name, id = (yield from parser.word()), None
    if (yield from parser.accept("[CALL_ID]")):
        id = yield from parser.word()
    yield from parser.accept("[ARGS]")
    yield from parser.whitespace()
    if (yield from parser.peek()) != "{":
        raise NotACallError("{")
    parser.start_call(name, id)
    yield from json_value(parser, parser.add_arguments)
    parser.end_call()


# ---- the grammars


def json_object(writer: GrammarWriter, arguments: str = "arguments") -> Callable[[Function], str]:
    """One call as an object."""

    def form(function: Function) -> str:
        head = f'{{"name": "{function.name}", "{arguments}": '
        return f'{quoted(head)} {writer.arguments(function)} "}}"'

    return form


def hermes_grammar(writer: GrammarWriter) -> CallGrammar:
    """Each call in tags of its own, on a line of its own."""
    opening, closing = (writer.mark(tag) for tag in ("<tool_call>", "</tool_call>"))
    calls = writer.calls(json_object(writer), rf'"\n" {closing} "\n" {opening} "\n"')
    return CallGrammar("<tool_call>", rf'"\n" {calls} "\n" {closing}')


def granite_grammar(writer: GrammarWriter) -> CallGrammar:
    """A list after a marker. The marker depends on the model."""
    listed = f'"[" {writer.calls(json_object(writer), quoted(", "))} "]"'
    if writer.model_writes("<|tool_call|>") or not writer.model_writes("<tool_call>"):
        return CallGrammar("<|tool_call|>", listed)
    return CallGrammar("<tool_call>", f"{listed} {writer.mark('</tool_call>')}")


def llama_grammar(writer: GrammarWriter) -> CallGrammar:
    """Bare objects, as the template asks for."""
    calls = writer.calls(json_object(writer, "parameters"), quoted("; "))
    return CallGrammar("", calls, r'\s*\{\s*"(name|parameters|arguments|type|id)"(?s:.*)')


def mistral_grammar(writer: GrammarWriter) -> CallGrammar:
    """The newer form if the model knows its marker, else a list."""
    opening = "[TOOL_CALLS]"
    if not writer.model_writes("[ARGS]"):
        return CallGrammar(opening, f'" "? "[" {writer.calls(json_object(writer), quoted(", "))} "]"')
    separator = writer.mark("[ARGS]")
    calls = writer.calls(lambda f: f"{quoted(f.name)} {separator} {writer.arguments(f)}", writer.mark(opening))
    return CallGrammar(opening, calls)
