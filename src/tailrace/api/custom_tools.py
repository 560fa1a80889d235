"""Custom tools, whose input is plain text: functions with one text for the model (decision 0100). Their calls, as text
again."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from tailrace.api.open_strings import OpenString
from tailrace.errors import ParameterError
from tailrace.text.tool_parsers.functions import make_value_error
from tailrace.text.tool_parsers.lark_source import LarkError, LarkGrammar
from tailrace.text.tool_parsers.schemas import check_pattern

INPUT = "input"  # the argument of a custom tool
OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
FORMS = '{"type": "text"} or {"type": "grammar", "syntax": "regex" or "lark", "definition": string}'
NESTED_FORMS = '{"type": "text"} or {"type": "grammar", "grammar": {"syntax": "regex" or "lark", "definition": string}}'


class CustomFunction(NamedTuple):
    """A custom tool as a function with one text. lark: the Lark grammar of this text."""

    function: dict[str, Any]
    lark: LarkGrammar | None = None


def make_custom_function(tool: dict[str, Any], place: str, nested: bool = False) -> CustomFunction:
    """Return a custom tool as a function. A regex becomes the pattern of its text. A Lark grammar is described to the
    model, and read here alone: reading a long one takes long.

    Args:
        nested: the format has the form of Chat, where the grammar is an object of its own.

    Raises:
        ParameterError: the format is malformed.
    """
    text: dict[str, Any] = {"type": "string"}
    grammar: LarkGrammar | None = None
    function: dict[str, Any] = {"type": "function", "name": tool.get("name")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    asked = flatten_form(tool.get("format"), nested)
    inner = "" if asked is tool.get("format") else ".grammar"
    match asked:
        case None | {"type": "text"}:
            pass
        case {"type": "grammar", "syntax": "regex", "definition": str(regex)}:
            check_pattern(regex, f"{place}.format{inner}.definition")
            text["pattern"] = f"^(?:{regex})$"
            function["strict"] = True
        case {"type": "grammar", "syntax": "lark", "definition": str(lark)}:
            grammar = read_lark(lark, f"{place}.format{inner}.definition")
            text["description"] = f"The text must follow this Lark grammar:\n{lark}"
            function["strict"] = True
        case other:
            raise make_value_error(f"{place}.format", NESTED_FORMS if nested else FORMS, other)
    function["parameters"] = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
    return CustomFunction(function, grammar)


def flatten_form(form: Any, nested: bool) -> Any:
    """Return a custom tool's format in the form of Responses. nested: it may have the form of Chat."""
    match form:
        case {"type": "grammar", "grammar": {**grammar}} if nested:
            return grammar | {"type": "grammar"}
    return form


def read_lark(source: str, place: str) -> LarkGrammar:
    """Return a Lark grammar. Raise ParameterError if it is malformed, or has a part that can't be enforced."""
    try:
        grammar = LarkGrammar(source)
        for _ in grammar.write_rules("text", in_json=True):
            pass
        return grammar
    except LarkError as error:
        raise ParameterError(f"{place}: {error}", place) from error


class CustomInput:
    """The text of a custom tool, read from the arguments of its function as they come.

    Arguments without this text are the input themselves.
    """

    def __init__(self) -> None:
        self._unread = ""
        self._text: OpenString | None = None

    def feed(self, arguments: str) -> str:
        """Return the text that further arguments give."""
        if self._text is None:
            self._unread += arguments
            if (opening := OPENING.match(self._unread)) is None:
                return ""
            self._text, arguments = OpenString(), self._unread[opening.end() :]
        return self._text.feed(arguments) if self._text.rest is None else ""

    def end(self) -> str:
        """Return what is left of the text after the last argument."""
        return self._unread if self._text is None else ""


def write_custom_arguments(text: str) -> str:
    """Return the arguments of the function that stands for a custom tool."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def flatten_call(call: dict[str, Any], place: str) -> dict[str, Any]:
    """Return an earlier call of a custom tool as the call of its function. Return any other call as it is.

    Raises:
        ParameterError: the call lacks the tool's name, or its input.
    """
    if call.get("type") != "custom":
        return call
    custom = call.get("custom")
    if not isinstance(custom, dict):
        raise make_value_error(f"{place}.custom", "an object", custom)
    for key in ("name", "input"):
        if not isinstance(custom.get(key), str):
            raise make_value_error(f"{place}.custom.{key}", "a string", custom.get(key))
    function = {"name": custom["name"], "arguments": write_custom_arguments(custom["input"])}
    return {key: value for key, value in call.items() if key != "custom"} | {"type": "function", "function": function}
