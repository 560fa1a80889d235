"""One call as a JSON object with its name and arguments in any order, and arguments after a name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tailrace.text.tool_parsers.call_parser import WHITE, CallParser, NotACallError, Parsing, Sink, in_json
from tailrace.text.tool_parsers.json_arguments import json_arguments
from tailrace.text.tool_parsers.json_quotes import COMMAS, FENCE, OPENINGS
from tailrace.text.tool_parsers.json_repair import json_value, read_colon
from tailrace.text.tool_parsers.json_strings import json_name
from tailrace.text.tool_parsers.lookahead import match_sequences

# an object's first key, as far as it has arrived, and the character after it
FIRST_KEY = re.compile(rf"""\{{\s*[{OPENINGS}]?(?P<key>\w*)(?P<behind>(?s:.)?)""")
A_KEY = ('"', re.compile(r'[^"\\\n]*'), '"', WHITE, ":")
NAMES = ("name", "tool_name", "function")
ARGUMENTS = ("arguments", "parameters", "args")
ALSO_ARGUMENTS = ("input", "params", "kwargs", "tool_input", "action_input")  # if the function has no such parameter
BESIDE = ("type", "id", "tool_call_id")  # other keys of a call; a bare object that begins with any other is content


def json_call(parser: CallParser, listed: bool = False) -> Parsing[None]:
    """Read the rest of a call after its opening brace, with keys in any order.

    Arguments that come before the name wait for the name. Without a marker, the name waits for the arguments.

    Args:
        listed: the call is in a list. An object that turns out to be no call is skipped. It is content if another
            object of the list is a call.
    """
    found = JsonCall(parser)
    yield from found.read_keys()
    if parser.undecided and listed and not found.name and not parser.bare:
        parser.reject_call()
    else:
        yield from found.end()


class JsonCall:
    """The known parts of a call whose keys are being read. `id`: the call's id if it stands outside of the object.

    If no key holds the arguments, the other keys are the arguments. Otherwise the other keys are content, except
    BESIDE.
    """

    def __init__(self, parser: CallParser, id: str | None = None, ends: Sequence[str] = ()) -> None:
        self.parser, self.id, self.ends = parser, id, (*ends, *parser.ends)
        self.name, self.early, self.given = "", list[str](), False
        self.others: list[tuple[str, str, str]] = []  # the other keys: name, value, both as the model wrote them
        self.begun = 0  # where the text of a key begins

    def read_keys(self) -> Parsing[None]:
        """Read the keys, their values and the closing brace. The brace may be missing after the arguments."""
        parser = self.parser
        self.begun = parser.mark()
        while True:
            yield from parser.read_whitespace()
            if (yield from parser.accept("}")) or (self.is_whole and (yield from parser.comes_one(("]", *self.ends)))):
                return
            yield from self.key()
            self.begun = parser.mark()
            yield from parser.read_whitespace()
            there = yield from parser.comes_one(("}", *OPENINGS, *(("]", *self.ends) if self.is_whole else ())))
            if (yield from parser.peek()) in COMMAS:
                parser.take(1)
            elif not there:
                raise NotACallError(",")

    @property
    def is_whole(self) -> bool:
        """Return True if the call has its arguments. Then the closing brace may be missing."""
        return self.given or bool(self.name and self.others)

    def key(self) -> Parsing[None]:
        """Read a key and its value."""
        parser = self.parser
        key = yield from json_key(parser)
        if key in NAMES and not self.name:
            if key == "function" and (yield from parser.accept("{")):
                yield from self.read_keys()
                return
            first = yield from parser.peek()
            quoted = first in OPENINGS
            if not (quoted or first.isalpha() or first == "_"):
                raise NotACallError(first)
            self.name = yield from json_name(parser)
            parser.require_declared(self.name)
            if not quoted and (parser.bare or self.name not in parser.tools):
                raise NotACallError(self.name)
            parser.name_call(None if self.others else self.name, self.id)
        elif key in ARGUMENTS and not self.given:
            yield from json_arguments(parser, self.begin, self.ends)
            self.given = True
            if self.name:
                parser.complete_call()
        elif self.is_function(key) and (yield from parser.is_next("{")):
            self.name = key
            yield from json_arguments(parser, self.begin, self.ends)
            self.given = True
            parser.complete_call()
        elif key in BESIDE or not (parser.bare and parser.undecided):
            if parser.undecided and (key not in BESIDE or self.declared(key)):
                parser.name_call(None)
            value: list[str] = []
            yield from json_value(parser, value.append, self.ends)
            self.add(key, "".join(value), parser.read_from(self.begun))
        else:
            raise NotACallError(key)

    def is_function(self, key: str) -> bool:
        """Return True if the first key is a function's name, and its value is the arguments: {"NAME": {…}}."""
        return key in self.parser.tools and not (self.parser.bare or self.name or self.others)

    def declared(self, key: str) -> bool:
        """Return True if the key may be a parameter of the function.

        The function declares such a parameter. Or it declares no parameters, and the key is not in BESIDE.
        """
        names = self.parser.parameters_of(self.name).names()
        return key in names or (not names and key not in BESIDE)

    def add(self, key: str, value: str, written: str) -> None:
        """Store another key. A key after the arguments is content."""
        self.others.append((key, value, written))
        if not self.parser.undecided:
            self.add_other_keys()

    def add_other_keys(self) -> None:
        """Send the other keys as content, except BESIDE. If one of these keys is a parameter, the call is doubtful."""
        said = [other for other in self.others if other[0] not in BESIDE]
        self.parser.doubtful |= any(key in self.parser.parameters_of(self.name).names() for key, *_ in said)
        self.parser.add_content("".join(written for *_, written in said))
        self.others.clear()

    def begin(self) -> Sink:
        """Return the sink for the arguments."""
        if not self.name:
            return self.early.append
        self.start()
        return self.parser.add_arguments

    def start(self) -> None:
        """Send the other keys and then the name."""
        self.parser.require_name(self.name)
        self.add_other_keys()
        self.parser.start_call(self.name, self.id)

    def end(self) -> Parsing[None]:
        """End the call, which may lack arguments."""
        parser = self.parser
        if parser.undecided:
            arguments = "".join(self.early) if self.given else (yield from self.arguments())
            self.start()
            parser.add_arguments(arguments)
        parser.end_call()

    def arguments(self) -> Parsing[str]:
        """Return the other keys as arguments, if the function declares any of these keys.

        Raises:
            NotACallError: the keys may be arguments, and the function declares none of these keys. Or the object was
                closed before its arguments.
        """
        found = [other for other in self.others if self.declared(other[0])]
        more = [other for other in self.others if other not in found and other[0] not in BESIDE]
        if not found and len(more) == 1 and more[0][0] in ALSO_ARGUMENTS and more[0][1].startswith("{"):
            self.others.clear()
            return more[0][1]
        if not found and (more or (yield from match_sequences(self.parser, [(WHITE, '"'), (WHITE, ",", WHITE, '"')]))):
            raise NotACallError("arguments")
        self.others = more
        return f"{{{', '.join(f'{in_json(key)}: {value}' for key, value, _ in found)}}}"


def skip_braces(parser: CallParser) -> Parsing[None]:
    """Read white space and surplus closing braces. A key after these braces shows that a brace came too early."""
    yield from parser.read_whitespace()
    while (yield from parser.accept("}")):
        if not parser.undecided:
            parser.end_call()
        yield from parser.read_whitespace()
    if not parser.undecided:
        parser.doubtful |= bool((yield from match_sequences(parser, [A_KEY, (",", WHITE, *A_KEY)])))


def keyed_call(parser: CallParser) -> Parsing[None]:
    """Read the rest of a call {"NAME": {…}}."""
    name = yield from json_key(parser)
    parser.require_declared(name)
    yield from call_arguments(parser, name)
    yield from parser.read_whitespace()
    if not (yield from parser.accept("}")) and not (yield from parser.comes_one(("]", *parser.ends))):
        raise NotACallError("}")
    parser.end_call()


def json_key(parser: CallParser) -> Parsing[str]:
    """Read a key and its colon. Return the key."""
    yield from parser.read_whitespace()
    quoted = (yield from parser.peek()) in OPENINGS
    key = yield from json_name(parser)
    apart = (yield from parser.peek()).isspace()
    yield from parser.read_whitespace()
    yield from read_colon(parser, quoted and apart)
    yield from parser.accept(":")
    yield from parser.read_whitespace()
    return key


def call_arguments(parser: CallParser, name: str, id: str | None = None, ends: Sequence[str] = ()) -> Parsing[None]:
    """Read the arguments of a call whose name is known."""
    parser.name_call(name, id)

    def start_arguments() -> Sink:
        parser.start_call(name, id)
        return parser.add_arguments

    yield from json_arguments(parser, start_arguments, (*ends, *parser.ends))
    parser.complete_call()


def call_or_arguments(parser: CallParser, name: str, id: str | None, ends: Sequence[str] = ()) -> Parsing[None]:
    """Read the arguments of a call after its name.

    The whole call may replace the arguments. Then the name before it is no function's name, or the call repeats the
    name.
    """
    whole = parser.tools and name not in parser.tools and (yield from begins_call(parser))
    if whole or (yield from repeats_name(parser, name)):
        parser.around = "}"
        call = JsonCall(parser, id or (name if whole else None), ends)
        parser.take(1)
        yield from call.read_keys()
        yield from call.end()
    else:
        yield from call_arguments(parser, name, id, ends)


def json_in_place(parser: CallParser, name: str, ends: Sequence[str]) -> Parsing[bool]:
    """Read arguments in JSON, perhaps in a code block, although the format does not use JSON. Return True if they
    came."""
    yield from parser.read_whitespace()
    if parser.closed_by_end or not (yield from parser.comes_one(("{", FENCE))):
        return False
    yield from call_or_arguments(parser, name, None, [mark for mark in ends if mark])
    yield from skip_braces(parser)
    return True


def begins_call(parser: CallParser) -> Parsing[bool]:
    """Return True if an object comes next whose first key is a key of calls. Read nothing."""
    yield from parser.peek()
    while (found := FIRST_KEY.match(parser.text, parser.at)) is not None and not found["behind"]:
        yield from parser.wait_for_text()
    return found is not None and found["key"] in (*NAMES, *ARGUMENTS)


def repeats_name(parser: CallParser, name: str) -> Parsing[bool]:
    """Return True if an object comes next that begins with the name of the same call. Read nothing.

    This name is no argument.
    """
    if "name" in parser.parameters_of(name).names():
        return False
    mark = (WHITE, ":", WHITE, f'"{name}"', WHITE, ",", WHITE, '"')
    begun = (("{", WHITE, '"name"', *mark, f'{key}"') for key in ARGUMENTS)
    return bool((yield from match_sequences(parser, list(begun))))
