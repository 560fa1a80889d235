"""The calls of one region, sent while the region is read: which templates allow that, and what a damaged region is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.text.response_templates.early_json import JsonCallReader
from tailrace.text.response_templates.early_tags import LineCallReader, TagCallReader
from tailrace.text.response_templates.json_reader import PYTHON, Dialect, LaterError
from tailrace.text.response_templates.template import TemplateField
from tailrace.text.response_templates.values import PLACEHOLDER, PYTHON_CALLS, list_calls, shape_value
from tailrace.text.tool_parsers import CallParser, ToolCall, ToolSchemas
from tailrace.text.tool_parsers.call_parser import NotACallError, Parsing, in_json

CallReader = JsonCallReader | TagCallReader | LineCallReader


class EarlyCalls:
    """The calls of a region.

    Args:
        field, mark, groups: the region's field, its opening marker, and the groups of that marker.
        place: the number of the first call.
    """

    def __init__(
        self, field: TemplateField, mark: str, groups: dict[str, str], declared: ToolSchemas, place: int
    ) -> None:
        self._field, self._mark, self._groups, self._declared = field, mark, groups, declared
        self._body: list[str] = []
        self._later: list[str] | None = None  # The sent arguments of a call of which the end of the region decides.
        self._behind: list[str] = []  # Text behind the text that the reader can't read.
        self._place, self._reader = place, make_reader(field, groups)
        self._parser = CallParser(self._read, "", None, declared, place, bare=False)

    def _read(self, parser: CallParser) -> Parsing[None]:
        if self._reader is None:
            raise NotACallError("the whole region decides")
        try:
            yield from self._reader.read(parser)
        except LaterError as error:
            self._later = error.keys
            raise

    @property
    def body(self) -> str:
        """Return the text of the region."""
        return "".join(self._body)

    @property
    def num_calls(self) -> int:
        """Return the number of calls whose names were sent."""
        return self._parser.num_calls

    @property
    def unfinished(self) -> bool:
        """Return True if a call was sent in part."""
        return self._parser.unfinished

    def feed(self, text: str) -> list[ToolCall]:
        """Add text. Return the new parts of calls."""
        self._body.append(text)
        if not self._parser.over:
            return keep_calls(self._parser.feed(text))
        self._behind.append(text)
        return []

    def finish(self, mark: str, groups: Mapping[str, str], cut: bool) -> tuple[list[ToolCall], str]:
        """End the region. Return the last parts of calls, and the text that belongs to no call.

        mark, groups: the closing marker and its groups. cut: a limit ended the text.
        """
        parser = self._parser
        parser.cut = cut
        parts = [] if parser.over else keep_calls(parser.feed("", ended=True))
        rest = parser.held + parser.unread + "".join(self._behind)
        if self.num_calls and ((self.unfinished and cut) or (not self.unfinished and not rest.strip())):
            return parts, ""
        if not self._mark and not self.body.strip():
            return parts, ""
        if self.unfinished and self._later is None:
            return parts, rest + mark if rest.strip() else ""
        try:
            field, known = self._field, {**self._groups, **groups}
            value = shape_value(field.parser.parse(self.body), field.transform, field.each, known)
            calls = list_calls(value, self._declared)
        except ValueError:
            if self.unfinished:
                parser.add_arguments("}")
                parts += keep_calls(parser.feed("", ended=True))
            return parts, rest + mark if self.num_calls else self._mark + self.body + mark
        return parts + self._send_later(calls), ""

    def _send_later(self, calls: list[tuple[str, str]]) -> list[ToolCall]:
        """Send what the whole region has and the reader has not sent."""
        parser, parts = self._parser, list[ToolCall | str]()
        if self._later is not None and self.unfinished:
            for key, value in json.loads(calls[self.num_calls - 1][1]).items():
                if key not in self._later:
                    parser.add_arguments(f", {in_json(key)}: {json.dumps(value, ensure_ascii=False)}")
            parser.add_arguments("}")
            parser.end_call()
        for name, arguments in calls[self.num_calls :]:
            parser.start_call(name)
            parser.add_arguments(arguments)
            parser.end_call()
        parts += parser.feed("", ended=True)
        return keep_calls(parts)


def keep_calls(parts: list[ToolCall | str]) -> list[ToolCall]:
    """Return the parts that belong to calls."""
    return [part for part in parts if isinstance(part, ToolCall)]


class CallPlaces(NamedTuple):
    """Where a call's parts are.

    name: the keys that lead to the function's name in the content, or the name itself. arguments: the keys that lead to
    the arguments.
    """

    name: tuple[str, ...] | str
    arguments: tuple[str, ...]


def make_reader(field: TemplateField, groups: Mapping[str, str]) -> CallReader | None:
    """Return the reader of a region; None if only the whole region decides what its calls are."""
    content, options = field.parser, field.parser.options
    if (places := find_places(field, groups)) is None:
        return None
    name, arguments = places
    if content.name in ("xml-inline", "kv-lines"):
        if not isinstance(name, str) or arguments or field.each:
            return None
        if content.name == "xml-inline":
            return None if options.get("merge_duplicates") else TagCallReader(name, content)
        line, mark = options.get("line_sep", "\n"), options.get("kv_sep", ":")
        return LineCallReader(name, content, line, mark) if is_plain_pair(line, mark) else None
    if content.name == PYTHON_CALLS:
        return JsonCallReader(PYTHON, name, arguments, True, False) if places == LISTED and field.each else None
    pairs = options.get("string_delims", [])
    if content.name != "json" or options.get("allow_non_json") or len(pairs) > 1:
        return None
    dialect = Dialect(marks=(pairs[0][0], pairs[0][1]) if pairs else None, bare=bool(options.get("unquoted_keys")))
    return JsonCallReader(dialect, name, arguments, field.each, field.transform is None)


LISTED = CallPlaces(("name",), ("arguments",))


def is_plain_pair(line: str, mark: str) -> bool:
    """Return whether lines and keys end at these texts, whatever stands beside them."""
    return not set(line) & set(mark) and not any(char.isspace() for char in mark)


def find_places(field: TemplateField, groups: Mapping[str, str]) -> CallPlaces | None:
    """Return where the template finds a call's parts; None if it finds them in another way."""
    closing = field.close.pattern.names.values() if field.close and field.close.pattern else ()

    def find_keys(text: Any) -> tuple[str, ...] | str | None:
        """Return the keys in the content. A text that is known already is the text itself."""
        if not isinstance(text, str):
            return None
        if (found := PLACEHOLDER.fullmatch(text)) is None:
            return text
        root, *keys = found[1].split(".")
        if root in closing or (field.each and root in groups):
            return None
        if field.each:
            return (root, *keys)
        if root == "content":
            return tuple(keys)
        return groups.get(root) if not keys else None

    match field.transform:
        case None:
            keys = ("function",)
            return CallPlaces((*keys, "name"), (*keys, "arguments"))
        case {"function": str(text)}:
            keys = find_keys(text)
            return CallPlaces((*keys, "name"), (*keys, "arguments")) if isinstance(keys, tuple) else None
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            own, keys = find_keys(name), find_keys(arguments)
            if not own or not isinstance(keys, tuple) or (isinstance(own, tuple) and own[: len(keys)] == keys):
                return None
            return None if isinstance(own, tuple) and keys[: len(own)] == own else CallPlaces(own, keys)
    return None
