"""The values of a template's fields: content parsers and transforms, as transformers defines them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tailrace.text.response_templates.json_reader import SURROGATE, convert_python_calls
from tailrace.text.response_templates.pattern import Pattern
from tailrace.text.response_templates.search import find_all_matches
from tailrace.text.tool_parsers import ToolSchemas
from tailrace.text.tool_parsers.call_parser import in_json
from tailrace.text.tool_parsers.resolve import ANYTHING
from tailrace.text.tool_parsers.values import json_of

PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
BARE_KEY = re.compile(r'"(?:\\.|[^"\\])*"|(?<=[{,])(\s*)(\w+)(\s*):', re.DOTALL)
PYTHON_CALLS = "python-call-list"
STREAMED = ("text", "int", "float", "bool")


class ContentParser(NamedTuple):
    """A content parser and its arguments. pattern: the tags of xml-inline. value: the parser of single values."""

    name: str
    options: dict[str, Any]
    pattern: Pattern | None = None
    value: ContentParser | None = None

    @property
    def strips(self) -> bool:
        """White space around the text is no part of the value."""
        return bool(self.options.get("strip", True))

    def parse(self, text: str) -> Any:
        """Return the value of a text.

        Raises:
            ValueError: the text has no value.
        """
        return CONTENT_PARSERS[self.name](text, self)

    def parse_value(self, text: str) -> Any:
        """Return a single value of several."""
        return text if self.value is None else self.value.parse(text)


def parse_text(text: str, parser: ContentParser) -> str:
    """Return the text, as a rule without white space around it."""
    return text.strip() if parser.strips else text


def parse_json(text: str, parser: ContentParser) -> Any:
    """Return a JSON value, in the dialect of the options. A dialect is rewritten piece by piece outside of strings."""
    options, parts = parser.options, [("", text)]  # (a string as JSON, the text after it)
    for opening, closing in options.get("string_delims", []):
        parts = [piece for held, rest in parts for piece in take_strings(held, rest, opening, closing)]
    if options.get("unquoted_keys"):
        parts = [(held, BARE_KEY.sub(quote_key, rest)) for held, rest in parts]
    strict = bool(options.get("allow_non_json"))  # Else a line break in a string is no damage.
    try:
        whole = "".join(held + rest for held, rest in parts)
        return json.loads(whole, parse_constant=refuse_constant, parse_float=read_float, strict=strict)
    except (ValueError, RecursionError) as error:
        if options.get("allow_non_json"):
            return parse_text(text, parser)
        raise ValueError(f"no JSON: {error}") from error


def take_strings(held: str, text: str, opening: str, closing: str) -> list[tuple[str, str]]:
    """Return the text in pieces, with the strings between the marks as JSON."""
    pieces, at = [], 0
    while (begin := text.find(opening, at)) >= 0:
        end = text.find(closing, begin + len(opening))
        if end < 0:
            break
        pieces.append((held, text[at:begin]))
        held, at = json.dumps(text[begin + len(opening) : end]), end + len(closing)
    return [*pieces, (held, text[at:])]


def quote_key(found: re.Match[str]) -> str:
    """Return a key in quotes, and a string as it is."""
    return found[0] if found[2] is None else f'{found[1]}"{found[2]}"{found[3]}:'


def read_float(text: str) -> float:
    """Return a number. Refuse one that no float holds."""
    if math.isinf(number := float(text)):
        raise ValueError(text)
    return number


def refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which are no JSON."""
    raise ValueError(name)


def parse_tags(text: str, parser: ContentParser) -> dict[str, Any]:
    """Return the keys and values of tags. A key that comes again replaces the value, or adds to a list."""
    assert parser.pattern is not None
    found: dict[str, Any] = {}
    lists: set[str] = set()
    for _, groups in find_all_matches(parser.pattern, text):
        if (key := groups.get("key")) is None:
            raise ValueError("a tag without a key")
        value = parser.parse_value(groups.get("value", ""))
        if key in found and parser.options.get("merge_duplicates"):
            found[key] = [*(found[key] if key in lists else [found[key]]), value]
            lists.add(key)
        else:
            found[key] = value
    return found


def parse_lines(text: str, parser: ContentParser) -> dict[str, Any]:
    """Return the keys and values of lines."""
    mark, found = parser.options.get("kv_sep", ":"), {}
    for line in text.split(parser.options.get("line_sep", "\n")):
        if mark in line:
            key, value = (parse_text(part, parser) for part in parse_text(line, parser).split(mark, 1))
            found[key] = parser.parse_value(value)
    return found


CONTENT_PARSERS: dict[str, Callable[[str, ContentParser], Any]] = {
    "text": parse_text,
    "int": lambda text, parser: int(parse_text(text, parser)),
    "float": lambda text, parser: float(parse_text(text, parser)),
    "bool": lambda text, parser: parse_text(text, parser).lower() in ("true", "1"),
    "json": parse_json,
    "xml-inline": parse_tags,
    "kv-lines": parse_lines,
    PYTHON_CALLS: lambda text, parser: json.loads(convert_python_calls(text)),
}


def apply_transform(transform: Any, scope: Mapping[str, Any]) -> Any:
    """Return the transform with values in place of placeholders. Raise ValueError for one that has no value."""
    if isinstance(transform, Mapping):
        return {key: apply_transform(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [apply_transform(value, scope) for value in transform]
    found = PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if found is None:
        return transform
    value: Any = scope
    for key in found[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"no value for {found[0]}")
        value = value[key]
    return value


def shape_value(value: Any, transform: Any, each: bool, groups: Mapping[str, str]) -> Any:
    """Return a field's value in the form that its transform gives."""
    if transform is None:
        return value
    if not each:
        return apply_transform(transform, {**groups, "content": value})
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("transform_each needs a list of objects")
    return [apply_transform(transform, {**groups, **item}) for item in value]


def list_calls(value: Any, declared: ToolSchemas) -> list[tuple[str, str]]:
    """Return the name and the arguments as JSON of each call.

    Raises:
        ValueError: the value is no call.
    """
    calls = []
    for one in value if isinstance(value, list) else [value]:
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or not isinstance(name := function.get("name"), str) or not name:
            raise ValueError("no function with a name")
        arguments = function.get("arguments", {})
        if isinstance(arguments, dict):
            arguments = {key: cast_value(item, name, key, declared) for key, item in arguments.items()}
        calls.append((name, arguments if isinstance(arguments, str) else write_json(arguments)))
    if not calls:
        raise ValueError("no calls")
    return calls


def write_json(value: Any) -> str:
    """Return the value as JSON. Half of a surrogate pair is U+FFFD.

    Raises:
        ValueError: a number is too large.
    """
    if isinstance(value, str):
        return in_json(SURROGATE.sub("\ufffd", value))
    return SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False, allow_nan=False))


def cast_value(value: Any, name: str, key: str, declared: ToolSchemas) -> Any:
    """Return an argument that is a text as the type that the tool declares, as in the formats of the table."""
    schema = declared.get(name, ANYTHING).get_property(key)
    if not (kinds := schema.get_kinds()):
        return value
    if isinstance(value, list) and "array" not in kinds:
        return [json.loads(json_of(item, schema)) if isinstance(item, str) else item for item in value]
    return json.loads(json_of(value, schema)) if isinstance(value, str) else value
