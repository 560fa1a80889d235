"""The declaration of a response template (version 1 of transformers 5.13), checked and compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from tailrace.errors import ModelLoadError
from tailrace.text.reasoning import ReasoningFormat
from tailrace.text.response_templates.call_grammar import TemplateCalls, split_opening
from tailrace.text.response_templates.dialect_arguments import DialectArguments, PlainArguments, write_object
from tailrace.text.response_templates.pattern import Pattern, PatternError
from tailrace.text.response_templates.search import Anchor, Texts
from tailrace.text.response_templates.tag_arguments import make_arguments
from tailrace.text.response_templates.values import CONTENT_PARSERS, PLACEHOLDER, STREAMED, ContentParser
from tailrace.text.tool_parsers import TOOL_FORMATS, ToolFormat
from tailrace.text.tool_parsers.wrapped import JsonCalls

NAME = KEY = "response_template"  # the format's name, and the key in tokenizer_config.json
TOP = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
KEYS = {"open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional"}
KEYS |= {"transform", "transform_each"}
REASONING = ("reasoning_content", "reasoning", "thinking")  # names that templates of the Hub use
CHANNELS = {"content": "content", "tool_calls": "tool", **dict.fromkeys(REASONING, "reasoning")}
MODELS = "the checkpoint's response template"


class UnsupportedTemplateError(ModelLoadError):
    """A response template that may be sound, but that tailrace can't apply."""


class TemplateField(NamedTuple):
    """A field of the answer, and the text around it. channel: "" for a field that no answer of the API has."""

    name: str
    channel: Literal["content", "reasoning", "tool", ""]
    open: Anchor | None
    close: Anchor | None
    parser: ContentParser
    join: str | None
    transform: Any
    each: bool


class ResponseTemplate(NamedTuple):
    """A checked template. implicit: the field of the text outside of all other fields; None drops that text."""

    fields: tuple[TemplateField, ...]
    implicit: TemplateField | None
    start: Anchor
    source: str

    def make_reasoning(self) -> ReasoningFormat | None:
        """Return the format of thoughts, for budgets and grammars; None if its markers are no literal texts."""
        field = next((field for field in self.fields if field.channel == "reasoning"), None)
        if field is None or not field.open or not field.close or not field.open.literals or not field.close.literals:
            return None
        closings = field.close.literals
        also = tuple((opening, closings[0]) for opening in field.open.literals[1:])
        also += tuple((field.open.literals[0], closing) for closing in closings[1:])
        return ReasoningFormat(field.open.literals[0], closings[0], MODELS, also=also, again=True)

    def make_tools(self) -> ToolFormat | None:
        """Return the format of calls, for grammars; None if no grammar follows from the template."""
        field = next((field for field in self.fields if field.channel == "tool"), None)
        if field is None or field.open is None or field.close is None:
            return None
        closings = field.close.list_texts()
        if closings is None:
            return None
        marker = closings[0][-1]
        opening = field.open.get_literal()
        if opening is None:
            shape = self._make_named_calls(field, closings)
            return None if shape is None else ToolFormat(shape, ((shape.opening, marker),), (), MODELS)
        return make_keyed_format(field, opening, closings)

    def _make_named_calls(self, field: TemplateField, closings: Texts) -> TemplateCalls | None:
        """Return calls whose names are in the opening pattern; None if no grammar follows."""
        pattern = field.open.pattern if field.open else None
        parts = split_opening(pattern) if pattern and not field.each else None
        arguments = make_arguments(field.parser, closings)
        if parts is None or arguments is None:
            return None
        opening, head, group, middle = parts
        match field.transform:
            case {"function": {"name": str(name), "arguments": "{content}"}} if name == f"{{{group}}}":
                shape = TemplateCalls(opening, head, middle, arguments, "", closings[0], pattern, group)
                return shape if shape.reads_name("name") else None
        return None

    def list_marks(self, special: list[str]) -> tuple[str, ...]:
        """Return the special tokens that the template names. The parser must see them in the text."""
        return tuple(mark for mark in special if mark in self.source)


