"""Calls that are JSON objects with the function's name inside (Hermes, Granite, Llama 3 and many others), and
Mistral's, which started that way."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import msgspec

from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing, Sink, forget
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quoted
from tailrace.text.tool_parsers.values import json_string, json_text, json_value

NAMES = ("name", "tool_name", "function")
ARGUMENTS = ("arguments", "parameters")
BESIDE = ("type", "id", "tool_call_id")  # other keys of a call; a bare object that begins with any other is content
BEGINNING = r'\s*%s\s*"(name|parameters|arguments|type|id|function|tool_name|tool_call_id)"(?s:.*)'


class JsonCalls(NamedTuple):
    """Objects with a name and arguments, in any order and with other keys beside them.

    pairs: the markers around calls, of which a grammar takes the first that the model is known to write; none: calls
    stand alone. head: how a call begins, up to its arguments, as the model writes it; ID is a number of its own.
    listed: calls are written as a list. apart: each call has markers of its own. line: after the opening and before the
    closing marker. between: between two calls. keyed: the function's name is the only key, and its arguments the value.
    weak: markers that other text has too, so the first name must be declared.
    """

    pairs: tuple[tuple[str, str | None], ...] = ()
    head: str = '{"name": "NAME", "arguments": '
    listed: bool = True
    apart: bool = False
    line: str = ""
    between: str = ", "
    keyed: bool = False
    weak: tuple[str, ...] = ()

    def read(self, parser: CallParser) -> Parsing[None]:
        """One object, a list of them, or several, separated by semicolons or nothing."""
        parser.bare |= any(map(parser.opened_by, self.weak))
        yield from parser.whitespace()
        listed = parser.opened_by("[") or (yield from parser.accept("["))
        while True:
            yield from parser.whitespace()
            yield from parser.begin_call("{")
            yield from keyed_call(parser) if self.keyed else json_call(parser, listed)
            yield from parser.whitespace()
            again = yield from parser.accept("," if listed else ";")
            if not again and (listed or (yield from parser.peek()) != "{"):
                break
        if listed:
            yield from parser.expect("]")
            if not parser.undecided:
                parser.end_call()
        yield from parser.close()

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """The calls of the writer's functions."""
        known = [pair for pair in self.pairs if writer.model_writes(pair[0])]
        opening, closing = (known or self.pairs or (("", None),))[0]
        end = f"{quoted(self.line) if self.line else ''} {writer.mark(closing) if closing else ''}"
        start = quoted(self.line) if self.line else ""
        if self.apart:
            between = f"{end} {quoted(self.between)} {writer.mark(opening)} {start}"
            return CallGrammar(opening, f"{start} {writer.calls(partial(self.written, writer), between)} {end}")
        if self.listed and not opening:
            # one literal up to the name: until there the text may be other text, and a matcher takes the longest match
            first = writer.rule("first", " | ".join(self.written(writer, one, "[") for one in writer.functions))
            call = writer.rule("call", " | ".join(self.written(writer, one) for one in writer.functions))
            more = f"({quoted(self.between)} {call})*" if writer.many else ""
            return CallGrammar("", f'{first} {more} "]"', BEGINNING % r"\[\s*\{")
        calls = writer.calls(partial(self.written, writer), quoted(self.between))
        if self.listed:
            calls = f'{calls} "]"' if opening.endswith("[") else f'"[" {calls} "]"'
        return CallGrammar(opening, f"{start} {calls} {end}", "" if opening else BEGINNING % r"\{")

    def written(self, writer: GrammarWriter, function: Function, before: str = "") -> str:
        """One call as an object, with text before it."""
        first, *rest = (before + self.head).replace("NAME", function.name).split("ID")
        number = writer.rule("NUMBER", "/[0-9]{1,4}/") if rest else ""
        head = " ".join([quoted(first), *(f"{number} {quoted(part)}" for part in rest)])
        return f'{head} {writer.arguments(function)} "}}"'


def json_call(parser: CallParser, listed: bool = False) -> Parsing[None]:
    """The rest of a call after its opening brace, with keys in any order. Arguments that come before the name wait for
    it. Without a marker the name waits for the arguments. listed: an object that turns out to be no call is passed
    over, and is content if another in the list is a call."""
    found = JsonCall(parser)
    while not (yield from parser.accept("}")):  # an object without keys is no call
        yield from found.key()
        yield from parser.whitespace()
        if (yield from parser.accept("}")):
            break
        yield from parser.expect(",")
    if parser.undecided and listed and not found.name and not parser.bare:
        parser.reject()
    else:
        found.end()


