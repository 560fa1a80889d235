"""A Lark grammar (llguidance's dialect) of tool calls, as a format writes it: literals, markers, alternatives, embedded schemas.

A marker that the vocabulary has as a token of its own is written as that token: it is what the model was trained on, and a special token
is no text to a matcher. Elsewhere it is text. Knows no format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.json_schema import subschemas
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.schemas import check_characters, check_counts

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

ANY = "(?s:.*)"
# no \u and no \/, as grammar/llguidance.py has it: with them a name could be spelled past what the schema says of it
ESCAPES = 'nrbtf\\"'


class Written(NamedTuple):
    """How a format writes calls: the marker they begin with ("": none) and what follows it, as the body of a rule.

    alike: where no marker begins them, a pattern of what is taken for calls, and so can't be other text.
    """

    opening: str
    rest: str
    alike: str = ""


class Script:
    """Rules and terminals, by name, in the order in which they were written.

    Args:
        functions: those that may be called. many: more than once. whitespace: characters of it that JSON may have in a row.

    Raises:
        ParameterError: a schema that no grammar can say.
    """

    def __init__(
        self, functions: Sequence[Function], tokenizer: Tokenizer, many: bool = True, whitespace: int = 8
    ) -> None:
        self.functions, self.tokenizer, self.many = functions, tokenizer, many
        for function in functions:
            check_counts(function.parameters, f"tools: {function.name}")
        # llguidance's own keys: a pattern is tried once wherever JSON may have white space
        blanks: dict[str, Any] = (
            {"whitespace_pattern": rf"[ \n\r\t]{{1,{whitespace}}}"} if whitespace else {"whitespace_flexible": False}
        )
        self._options = blanks | {"json_allowed_escapes": ESCAPES}
        self._places = {function.name: place for place, function in enumerate(functions)}
        self._lines: dict[str, str] = {}

    def rule(self, name: str, body: str) -> str:
        """Say what `name` is (in capitals: a terminal); the name."""
        self._lines[name] = body
        return name

    def json(self, schema: Mapping[str, Any]) -> str:
        """Whatever fits the schema, as JSON."""
        check_characters(schema)
        return f"%json {json.dumps({**plain(schema), 'x-guidance': self._options})}"

    def arguments(self, function: Function) -> str:
        """The object of a function's arguments."""
        return self.rule(f"args_{self.place(function)}", self.json(function.parameters))

    def place(self, function: Function) -> int:
        """Its number, for names of rules."""
        return self._places[function.name]

    def mark(self, marker: str) -> str:
        """A marker."""
        id = self.token(marker)
        return quoted(marker) if id is None else f"<[{id}]>"

    def token(self, marker: str) -> int | None:
        """The id of a marker that is one token."""
        return self.tokenizer.backend.token_to_id(marker)

    def knows(self, marker: str) -> bool:
        """The model is known to write it."""
        return self.token(marker) is not None or self.tokenizer.writes(marker)

    def calls(self, form: Callable[[Function], str], separator: str) -> str:
        """A call of one of the functions, each written by `form`; several with `separator` between, if there may be several."""
        one = self.rule("call", " | ".join(form(function) for function in self.functions))
        return self.repeated(one, separator)

    def repeated(self, one: str, separator: str) -> str:
        """Once or, if there may be several, more often."""
        return f"{one} ({separator} {one})*" if self.many else one

    def source(self) -> str:
        """The grammar."""
        return "\n".join(f"{name}: {body}" for name, body in self._lines.items())


def plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without llguidance's own options."""
    whole = deepcopy(dict(schema))
    for _, node in subschemas(whole):
        node.pop("x-guidance", None)
    return whole


def quoted(text: str) -> str:
    """A literal."""
    return json.dumps(text, ensure_ascii=False)


def exactly(text: str) -> str:
    """A pattern of this text alone, as it may stand between slashes."""
    return re.sub(r"[!-;=?-@\[-^`{-~]", lambda found: "\\" + found[0], text).replace("\n", "\\n")


def without(*texts: str) -> str:
    """Any text in which none of these stands, as a terminal."""
    return f"/{ANY}/ & ~/{ANY}({'|'.join(map(exactly, texts))}){ANY}/" if texts else f"/{ANY}/"


def up_to(end: str, *others: str) -> str:
    """Any text that ends with `end`, and has neither this nor one of the others before, as a terminal. A matcher reads what is longest,
    so text and what ends it must be one."""
    return f"/{ANY}{exactly(end)}/ & ~/{ANY}({'|'.join(map(exactly, (end, *others)))})(?s:.+)/"