def make_keyed_format(field: TemplateField, opening: str, closings: Texts) -> ToolFormat | None:
    """Return the format of calls that are objects with the name and the arguments; None if no grammar follows."""
    match field.transform:
        case None:
            keys = ["function", "name", "arguments"]
        case {"function": "{content}"} if not field.each:
            keys = ["name", "arguments"]
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            root = "" if field.each else r"content\."
            found = [re.fullmatch(rf"\{{{root}(\w+)\}}", text) for text in (name, arguments)]
            keys = [one[1] for one in found if one]
        case _:
            return None
    if len(keys) < 2 or field.parser.name != "json":
        return None
    pairs, options = ((opening, closings[0][-1]),), field.parser.options
    if not options and len(keys) == 2 and len(closings[0]) == 1:
        head = f'{{"{keys[0]}": "NAME", "{keys[1]}": '
        for known in TOOL_FORMATS.values():  # with the line breaks that such models write
            own = known.shape
            if isinstance(own, JsonCalls) and (known.markers, own.head, own.listed) == (pairs, head, field.each):
                return known
        between = ", " if field.each else "\n"
        return ToolFormat(JsonCalls(pairs, head, field.each, not field.each, between=between), pairs, (), MODELS)
    arguments = make_arguments(field.parser, closings)
    if field.each or not isinstance(arguments, PlainArguments | DialectArguments):
        return None
    head, middle, tail = write_object(keys, arguments.marks, arguments.bare)
    return ToolFormat(TemplateCalls(opening, (head,), (middle,), arguments, tail, closings[0]), pairs, (), MODELS)


def load_template(spec: Any, where: str) -> ResponseTemplate:
    """Check and compile a template. where: the file and the key, for messages.

    Raises:
        ModelLoadError: the template is damaged. UnsupportedTemplateError: tailrace can't apply it.
    """
    if not isinstance(spec, Mapping):
        raise ModelLoadError(f"{where} should be an object, but is a {type(spec).__name__}")
    if (version := spec.get("version", 1)) != 1:
        raise UnsupportedTemplateError(f"{where}.version {version!r:.40} is not supported; 1 is")
    check_keys(spec, TOP, where)
    fields = spec.get("fields")
    if not isinstance(fields, Mapping) or not fields:
        raise ModelLoadError(f"{where}.fields should be an object with at least one field")
    if not isinstance(spec.get("defaults", {}), Mapping):
        raise ModelLoadError(f"{where}.defaults should be an object")
    built = [load_field(str(name), field, f"{where}.fields.{name}") for name, field in fields.items()]
    implicit = [field for field in built if field.open is None]
    if len(implicit) > 1:
        names = ", ".join(field.name for field in implicit)
        raise ModelLoadError(f"{where}.fields: only one field may lack open and open_pattern, but {names} do")
    if (start := load_anchor(spec, "start_anchor", where)) is None:
        raise ModelLoadError(f"{where} should have start_anchor or start_anchor_pattern")
    return ResponseTemplate(tuple(built), implicit[0] if implicit else None, start, "\0".join(list_texts(spec)))


def load_field(name: str, field: Any, where: str) -> TemplateField:
    """Check and compile one field. The errors are those of `load_template`."""
    if not isinstance(field, Mapping):
        raise ModelLoadError(f"{where} should be an object, but is a {type(field).__name__}")
    check_keys(field, KEYS, where)
    join, transform, each = field.get("join"), field.get("transform"), field.get("transform_each", False)
    if join is not None and not (isinstance(join, str) and field.get("repeats")):
        raise ModelLoadError(f"{where}.join should be a text, and needs repeats: true")
    if not isinstance(each, bool) or (each and transform is None):
        raise ModelLoadError(f"{where}.transform_each should be true or false, and needs transform")
    for text in list_texts(transform):
        if PLACEHOLDER.search(text) and not PLACEHOLDER.fullmatch(text):
            raise ModelLoadError(f"{where}.transform: {text!r:.100} mixes a placeholder with other text")
    opening, closing = (load_anchor(field, key, where) for key in ("open", "close"))
    named = [name for one in (opening, closing) if one and one.pattern for name in one.pattern.names.values()]
    if named and transform is None:
        raise ModelLoadError(f"{where}: the groups {', '.join(named)} need transform")
    channel = CHANNELS.get(name, "")
    parser = load_parser(field.get("content", "text"), field.get("content_args", {}), f"{where}.content")
    if channel in ("content", "reasoning") and (transform is not None or parser.name not in STREAMED):
        raise UnsupportedTemplateError(f"{where}: only plain text is supported in this field")
    return TemplateField(name, channel, opening, closing, parser, join, transform, each)  # pyright: ignore[reportArgumentType]


