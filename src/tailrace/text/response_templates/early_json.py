"""Calls in JSON whose arguments are sent as they are read, in the dialects that response templates have.

The reader stops at text that it can't read. Then the whole region decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from tailrace.text.response_templates.early_values import EarlyValue, cast_json
from tailrace.text.response_templates.json_reader import Dialect, JsonReader, LaterError, read_python_name
from tailrace.text.tool_parsers.argument_stream import ArgumentStream
from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing, drop_text


class JsonCallReader(NamedTuple):
    """The reader of a region of calls.

    - `each`: the region is a list of calls. `listed`: it may be a list, or one call.
    - `name`: the keys that lead to the function's name, or the name itself. `arguments`: the keys that lead to the
      arguments.
    """

    dialect: Dialect
    name: tuple[str, ...] | str
    arguments: tuple[str, ...]
    each: bool
    listed: bool

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read and send the calls of a region."""
        reader = JsonReader(parser, self.dialect)
        if self.dialect.python:
            yield from self._read_list(reader, read_python_call)
        elif self.each or (self.listed and (yield from reader.read_mark()) == "["):
            yield from self._read_list(reader, self._read_call)
        else:
            yield from self._read_call(reader)
        parser.drop()
        yield from reader.read_mark()  # an error, as a rule that of the end
        raise NotACallError("more text")

    def _read_list(self, reader: JsonReader, read_call: Callable[[JsonReader], Parsing[None]]) -> Parsing[None]:
        yield from reader.expect("[")
        if (yield from reader.read_mark()) == "]":
            raise NotACallError("no calls")
        yield from read_call(reader)
        while (yield from reader.read_items("]")):
            yield from read_call(reader)

    def _read_call(self, reader: JsonReader) -> Parsing[None]:
        found: dict[str, str] = {} if isinstance(self.name, tuple) else {"name": self.name}
        yield from self._read_part(reader, (), found)
        if "arguments" not in found:
            raise NotACallError("arguments")

    def _read_part(self, reader: JsonReader, path: tuple[str, ...], found: dict[str, str]) -> Parsing[None]:
        """Read the value at a path."""
        if path == self.arguments:
            if "name" not in found or "arguments" in found or (yield from reader.read_mark()) != "{":
                raise NotACallError("arguments")
            found["arguments"] = ""
            yield from send_arguments(reader, ArgumentStream(reader.parser, found["name"]), "{", ":", "}")
        elif path == self.name:
            yield from reader.read_mark()
            if "name" in found or not (name := (yield from reader.read_string())):
                raise NotACallError("a name")
            found["name"] = name
        elif any(wanted[: len(path)] == path for wanted in (self.name, self.arguments)):
            yield from reader.expect("{")
            more = not (yield from reader.close("}"))
            while more:
                yield from self._read_part(reader, (*path, (yield from reader.read_key())), found)
                more = yield from reader.read_items("}")
        else:
            yield from reader.read_value(drop_text)


def read_python_call(reader: JsonReader) -> Parsing[None]:
    """Read and send a call as Python writes it."""
    yield from reader.read_mark()
    name = yield from read_python_name(reader)
    yield from send_arguments(reader, ArgumentStream(reader.parser, name), "(", "=", ")")


def send_arguments(reader: JsonReader, call: ArgumentStream, opening: str, mark: str, closing: str) -> Parsing[None]:
    """Read and send the arguments of a call. mark: the text behind a key."""
    parser = reader.parser
    try:
        yield from reader.expect(opening)
        more = not (yield from reader.close(closing))
        while more:
            if mark == ":":
                key = yield from reader.read_key()
            else:
                yield from reader.read_mark()
                key = yield from read_python_name(reader)
                yield from reader.expect(mark)
            if key in call.keys and reader.dialect.python:
                raise NotACallError(key)
            yield from send_value(reader, call, key)
            more = yield from reader.read_items(closing)
    except LaterError as error:
        error.keys = call.keys[:-1] if reader.closers else call.keys
        with parser.keep_held():
            parser.add_arguments(reader.closers)
        raise
    except NotACallError:
        if not parser.cut:
            with parser.keep_held():
                parser.add_arguments(reader.closers)
        call.abort()
        raise
    call.end()


def send_value(reader: JsonReader, call: ArgumentStream, key: str) -> Parsing[None]:
    """Read and send one argument."""
    declared = call.parser.parameters_of(call.name).get_property(key)
    if (yield from reader.is_string()):
        value = EarlyValue(call, key, declared, None)
        value.send((yield from reader.read_string(value.take)))
        return
    begins, kinds, parts = (yield from reader.parser.peek()), declared.get_kinds(), list[str]()
    if begins == "{" or (begins == "[" and (not kinds or "array" in kinds)):
        call.begin(key)
        yield from reader.read_value(call.parser.add_arguments)
        return
    yield from JsonReader(reader.parser, reader.dialect).read_value(parts.append)  # whose brackets are not sent
    written = "".join(parts)
    if begins == "[":
        try:
            written = cast_json(json.loads(written), call, key)
        except (ValueError, RecursionError) as error:
            raise NotACallError(str(error)) from error
    call.add(key, written)
