"""Calls that are JSON objects with the function's name inside: Hermes, Granite, Llama 3 and many others.

Mistral's calls are here too, because they began in this form.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from tailrace.text.tool_parsers.call_object import NAMES, call_or_arguments, json_call, keyed_call, skip_braces
from tailrace.text.tool_parsers.call_parser import WHITE, CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import (
    ANY,
    BLANK,
    CallGrammar,
    GrammarWriter,
    escape_pattern,
    quote_literal,
)
from tailrace.text.tool_parsers.json_arguments import close_fence, open_fence
from tailrace.text.tool_parsers.lookahead import match_sequences

BEGINNING = r'\s*%s\s*"(name|parameters|arguments|type|id|function|tool_name|tool_call_id)"(?s:.*)'


class JsonCalls(NamedTuple):
    """Objects with a name and arguments in any order. They may have further keys.

    - `pairs`: pairs of markers around the calls. A grammar uses the first pair that the model is known to write.
      Without pairs, the calls stand alone.
    - `head`: the beginning of a call, up to its arguments, as the model writes it. ID stands for the call's number.
    - `listed`: calls are written as a list.
    - `apart`: each call has markers of its own.
    - `line`: text after the opening marker and before the closing marker.
    - `between`: text between two calls.
    - `keyed`: the function's name is the only key, and the arguments are its value.
    - `weak`: markers that other text has too. After these, the first name must be declared.
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
        """Read one object, a list of objects, or several objects. Semicolons or nothing may separate them."""
        parser.bare |= any(map(parser.opened_by, self.weak))
        yield from parser.read_whitespace()
        fenced = not parser.bare and (yield from open_fence(parser))
        listed = parser.opened_by("[") or (yield from parser.accept("["))
        parser.around = "}]" if listed else "}"
        while True:
            yield from parser.read_whitespace()
            yield from parser.begin_call("{")
            yield from parser.accept("{")  # a doubled brace, as in templates of templates
            yield from keyed_call(parser) if self.keyed else json_call(parser, listed)
            yield from skip_braces(parser)
            again = (yield from parser.accept(",")) if listed else (yield from self.read_separator(parser))
            if again and listed:
                yield from parser.read_whitespace()
                again = not (yield from parser.is_next("]"))
            if not again and (listed or (yield from parser.peek()) != "{"):
                break
        if listed:
            if not (yield from parser.accept("]")) and not (yield from parser.comes_one(parser.ends)):
                raise NotACallError("]")
            if not parser.undecided:
                parser.end_call()
        if fenced:
            yield from close_fence(parser)
        yield from parser.close()

    def read_separator(self, parser: CallParser) -> Parsing[bool]:
        """Read the text between two calls outside of a list: a semicolon, or a comma before a brace.

        Return True if such text came.
        """
        if (yield from parser.accept(";")):
            return True
        if not (yield from match_sequences(parser, [(",", WHITE, "{")])):
            return False
        return (yield from parser.accept(","))

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of calls of the writer's functions."""
        known = [pair for pair in self.pairs if writer.model_writes(pair[0])]
        opening, closing = (known or self.pairs or (("", None),))[0]
        end = f"{quote_literal(self.line) if self.line else ''} {writer.mark(closing) if closing else ''}"
        start = quote_literal(self.line) if self.line else ""
        if self.apart:
            between = f"{end} {quote_literal(self.between)} {writer.mark(opening)} {start}"
            return CallGrammar(opening, f"{start} {writer.write_calls(partial(self.written, writer), between)} {end}")
        if self.listed and not opening:
            # The text up to the name is one literal. Up to there it may be other text, and a matcher takes the longest
            # match.
            first = writer.rule("first", " | ".join(self.written(writer, one, "[") for one in writer.functions))
            call = writer.rule("call", " | ".join(self.written(writer, one) for one in writer.functions))
            more = f"({quote_literal(self.between)} {call})*" if writer.many else ""
            return CallGrammar("", f'{first} {more} "]"', make_call_pattern(writer, listed=True))
        calls = writer.write_calls(partial(self.written, writer), quote_literal(self.between))
        if self.listed:
            calls = f'{calls} "]"' if opening.endswith("[") else f'"[" {calls} "]"'
        return CallGrammar(opening, f"{start} {calls} {end}", "" if opening else make_call_pattern(writer))

    def written(self, writer: GrammarWriter, function: Function, before: str = "") -> str:
        """Return the grammar of one call as an object, after the text `before`."""
        first, *rest = (before + self.head).replace("NAME", function.name).split("ID")
        number = writer.rule("NUMBER", "/[0-9]{1,4}/") if rest else ""
        head = " ".join([quote_literal(first), *(f"{number} {quote_literal(part)}" for part in rest)])
        return f'{head} {writer.arguments(function)} "}}"'


def make_call_pattern(writer: GrammarWriter, listed: bool = False) -> str:
    """Return a pattern of texts that begin like a call, or hold a function's name at the place of a call's name."""
    names = "|".join(escape_pattern(function.name) for function in writer.functions)
    begun = BEGINNING % (r"\[\s*\{" if listed else r"\{")
    return f"{begun}|{ANY}({'|'.join(NAMES)})[\"']?{BLANK}:{BLANK}[\"']({names})[\"']{ANY}"


class Mistral(NamedTuple):
    """Calls after [TOOL_CALLS]: a list of objects or, in newer models, one name[ARGS]{…} after each marker.

    Some models write [CALL_ID]… between the name and [ARGS].
    """

    opening: str = "[TOOL_CALLS]"
    id: str = "[CALL_ID]"
    separator: str = "[ARGS]"

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read the list, or one call of the newer form."""
        parser.short_ids = True  # the templates of these models refuse any other id in the next turn
        yield from parser.read_whitespace()
        if (yield from parser.peek()) in "[{":
            yield from JsonCalls().read(parser)
            return
        name, id = (yield from parser.read_name()), None
        if (yield from parser.accept(self.id)):
            id = yield from parser.read_name()
        yield from parser.accept(self.separator)
        yield from parser.read_whitespace()
        yield from call_or_arguments(parser, name, id)
        parser.end_call()
        yield from skip_braces(parser)

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of the newer form if the model knows its marker, else of a list."""
        if not writer.model_writes(self.separator):
            listed = JsonCalls(((self.opening, None),)).grammar(writer)
            return CallGrammar(self.opening, f'" "? {listed.rest}')
        separator = writer.mark(self.separator)
        calls = writer.write_calls(
            lambda f: f"{quote_literal(f.name)} {separator} {writer.arguments(f)}", writer.mark(self.opening)
        )
        return CallGrammar(self.opening, calls)
