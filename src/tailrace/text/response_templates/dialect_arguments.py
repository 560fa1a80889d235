"""The grammar of arguments in JSON, and in the dialects of JSON that response templates have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tailrace.errors import format_json
from tailrace.text.response_templates.marker_parts import make_pattern
from tailrace.text.response_templates.search import Texts
from tailrace.text.tool_parsers.brace_grammar import Braces
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter, escape_pattern, quote_literal
from tailrace.text.tool_parsers.parameter_list import not_expressible, parameter_lists
from tailrace.text.tool_parsers.resolve import kinds_of
from tailrace.text.tool_parsers.tree_grammar import Tree
from tailrace.text.tool_parsers.unquoted import Bounds, Tail, text_terminals

WriteText = Callable[[Mapping[str, Any], str, str], str]
NAMES = re.compile(r"[A-Za-z0-9_]+")  # which keys without quotes may be
# Characters of JSON outside of strings. A marker with another one can stand in strings only.
STRUCTURE = set(' \t\n\r[]{}:,"\\0123456789+-.truefalsnE')


class PlainArguments(NamedTuple):
    """Arguments as plain JSON. A closing marker within a string closes nothing."""

    marks: tuple[str, str] | None = None
    bare: bool = False
    beginnings: tuple[str, ...] = ("{",)

    def start(self, writer: GrammarWriter) -> Callable[[Function], str]:
        """Return what writes the grammar of the arguments of one function."""
        return writer.arguments


class DialectArguments(NamedTuple):
    """Arguments in a dialect of JSON.

    - `marks`: the texts around a string, or None.
    - `bare`: keys are written without quotes.
    - `closings`: the region's closing markers.
    """

    marks: tuple[str, str] | None
    bare: bool
    closings: Texts
    beginnings: tuple[str, ...] = ("{",)

    def start(self, writer: GrammarWriter) -> Callable[[Function], str]:
        """Return what writes the grammar of the arguments of one function."""
        tree = self.make_tree(writer)

        def write(function: Function) -> str:
            if function.loose:
                return tree.free["object"]
            for one in parameter_lists(function):
                for name, schema, _ in one.fields:
                    check_kinds(f"{function.name}.{name}", schema)
            return tree.arguments(function)

        return write

    def make_tree(self, writer: GrammarWriter) -> Tree:
        """Return the writer of values."""
        if self.marks is None:
            text = JsonText(writer, make_free_pattern(self.closings)).write
        else:
            opening, closing = self.marks
            marks = [(closing,), ("\x01",), ("\x02",), *self.closings]
            own = writer.plain_tokens(opening, closing, *(one for texts in self.closings for one in texts))
            bounds = Bounds("|".join([*map(make_pattern, marks), *map(escape_pattern, own)]))
            before, rest = writer.head_of(closing)
            tails = {"quoted": Tail(escape_pattern(before), rest, not rest)}

            def text(schema: Mapping[str, Any], id: str, field: str) -> str:
                written = text_terminals(writer, schema, id, field, bounds, tails)
                return f"{writer.mark(opening)} {written['quoted']}"

        if not self.bare:
            return write_json_braces(writer, text).make_tree(writer, JsonTree)
        any_key = f'{writer.rule("ANY_KEY", f"/{NAMES.pattern}/")} ":"'
        return Braces(text, write_bare_key, any_key).make_tree(writer, BareTree)


def write_bare_key(name: str) -> str:
    """Return the grammar of a key without quotes."""
    return quote_literal(f"{name if NAMES.fullmatch(name) else json.dumps(name)}:")


def write_json_braces(writer: GrammarWriter, text: WriteText) -> Braces:
    """Return the form of JSON."""
    any_key, colon = writer.rule("ANY_KEY", '/"[A-Za-z0-9_.$\\-]+"/'), writer.rule("COLON", "/: ?/")

    def write_key(name: str) -> str:
        return f"{quote_literal(json.dumps(name, ensure_ascii=False))} {colon}"

    return Braces(text, write_key, f"{any_key} {colon}", writer.rule("COMMA", "/, ?/"))


def write_object(keys: list[str], marks: tuple[str, str] | None, bare: bool) -> tuple[str, str, str]:
    """Return the texts around a name and its arguments in an object: before the name, between both, and behind.

    keys: those of the objects around, of the name, and of the arguments.
    """
    *outer, name, arguments = [f"{key}:" if bare and NAMES.fullmatch(key) else f"{json.dumps(key)}: " for key in keys]
    before, after = marks or ('"', '"')
    head = "".join(f"{{{key}" for key in [*outer, name])
    return f"{head}{before}", f"{after},{'' if bare else ' '}{arguments}", "}" * (len(outer) + 1)


class BareTree(Tree):
    """A writer of values in braces whose keys have no quotes."""

    @staticmethod
    def is_key(name: str) -> bool:
        """Return whether a property may have this name."""
        return NAMES.fullmatch(name) is not None


class JsonTree(Tree):
    """A writer of values in JSON."""

    @staticmethod
    def is_key(name: str) -> bool:
        """Return whether a property may have this name."""
        return re.fullmatch(r"[^\"\\\x00-\x1f<>]*", name) is not None


class JsonText(NamedTuple):
    """A writer of JSON strings that hold no marker. pattern: that of texts without them."""

    writer: GrammarWriter
    pattern: str

    def write(self, schema: Mapping[str, Any], id: str, field: str) -> str:
        """Return the grammar of a string that fits the schema."""
        if "x-lark" in schema:
            raise not_expressible(field, "a Lark grammar")
        return self.writer.write_json({"allOf": [dict(schema), {"type": "string", "pattern": self.pattern}]}, field)


def make_free_pattern(markers: Texts) -> str:
    """Return the pattern of texts that hold none of the markers. Of several texts of a marker, the first counts.

    Raises:
        ParameterError: a marker may stand outside of strings too.
    """
    texts = [marker[0] for marker in markers]
    firsts = {text[0] for text in texts}
    if len(firsts) > 1 or any(not set(text) - STRUCTURE or set(text) & set('"\\\n\r\t') for text in texts):
        raise not_expressible("calls", f"a JSON string beside the closing markers {', '.join(map(format_json, texts))}")
    [first] = firsts
    if any(first in text[1:] for text in texts):
        raise not_expressible("calls", f"a JSON string beside the closing markers {', '.join(map(format_json, texts))}")
    one = escape_pattern(first)
    return f"^[^{one}]*({one}{write_others([text[1:] for text in texts], one)})*$"


def write_others(rests: list[str], first: str) -> str:
    """Return the pattern of texts without the character `first` that begin with none of the rests."""
    if "" in rests:
        return "[a&&b]"
    heads = dict.fromkeys(rest[0] for rest in rests)
    ways = [f"[^{first}{''.join(map(escape_pattern, heads))}][^{first}]*"]
    for head in heads:
        inner = [rest[1:] for rest in rests if rest[0] == head]
        if "" not in inner:
            ways.append(f"{escape_pattern(head)}{write_others(inner, first)}")
    return f"({'|'.join(ways)})?"


def check_kinds(field: str, schema: Any) -> None:
    """Raise ParameterError for types between which the template decides in another way than the schema."""
    kinds = kinds_of(schema) if isinstance(schema, Mapping) else set[str]()
    others = kinds - {"string", "null"}
    if (others and "string" in kinds) or ("boolean" in kinds and others & {"integer", "number"}):
        raise not_expressible(field, f"a value that may be {' or '.join(sorted(kinds))}")
