"""One argument of a response template's call, sent as it is read."""

from __future__ import annotations

from typing import Any

from tailrace.text.response_templates.json_reader import SURROGATE
from tailrace.text.response_templates.values import ContentParser, cast_value, write_json
from tailrace.text.tool_parsers.argument_stream import (
    BRACKETS,
    ArgumentStream,
    ArgumentText,
    choose_text_check,
    is_beginning_of_json,
)
from tailrace.text.tool_parsers.call_parser import NotACallError
from tailrace.text.tool_parsers.resolve import Declared

PLAIN_OPTIONS = {"allow_non_json", "strip"}


class EarlyValue:
    """A value that leaves as it is read, if it is certain to stay a text.

    Args:
        parser: the content parser of the value. None: the value is a text as it stands.
        strips: the white space around the text is no part of it.
    """

    def __init__(
        self, call: ArgumentStream, key: str, declared: Declared, parser: ContentParser | None, strips: bool = False
    ) -> None:
        self._call, self._key, self._parser = call, key, parser
        sends, check = choose_text_check(declared) if declared.get_kinds() else (True, None)
        json_first = parser is not None and parser.name == "json"
        if parser is not None and not (parser.name == "text" or (json_first and set(parser.options) <= PLAIN_OPTIONS)):
            sends = False
        if json_first:
            sends &= bool(parser and parser.options.get("allow_non_json"))
            check = is_beginning_of_json
        self._json = check is is_beginning_of_json
        self._strips = strips or (parser is not None and parser.strips)
        self._text = ArgumentText(call, key, self._count_certain, check) if sends else None
        self._begun, self.size = False, 0

    def _count_certain(self, text: str) -> int:
        return len(text.rstrip()) if self._strips else len(text)

    def take(self, text: str) -> None:
        """Add text that was read."""
        self.size += len(text)
        if self._strips and not self._begun:
            text = text.lstrip()
        if self._text is not None and text:
            if not self._begun and self._json and text.lstrip().startswith(BRACKETS):
                self._text = None  # No later text decides it.
                return
            self._begun = True
            self._text.take(SURROGATE.sub("\ufffd", text))

    def send(self, text: str) -> None:
        """Send the rest of the whole text.

        Raises:
            NotACallError: the text has no value.
        """
        if self._text is not None:
            whole = SURROGATE.sub("\ufffd", text)
            if self._text.finish(whole.strip() if self._strips else whole):
                return
        try:
            value = text if self._parser is None else self._parser.parse(text)
        except ValueError as error:
            raise NotACallError(str(error)) from error
        self._call.add(self._key, cast_json(value, self._call, self._key))

    @property
    def sent(self) -> bool:
        """Whether a part of the text was sent."""
        return self._call.text is not None


def cast_json(value: Any, call: ArgumentStream, key: str) -> str:
    """Return an argument as JSON of the declared type.

    Raises:
        NotACallError: a number is too large.
    """
    try:
        return write_json(cast_value(value, call.name, key, call.parser.tools))
    except ValueError as error:
        raise NotACallError(str(error)) from error
