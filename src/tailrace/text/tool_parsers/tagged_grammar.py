"""Grammar of calls between tags. A text may hold any tag that the format's parser takes for text.

A matcher takes the longest match. Therefore a text and the tags that decide about its end are one terminal. The
terminal holds the text, its closing tag, and one more part. This part is the beginning of the next parameter's tag, or
the tag that ends the call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from tailrace.base.json_schema import NOTES
from tailrace.errors import format_json
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import BLANK, GrammarWriter, escape_pattern, quote_literal
from tailrace.text.tool_parsers.lookahead import HOLE
from tailrace.text.tool_parsers.parameter_list import ParameterList, not_expressible, parameter_lists
from tailrace.text.tool_parsers.resolve import kinds_of
from tailrace.text.tool_parsers.unquoted import Bounds, Tail, is_text, text_terminals, without_null

ANY_KEY = r'[^<>"&\s]([^<>"&\n]*[^<>"&\s])?'
CALLED = r"[\w.:\/@$\-]+"  # a function's name
TEXT: dict[str, Any] = {"type": "string"}


class TagShape(Protocol):
    """The attributes of tagged.Tagged that the grammar needs."""

    @property
    def opening(self) -> str: ...
    @property
    def closing(self) -> str: ...
    @property
    def call(self) -> str: ...
    @property
    def end(self) -> str: ...
    @property
    def parameter(self) -> str: ...
    @property
    def close(self) -> str: ...
    @property
    def own_line(self) -> bool: ...
    @property
    def types(self) -> tuple[str, str] | None: ...
    @property
    def line(self) -> str: ...


class CallWriter:
    """A writer of the calls of one function. See `written`."""

    def __init__(self, shape: TagShape, writer: GrammarWriter, function: Function) -> None:
        self.shape, self.writer, self.function = shape, writer, function
        self.first, *_ = HOLE.split(shape.parameter)  # the beginning of a parameter's tag
        self.last = shape.end or shape.closing  # the tag that ends a call
        self.own = "\n" if shape.own_line else ""
        self._texts: dict[str, dict[str, str]] = {}

    def written(self) -> str:
        """Return the grammar of one call, up to the tag that ends it."""
        head, _, rest = self.shape.call.replace("NAME", self.function.name).partition("INDEX")
        number = self.writer.rule("NUMBER", "/[1-9][0-9]{0,3}/") if rest else ""
        place = str(self.writer.place(self.function))
        bodies = [
            self.body(one, f"{place}_{i}" if i else place) for i, one in enumerate(parameter_lists(self.function))
        ]
        return f"{self.write_tag(head)} {number} {self.write_tag(rest)} ({' | '.join(bodies)})"

    def body(self, parameters: ParameterList, place: str) -> str:
        """Return the grammar of the parameters in order, and of the end of the call."""
        names = [name for name, *_ in parameters.fields]
        self.begin_texts(place, names)
        nexts, over = "", True  # which parameters may follow, and whether the call may end instead
        if parameters.free is not None:
            key, nexts = self.writer.rule(f"KEY_{place}", any_key(names)), f"free_{place}"
            self.writer.rule(nexts, self.parameter(key, "", parameters.free, nexts, over))
        for i, (name, schema, required) in reversed(list(enumerate(parameters.fields))):
            own = self.writer.rule(f"arg_{place}_{i}", self.parameter("", name, schema, nexts, over))
            if not required and nexts:
                own = self.writer.rule(f"next_{place}_{i}", f"{own} | {nexts}")
            nexts, over = own, over and not required
        begun = f"{self.writer.mark(self.first)} {nexts}"
        return " | ".join([*([begun] if nexts else []), *([self.writer.mark(self.last)] if over else [])])

    def parameter(self, key: str, name: str, schema: Mapping[str, Any], nexts: str, over: bool) -> str:
        """Return the grammar of the rest of a parameter's tag, its value, and what follows.

        `key`: the grammar of a free name.
        """
        field = f"{self.function.name}.{name}" if key else key_of(self.function, name)
        head, _, tail = f"{name}{self.shape.parameter[len(self.first) + len('KEY') :]}".partition("TYPE")

        def write_pair(value: str, kind: str = "") -> str:
            rest = f"{kind} {self.write_tag(tail)}" if kind else ""
            return f"{key} {self.write_tag(head)} {rest} {quote_literal(self.own) if self.own else ''} {value}"

        def write_following(more: str, end: str) -> str:
            return f"({' | '.join([*([f'{more} {nexts}'] if nexts else []), *([end] if over else [])])})"

        def in_json(value: str) -> str:
            close = f"{self.writer.mark(self.own + self.shape.close)} {self.shape.line}"
            return f"{value} {close} {write_following(self.writer.mark(self.first), self.writer.mark(self.last))}"

        def write_text_value(schema: Mapping[str, Any]) -> str:
            return write_following(**self.text(schema, field))

        if self.shape.types is None:
            free_text = self.function.loose or is_text(schema)
            return write_pair(
                write_text_value(TEXT if self.function.loose else schema)
                if free_text
                else in_json(self.writer.write_json(schema, field))
            )
        kinds, (as_text, as_json) = kinds_of(schema), self.shape.types
        if self.function.loose:
            text = write_pair(write_text_value(TEXT), quote_literal(as_text))
            return f"{text} | {write_pair(in_json(self.writer.write_json({})), f'({as_json})')}"
        if not is_text(schema) or "string" not in kinds:
            return write_pair(in_json(self.writer.write_json(schema, field)), f"({as_json})")
        said = write_pair(write_text_value(without_null(schema)), quote_literal(as_text))
        return said if "null" not in kinds else f"{said} | {write_pair(in_json(quote_literal('null')), f'({as_json})')}"

    # ---- texts

    def begin_texts(self, place: str, names: list[str]) -> None:
        """Store a pattern of what texts beside these parameters can't hold. The parser would end the text there."""
        self._place, self._forbidden = place, self.make_forbidden_pattern(names)
        self._texts.clear()

    def make_forbidden_pattern(self, names: list[str]) -> str:
        """Return a pattern of what ends a text."""
        shape, writer = self.shape, self.writer
        ends = [self.first, self.last, shape.closing, shape.opening]
        call, *_ = HOLE.split(shape.call)
        inner = (
            escape_pattern(call)
            if call
            else f"{CALLED}{BLANK}({escape_pattern(self.first)}|{escape_pattern(shape.closing)})"
        )
        found = [
            f"{escape_pattern(shape.close)}{BLANK}({'|'.join(map(escape_pattern, dict.fromkeys(ends)))})",
            f"{escape_pattern(shape.opening)}{BLANK}{inner}",
            *map(escape_pattern, writer.plain_tokens(shape.close, *ends, shape.call, shape.parameter)),
        ]
        if names:
            rest = shape.parameter[len(self.first) + len("KEY") :].partition("TYPE")[0]
            tail = BLANK.join(map(escape_pattern, rest.split("\n")))
            found.append(f"{escape_pattern(self.first)}({'|'.join(map(escape_pattern, names))}){tail}")
        return "|".join(found)

    def text(self, schema: Mapping[str, Any], field: str) -> dict[str, str]:
        """Return the grammars of a text before the next parameter, and before the end of the call.

        Equal schemas share their rules.
        """
        key = json.dumps({name: value for name, value in schema.items() if name not in NOTES}, sort_keys=True)
        if key not in self._texts:
            tails = {"more": self.make_tail(self.first), "end": self.make_tail(self.last)}
            id = f"{self._place}_{len(self._texts)}"
            self._texts[key] = text_terminals(
                self.writer, schema, id, field, Bounds(self._forbidden, self._place), tails
            )
        return self._texts[key]

    def make_tail(self, then: str) -> Tail:
        """Return what comes after a text: the closing tag, and the text which shows that this tag closes the text."""
        text, rest = self.writer.head_of(self.own + self.shape.close)
        if rest:
            return Tail(escape_pattern(text), f"{rest} {self.shape.line} {self.writer.mark(then)}", False)
        begun, rest = self.writer.head_of(then)
        line = self.shape.line.replace('"', "")
        return Tail(f"{escape_pattern(text)}{line}{escape_pattern(begun)}", rest, not rest)

    def write_tag(self, text: str) -> str:
        """Return the grammar of a tag. `line` replaces every line break."""
        parts = [self.writer.mark(part) if part else "" for part in text.split("\n")]
        return f" {self.shape.line} ".join(parts)


def any_key(names: list[str]) -> str:
    """Return a terminal: the name of a parameter that is not among these names."""
    return f"/{ANY_KEY}/" + (f" & ~/({'|'.join(map(escape_pattern, names))})/" if names else "")


def key_of(function: Function, name: str) -> str:
    """Return the parameter's place, for messages.

    Raises:
        ParameterError: the name can't stand between tags.
    """
    if not name or name != name.strip() or set('<>"&\n') & set(name):
        raise not_expressible(function.name, f"the name {format_json(name)}")
    return f"{function.name}.{name}"
