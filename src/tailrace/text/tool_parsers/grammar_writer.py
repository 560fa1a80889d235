"""Writes a Lark grammar (llguidance's dialect) of tool calls: literals, markers, alternatives, embedded schemas.

A marker that is a token of its own is written as that token. The model was trained on it, and a matcher sees no text in
a special token. Any other marker is written as text. Knows no format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.json_schema import subschemas
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.schemas import check_characters, check_counts

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

ANY = "(?s:.*)"
# no \u and no \/, as in grammar/llguidance.py: with them a name could be spelled in a way that the schema forbids
ESCAPES = 'nrbtf\\"'


class CallGrammar(NamedTuple):
    """The grammar of a format's calls: the marker that opens them ("": none), and the body of the rule after it.

    alike: if no marker opens them, a pattern of all text that would be parsed as calls; other text must not match it.
    """

    opening: str
    rest: str
    alike: str = ""


class GrammarWriter:
    """Rules and terminals by name, in the order in which they were written.

    Args:
        functions: the functions that may be called. many: several calls are allowed.
        whitespace: the most characters of white space that JSON may have in a row.

    Raises:
        ParameterError: a schema that no grammar can express.
    """

    def __init__(
        self, functions: Sequence[Function], tokenizer: Tokenizer, many: bool = True, whitespace: int = 8
    ) -> None:
        self.functions, self.tokenizer, self.many = functions, tokenizer, many
        for function in functions:
            check_counts(function.parameters, f"tools: {function.name}")
        # llguidance's own keys; this pattern is tried once at each place where JSON may have white space
        blanks: dict[str, Any] = (
            {"whitespace_pattern": rf"[ \n\r\t]{{1,{whitespace}}}"} if whitespace else {"whitespace_flexible": False}
        )
        self._options = blanks | {"json_allowed_escapes": ESCAPES}
        self._places = {function.name: place for place, function in enumerate(functions)}
        self._lines: dict[str, str] = {}

    def rule(self, name: str, body: str) -> str:
        """Define a rule (or, in capitals, a terminal); return its name."""
        self._lines[name] = body
        return name

    def json(self, schema: Mapping[str, Any]) -> str:
        """JSON that fits the schema."""
        check_characters(schema)
        return f"%json {json.dumps({**without_options(schema), 'x-guidance': self._options})}"

    def arguments(self, function: Function) -> str:
        """The object of a function's arguments, as a rule."""
        return self.rule(f"args_{self.place(function)}", self.json(function.parameters))

    def place(self, function: Function) -> int:
        """The function's number, for names of rules."""
        return self._places[function.name]

    def mark(self, marker: str) -> str:
        """A marker as text, except for what of it is a token of its own."""
        parts = [part for part in added_tokens(self.tokenizer).split(marker) if part]
        ids = [self.token(part) if added_tokens(self.tokenizer).fullmatch(part) else None for part in parts]
        return " ".join(quoted(part) if id is None else f"<[{id}]>" for part, id in zip(parts, ids, strict=True))

    def head_of(self, marker: str) -> tuple[str, str]:
        """A marker as the text before its first token, and the grammar of the rest."""
        text = added_tokens(self.tokenizer).split(marker)[0]
        return text, self.mark(marker[len(text) :])

    def token(self, marker: str) -> int | None:
        """The id of a marker that is one token, else None."""
        return self.tokenizer.backend.token_to_id(marker)

    def model_writes(self, marker: str) -> bool:
        """True if the model is known to write the marker."""
        return self.token(marker) is not None or self.tokenizer.writes(marker)

    def calls(self, form: Callable[[Function], str], separator: str) -> str:
        """A call of one of the functions, each written by `form`; if many are allowed, several with `separator` between
        them."""
        one = self.rule("call", " | ".join(form(function) for function in self.functions))
        return self.repeated(one, separator)

    def repeated(self, one: str, separator: str) -> str:
        """One item; if many are allowed, one or more."""
        return f"{one} ({separator} {one})*" if self.many else one

    def source(self) -> str:
        """The text of the grammar."""
        return "\n".join(f"{name}: {body}" for name, body in self._lines.items())


@lru_cache(maxsize=16)
def added_tokens(tokenizer: Tokenizer) -> re.Pattern[str]:
    """A pattern of the tokens that no text is split into, the longest first; in a group, for `split`."""
    added = {str(one.content) for one in tokenizer.backend.get_added_tokens_decoder().values()} - {""}
    return re.compile(f"({'|'.join(map(re.escape, sorted(added, key=len, reverse=True))) or '(?!)'})")


def without_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the schema without llguidance's own options."""
    whole = deepcopy(dict(schema))
    for _, node in subschemas(whole):
        node.pop("x-guidance", None)
    return whole


def quoted(text: str) -> str:
    """The text as a literal."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A pattern that matches this text only, for use between slashes."""
    return re.sub(r"[!-;=?-@\[-^`{-~]", lambda found: "\\" + found[0], text).replace("\n", "\\n")


def text_without(*texts: str) -> str:
    """A terminal: any text that contains none of these."""
    return f"/{ANY}/ & ~/{ANY}({'|'.join(map(escaped, texts))}){ANY}/" if texts else f"/{ANY}/"


def text_up_to(end: str, *others: str) -> str:
    """A terminal: any text that ends with `end`, with none of the texts (nor `end`) before that. Text and its end must
    be one terminal, because a matcher takes the longest match."""
    return f"/{ANY}{escaped(end)}/ & ~/{ANY}({'|'.join(map(escaped, (end, *others)))})(?s:.+)/"
