"""Arguments that are written one by one, sent as they are read.

A text leaves as it is written, except its last characters if they may belong to its closing tag. Any other value
leaves when it is complete, because only then its JSON is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tailrace.text.tool_parsers.call_parser import CallParser, in_json
from tailrace.text.tool_parsers.json_escapes import escape_text
from tailrace.text.tool_parsers.resolve import Declared

FIRST_LINE = re.compile(r"\r?\n")
NUMBER = frozenset("+-.0123456789eE")
NULLS = ("null", "None")  # as values.json_of reads them
CONSTANTS = (*NULLS, "true", "false", "True", "False")
BRACKETS = tuple('"[{(')


class ArgumentStream:
    """The arguments object of one call.

    The function's name leaves with the first certain text. If the call turns out to be damaged before, it is content.
    A parameter that is written twice leaves twice. Readers of JSON take the last value.
    """

    def __init__(self, parser: CallParser, name: str) -> None:
        self.parser, self.name = parser, name
        self.keys: list[str] = []  # the parameters that were sent, at least in part
        self.text: ArgumentText | None = None  # a text of which only a part was sent

    def add(self, key: str, value: str) -> None:
        """Send a whole value, which is JSON."""
        self.begin(key)
        self.parser.add_arguments(value)

    def begin(self, key: str) -> None:
        """Send a key. Before the first key, send the function's name."""
        if not self.keys:
            self.parser.start_call(self.name)
        self.parser.add_arguments(f"{', ' if self.keys else '{'}{in_json(key)}: ")
        self.keys.append(key)

    def end(self) -> None:
        """End the call."""
        if self.keys:
            self.parser.add_arguments("}")
            self.parser.end_call()
        else:
            self.parser.add_call(self.name, ())

    def abort(self) -> None:
        """End a call that can't be read to its end.

        What was sent is completed to valid JSON. If a limit has cut the call, it ends as the model wrote it.
        """
        if self.parser.cut and self.text is not None:
            self.text.frozen = False
            self.text.flush()
        elif self.keys and not self.parser.cut:
            with self.parser.keep_held():
                self.parser.add_arguments("}" if self.text is None else '"}')


class ArgumentText:
    """A text that is sent as it is read.

    Args:
        key: the parameter's name.
        is_certain: a function that returns the number of characters that belong to the text, whatever follows.
        may_be_other: a function that returns True if a text, without white space around it, may begin another value.
        own_line: the text's first line break is dropped.
    """

    def __init__(
        self,
        call: ArgumentStream,
        key: str,
        is_certain: Callable[[str], int],
        may_be_other: Callable[[str], bool] | None = None,
        own_line: bool = False,
    ) -> None:
        self.call, self.key, self.own_line = call, key, own_line
        self.frozen = False  # The text may end before text that was read.
        self._is_certain, self._may_be_other = is_certain, may_be_other
        self._waiting: list[str] = []
        self._sent = self._lead = 0  # Characters sent, or dropped at the beginning; of these, the dropped ones.
        self._again = 0  # Characters that were sent and will be read again.

    def feed(self, text: str) -> None:
        """Add text that was read."""
        again = min(self._again, len(text))
        self._again -= again
        if again < len(text):
            self._waiting.append(text[again:])

    def take(self, text: str) -> None:
        """Add text that was read, and send what is certain."""
        self.feed(text)
        self.flush()

    def rewind(self) -> None:
        """Read the text again from its beginning."""
        self._waiting, self._again, self.frozen = [], self._sent, False

    def flush(self) -> None:
        """Send the text that is certain."""
        if self.frozen or not self._waiting:
            return
        text = "".join(self._waiting)
        self._waiting = [text]
        size = self._is_certain(text)
        if not size or (not self._sent and self._may_be_other and self._may_be_other(text[:size].strip())):
            return
        parser, lead = self.call.parser, 0
        if not self._sent:
            self.call.begin(self.key)
            self.call.text = self
            parser.add_arguments('"')
            if self.own_line and (line := FIRST_LINE.match(text)):
                lead = self._lead = line.end()
        self._sent += size
        self._waiting = [text[size:]]
        parser.add_arguments(escape_text(text[lead:size]), text[size:])

    def finish(self, text: str) -> bool:
        """Send the rest of the whole text. Return False if nothing was sent before."""
        if not self._sent:
            return False
        self.call.parser.add_arguments(escape_text(text[self._sent - self._lead :]) + '"')
        self.call.text = None
        return True


def choose_text_check(declared: Declared) -> tuple[bool, Callable[[str], bool] | None]:
    """Return whether a value may leave as a text before it is complete, and the function `may_be_other`.

    A value of an undeclared type waits for its end.
    """
    kinds = declared.get_kinds()
    if "string" not in kinds:
        return False, None
    if kinds == {"string"}:
        return True, None
    return True, is_beginning_of_null if kinds == {"string", "null"} else is_beginning_of_json


def is_beginning_of_null(text: str) -> bool:
    """Return True if the text may become null."""
    return any(word.startswith(text) for word in NULLS)


def is_beginning_of_json(text: str) -> bool:
    """Return True if the text may become JSON, or a list or an object as Python writes it."""
    return text.startswith(BRACKETS) or NUMBER.issuperset(text) or any(word.startswith(text) for word in CONSTANTS)