def load_parser(name: Any, options: Any, where: str) -> ContentParser:
    """Check and compile a content parser."""
    if not isinstance(name, str) or name not in CONTENT_PARSERS:
        raise UnsupportedTemplateError(f"{where} {name!r:.40} is not known; use one of {', '.join(CONTENT_PARSERS)}")
    if not isinstance(options, Mapping):
        raise ModelLoadError(f"{where}_args should be an object, but is a {type(options).__name__}")
    inner = options.get("value_parser")
    if inner is not None and not isinstance(inner, Mapping):
        raise ModelLoadError(f"{where}_args.value_parser should be an object")
    value = None
    if inner is not None:
        value = load_parser(inner.get("name", "text"), inner.get("args", {}), f"{where}_args.value_parser")
    pattern = None
    if name == "xml-inline":
        pattern = load_pattern(options.get("tag_pattern"), f"{where}_args.tag_pattern")
        if "key" not in pattern.names.values():
            raise ModelLoadError(f"{where}_args.tag_pattern should have a group named key")
    for key in ("line_sep", "kv_sep"):
        if not isinstance(text := options.get(key, ":"), str) or not text:
            raise ModelLoadError(f"{where}_args.{key} should be a text that is not empty")
    pairs = options.get("string_delims", [])
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) and text for text in pair)
        for pair in pairs
    ):
        raise ModelLoadError(f"{where}_args.string_delims should be a list of pairs of texts")
    return ContentParser(name, dict(options), pattern, value)


def load_anchor(spec: Mapping[str, Any], key: str, where: str) -> Anchor | None:
    """Return what opens or closes a field; None if the field has none."""
    if key in spec and f"{key}_pattern" in spec:
        raise ModelLoadError(f"{where} has both {key} and {key}_pattern; only one of them may be given")
    if f"{key}_pattern" in spec:
        source = spec[f"{key}_pattern"]
        return Anchor(pattern=load_pattern(source, f"{where}.{key}_pattern"))
    if key not in spec:
        return None
    given = [spec[key]] if isinstance(spec[key], str) else spec[key]
    if not isinstance(given, list) or not given or not all(isinstance(text, str) and text for text in given):
        raise ModelLoadError(f"{where}.{key} should be a text or a list of texts, none of them empty")
    return Anchor(tuple(dict.fromkeys(given)))


def load_pattern(source: Any, where: str) -> Pattern:
    """Compile an expression."""
    if not isinstance(source, str):
        raise ModelLoadError(f"{where} should be a text, but is a {type(source).__name__}")
    try:
        return Pattern(source)
    except PatternError as error:
        raise UnsupportedTemplateError(f"{where}: {error}") from error


def check_keys(spec: Mapping[str, Any], known: set[str], where: str) -> None:
    """Raise UnsupportedTemplateError for keys that version 1 does not have."""
    if unknown := sorted(map(str, set(spec) - known)):
        raise UnsupportedTemplateError(f"{where} has keys that are not known: {', '.join(unknown)}")


def list_texts(value: Any) -> list[str]:
    """Return all texts of a JSON value, expressions without their backslashes too."""
    if isinstance(value, str):
        return [value, value.replace("\\", "")]
    if isinstance(value, Mapping):
        return [text for one in value.values() for text in list_texts(one)]
    return [text for one in value for text in list_texts(one)] if isinstance(value, list) else []