class JsonCall:
    """What is known of a call whose keys are being read."""

    def __init__(self, parser: CallParser) -> None:
        self.parser = parser
        self.name, self.early, self.given = "", list[str](), False

    def key(self) -> Parsing[None]:
        """Read a key and its value."""
        parser = self.parser
        key = yield from json_key(parser)
        if key in NAMES and not self.name:
            if key == "function" and (yield from parser.accept("{")):
                yield from self.inner()
                return
            self.name = yield from json_text(parser)
            parser.require_declared(self.name)
            if self.given or not parser.bare:
                self.start()
        elif key in ARGUMENTS and not self.given:
            self.given = True
            if self.name and parser.undecided:
                self.start()
            yield from arguments(parser, parser.add_arguments if self.name else self.early.append)
        elif key in BESIDE or not (parser.bare and parser.undecided):
            yield from json_value(parser, forget)
        else:
            raise NotACallError(key)

    def inner(self) -> Parsing[None]:
        """The call that stands in {"type": "function", "function": {…}}, after its brace."""
        while True:
            yield from self.key()
            yield from self.parser.whitespace()
            if (yield from self.parser.accept("}")):
                return
            yield from self.parser.expect(",")

    def start(self) -> None:
        """Send the name."""
        self.parser.start_call(self.name)
        self.parser.add_arguments("".join(self.early))

    def end(self) -> None:
        """End the call, which may have had no arguments."""
        if self.parser.undecided:
            self.start()
        if not self.given:
            self.parser.add_arguments("{}")
        self.parser.end_call()


def arguments(parser: CallParser, sink: Sink) -> Parsing[None]:
    """The arguments; where they are a string that holds a JSON object, that object (Granite 4)."""
    if (yield from parser.peek()) != '"':
        yield from json_value(parser, sink)
        return
    parts: list[str] = []
    yield from json_string(parser, parts.append)
    text = "".join(parts)
    try:
        inner = msgspec.json.decode(text, type=str)
        whole = isinstance(msgspec.json.decode(inner), dict)
    except (msgspec.DecodeError, RecursionError):
        inner, whole = "", False
    sink(inner if whole else text)


def keyed_call(parser: CallParser) -> Parsing[None]:
    """The rest of a call {"NAME": {…}}."""
    name = yield from json_key(parser)
    parser.require_declared(name)
    if (yield from parser.peek()) != "{":
        raise NotACallError("{")
    parser.start_call(name)
    yield from json_value(parser, parser.add_arguments)
    yield from parser.whitespace()
    yield from parser.expect("}")
    parser.end_call()


def json_key(parser: CallParser) -> Parsing[str]:
    """A key and its colon."""
    yield from parser.whitespace()
    key = yield from json_text(parser)
    yield from parser.whitespace()
    yield from parser.expect(":")
    yield from parser.whitespace()
    return key


class Mistral(NamedTuple):
    """[TOOL_CALLS] before a list of objects or, in newer models, before each name[ARGS]{…}. Some models write
    [CALL_ID]… in between."""

    opening: str = "[TOOL_CALLS]"
    id: str = "[CALL_ID]"
    separator: str = "[ARGS]"

    def read(self, parser: CallParser) -> Parsing[None]:
        """The list, or one call of the newer form."""
        parser.short_ids = True  # the templates of these models refuse any other id in the next turn
        yield from parser.whitespace()
        if (yield from parser.peek()) in "[{":
            yield from JsonCalls().read(parser)
            return
        name, id = (yield from parser.word()), None
        if (yield from parser.accept(self.id)):
            id = yield from parser.word()
        yield from parser.accept(self.separator)
        yield from parser.whitespace()
        if (yield from parser.peek()) != "{":
            raise NotACallError("{")
        parser.start_call(name, id)
        yield from json_value(parser, parser.add_arguments)
        parser.end_call()

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """The newer form if the model knows its marker, else a list."""
        if not writer.model_writes(self.separator):
            listed = JsonCalls(((self.opening, None),)).grammar(writer)
            return CallGrammar(self.opening, f'" "? {listed.rest}')
        separator = writer.mark(self.separator)
        calls = writer.calls(lambda f: f"{quoted(f.name)} {separator} {writer.arguments(f)}", writer.mark(self.opening))
        return CallGrammar(self.opening, calls)
