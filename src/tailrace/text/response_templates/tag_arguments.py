"""The grammar of arguments between the tags of a response template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from tailrace.errors import format_json
from tailrace.text.response_templates.call_grammar import LINE, Arguments, join_texts, trim_blanks, write_parts
from tailrace.text.response_templates.dialect_arguments import (
    DialectArguments,
    JsonText,
    JsonTree,
    PlainArguments,
    check_kinds,
    make_free_pattern,
    write_json_braces,
)
from tailrace.text.response_templates.marker_parts import Blank, Group, Part, make_pattern, read_parts
from tailrace.text.response_templates.pattern import Pattern
from tailrace.text.response_templates.search import Texts, find_all_matches
from tailrace.text.response_templates.values import ContentParser
from tailrace.text.tool_parsers.functions import LARK_KEY, Function
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter, escape_pattern, quote_literal
from tailrace.text.tool_parsers.parameter_list import ParameterList, not_expressible, parameter_lists
from tailrace.text.tool_parsers.resolve import kinds_of
from tailrace.text.tool_parsers.tree_grammar import Tree, join_optional_parts
from tailrace.text.tool_parsers.unquoted import Bounds, Tail, is_text, text_terminals

FREE_KEY = "[A-Za-z0-9_.\\-]+"
NO_SPACE = r"[^\s\x1c-\x1f]"
TRIMMED = f"/({NO_SPACE}((?s:.*){NO_SPACE})?)?/"  # a text without white space around it
JSON_LIKE = r"/[\s\x1c-\x1f]*([\-+\d_.eE]+|(?i:true|false|null|none|nan|-?infinity)|[\"\[{(](?s:.*))[\s\x1c-\x1f]*/"


class TagArguments(NamedTuple):
    """Arguments as tags.

    - `before`, `middle`, `after`: the parts before the key, between key and value, and behind the value.
    - `leading`, `trailing`: the white space that may stand around the value, or None.
    - `content`: the content parser.
    - `closings`: the region's closing markers.
    """

    before: tuple[Part, ...]
    middle: tuple[Part, ...]
    leading: Blank | None
    trailing: Blank | None
    after: str
    content: ContentParser
    closings: Texts

    @property
    def beginnings(self) -> tuple[str, ...]:
        """Return the texts of which one begins the arguments."""
        return "\n", join_texts(self.before)

    def start(self, writer: GrammarWriter) -> Callable[[Function], str]:
        """Return what writes the grammar of the arguments of one function."""
        return TagWriter(self, writer).write

    def reads_key(self, name: str) -> bool:
        """Return whether the template reads this key."""
        assert self.content.pattern is not None
        text = f"{join_texts(self.before)}{name}{join_texts(self.middle)}x{self.after}"
        found = list(find_all_matches(self.content.pattern, text * 2))
        return [(one.end, groups) for one, groups in found] == [
            (len(text) * times, {"key": name, "value": "x"}) for times in (1, 2)
        ]


class TagWriter:
    """A writer of arguments as tags, for one grammar."""

    def __init__(self, shape: TagArguments, writer: GrammarWriter) -> None:
        self.shape, self.writer = shape, writer

    @cached_property
    def tree(self) -> Tree:
        """The writer of JSON values."""
        text = JsonText(self.writer, make_free_pattern(((self.shape.after,), *self.shape.closings))).write
        return write_json_braces(self.writer, text).make_tree(self.writer, JsonTree)

    def write(self, function: Function) -> str:
        """Return the grammar of the arguments of one function."""
        place = self.writer.place(function)
        lists = [self.write_list(function, one, f"{place}_{at}") for at, one in enumerate(parameter_lists(function))]
        return f"{LINE} ({' | '.join(lists)})"

    def write_list(self, function: Function, parameters: ParameterList, id: str) -> str:
        """Return the grammar of one alternative of the arguments."""
        parts = []
        for at, (name, schema, required) in enumerate(parameters.fields):
            if not self.shape.reads_key(name):
                raise not_expressible(function.name, f"the name {format_json(name)}")
            key = quote_literal(name)
            parts.append((self.write_tag(key, schema, f"{id}_{at}", f"{function.name}.{name}"), required))
        written = join_optional_parts(self.writer, parts, id, LINE)
        if parameters.free is None or self.shape.content.options.get("merge_duplicates"):
            return f"{written} {LINE}"
        names = "|".join(escape_pattern(name) for name, *_ in parameters.fields)
        key = self.writer.rule(f"KEY_{id}", f"/{FREE_KEY}/" + (f" & ~/({names})/" if names else ""))
        free = self.write_tag(key, parameters.free, f"{id}_free", f"{function.name}.*")
        return f"{written} ({LINE} {self.writer.rule(f'free_{id}', free)})* {LINE}"

    def write_tag(self, key: str, schema: Mapping[str, Any], id: str, field: str) -> str:
        """Return the grammar of an argument."""
        kinds, own = kinds_of(schema), self.shape.content.value
        check_kinds(field, schema)
        begin = f"{write_parts(self.writer, self.shape.before)} {key} {write_parts(self.writer, self.shape.middle)}"
        as_json = own is not None and own.name == "json"
        ways: list[str] = []
        if not (as_json and not (own and own.options.get("allow_non_json"))) and (not kinds or is_text(schema)):
            ways.append(self.write_text(schema if kinds else {"type": "string"} | dict(schema), id, field))
        if as_json or not ways:
            ways += [] if ways and LARK_KEY in schema else [self.write_json(schema, field)]
        return f"{begin} ({' | '.join(ways)})"

    def write_text(self, schema: Mapping[str, Any], id: str, field: str) -> str:
        """Return the grammar of a text and its closing tag."""
        own = self.shape.content.value
        strips = own is not None and own.strips
        loose = [blank is not None and not blank.lines for blank in (self.shape.leading, self.shape.trailing)]
        line = "" if self.shape.leading is None else LINE if loose[0] else quote_literal("\n")
        edges = TRIMMED if strips or any(loose) else ""
        if own is not None and own.name == "json":
            edges = f"{edges or '/(?s:.*)/'} & ~{JSON_LIKE}"
        end = "" if self.shape.trailing is None else "\n?" if loose[1] else "\n"
        text, rest = self.writer.head_of(self.shape.after)
        tail = Tail(escape_pattern(end.rstrip("?")) + "?" * end.endswith("?") + escape_pattern(text), rest, not rest)
        marks = [(self.shape.after,), *self.shape.closings]
        tokens = self.writer.plain_tokens(*(one for texts in marks for one in texts))
        forbidden = "|".join([*(make_pattern(texts) for texts in marks), *map(escape_pattern, tokens)])
        found = text_terminals(self.writer, schema, id, field, Bounds(forbidden, id, edges), {"closed": tail})
        return f"{line} {found['closed']}"

    def write_json(self, schema: Mapping[str, Any], field: str) -> str:
        """Return the grammar of a JSON value and its closing tag."""
        line, end = ("" if blank is None else LINE for blank in (self.shape.leading, self.shape.trailing))
        return f"{line} {self.tree.value(schema, schema, field)} {end} {self.writer.mark(self.shape.after)}"


def make_tag_arguments(content: ContentParser, closings: Texts) -> TagArguments | None:
    """Return the arguments that a tag pattern describes; None if it has other parts."""
    pattern: Pattern | None = content.pattern
    own = content.value
    if pattern is None or (own is not None and not can_write(own)):
        return None
    parts = read_parts(pattern.source)
    if parts is None or [part.name for part in parts if isinstance(part, Group)] != ["key", "value"]:
        return None
    key, value = (place for place, part in enumerate(parts) if isinstance(part, Group))
    before, middle, after = parts[:key], parts[key + 1 : value], parts[value + 1 :]
    leading = middle.pop() if middle and isinstance(middle[-1], Blank) else None
    trailing = after.pop(0) if after and isinstance(after[0], Blank) else None
    shortest = parts[value]
    if not (isinstance(shortest, Group) and shortest.shortest and middle and before and len(after) == 1):
        return None
    [end] = after
    if not isinstance(end, str) or not isinstance(before[0], str) or not isinstance(middle[0], str):
        return None
    if isinstance(leading, str | Group) or isinstance(trailing, str | Group):
        return None
    found = TagArguments(trim_blanks(before), tuple(middle), leading, trailing, end, content, closings)
    return found if found.reads_key("key") else None


def can_write(parser: ContentParser) -> bool:
    """Return whether the grammar can write values of the parser."""
    return parser.name == "text" or (parser.name == "json" and set(parser.options) <= {"allow_non_json", "strip"})


def make_arguments(content: ContentParser, closings: Texts) -> Arguments | None:
    """Return the grammar of the arguments that a content parser reads; None if no grammar follows."""
    if content.name == "xml-inline":
        return make_tag_arguments(content, closings)
    if content.name != "json":
        return None
    pairs = content.options.get("string_delims", [])
    if not any(content.options.values()):
        return PlainArguments()
    marks = (pairs[0][0], pairs[0][1]) if pairs else None
    return None if len(pairs) > 1 else DialectArguments(marks, bool(content.options.get("unquoted_keys")), closings)
