"""Writer of tool calls as a Lark grammar (llguidance's dialect): literals, markers, alternatives, embedded schemas.

A marker that is a token of its own is written as that token. The model was trained on it, and a matcher sees no text in
a special token. Any other marker is written as text. This module knows no format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.base.json_schema import iter_subschemas
from tailrace.errors import ParameterError
from tailrace.text.tool_parsers.functions import LARK_KEY, Function
from tailrace.text.tool_parsers.lark_source import LarkError
from tailrace.text.tool_parsers.schemas import check_characters, check_counts

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

ANY = "(?s:.*)"
BLANK = r"[\s\x1c-\x1f]*"  # what parsers read as white space
# no \u and no \/, as in grammar/llguidance.py: with them a name could be spelled in a way that the schema forbids
ANY_OBJECT = {"type": "object"}
ESCAPES = 'nrbtf\\"'


class CallGrammar(NamedTuple):
    """The grammar of a format's calls.

    - `opening`: the marker that opens the calls, or the empty string.
    - `rest`: the body of the rule after the marker.
    - `alike`: without an opening marker, a pattern of all text that would be parsed as calls. Other text must not match
      it.
    """

    opening: str
    rest: str
    alike: str = ""


class GrammarWriter:
    """A collection of rules and terminals by name, in the order in which they were written.

    Args:
        functions: the functions that may be called.
        many: several calls are allowed.
        whitespace: the maximum number of white space characters in a row in JSON.

    Raises:
        ParameterError: no grammar can express a schema.
    """

    def __init__(
        self, functions: Sequence[Function], tokenizer: Tokenizer, many: bool = True, whitespace: int = 8
    ) -> None:
        self.functions, self.tokenizer, self.many = list(functions), tokenizer, many
        for function in functions:
            if function.loose:
                continue
            check_counts(function.parameters, f"tools: {function.name}")
        # llguidance's own keys; this pattern is tried once at each place where JSON may have white space
        blanks: dict[str, Any] = (
            {"whitespace_pattern": rf"[ \n\r\t]{{1,{whitespace}}}"} if whitespace else {"whitespace_flexible": False}
        )
        self._options = blanks | {"json_allowed_escapes": ESCAPES}
        self._lines: dict[str, str] = {}
        self._fields: dict[str, str] = {}  # terminal → the field that it is for

    def rule(self, name: str, body: str) -> str:
        """Define a rule (or, in capitals, a terminal); return its name."""
        self._lines[name] = body
        return name

    def label(self, name: str, field: str) -> None:
        """Store which field a terminal is for. If no text fits the terminal, the error names the field."""
        self._fields[name] = field

    def write_json(self, schema: Mapping[str, Any], field: str = "") -> str:
        """Return the grammar of JSON that fits the schema. `field`: the field that an error about the schema names."""
        check_characters(schema)
        options = self._options | ({"field": field} if field else {})
        return f"%json {json.dumps({**without_options(schema), 'x-guidance': options})}"

    def arguments(self, function: Function) -> str:
        """Return the rule of a function's arguments object."""
        if function.lark:
            [(key, schema)] = function.parameters["properties"].items()
            parts = ['"{"', quote_literal(json.dumps(key)), '":"', str(self.find_text(schema, in_json=True)), '"}"']
            return self.rule(f"args_{self.place(function)}", f" {self.blank()} ".join(parts))
        schema = ANY_OBJECT if function.loose else function.parameters
        return self.rule(f"args_{self.place(function)}", self.write_json(schema, function.name))

    def blank(self) -> str:
        """Return the grammar of white space in JSON."""
        pattern = self._options.get("whitespace_pattern")
        return f"({self.rule('BLANK', f'/{pattern}/')})?" if pattern else ""

    def find_text(self, schema: Mapping[str, Any], in_json: bool) -> str | None:
        """Return the rule of a text with a Lark grammar of its own; None if the schema has none.

        in_json: the text is a JSON string.

        Raises:
            ParameterError: the grammar can't be a part of the grammar of calls.
        """
        name = schema.get(LARK_KEY)
        function = next((one for one in self.functions if one.lark and one.name == name), None)
        if function is None or function.lark is None:
            return None
        prefix = f"text{self.place(function)}" + ("j" if in_json else "")
        try:
            (start, body), *more = function.lark.write_rules(prefix, in_json)
        except LarkError as error:
            raise ParameterError(f"tools: {name}: the Lark grammar can't be enforced: {error}", "tools") from error
        for own, text in ((start, body), *more):
            self.rule(own, text)
        if not in_json:
            return start
        # A terminal is never empty, so it has the last quote.
        end = '"\\""'
        return f"{end} {start} {end}" if start.islower() else f"{end} {self.rule(f'{start}_END', f'{start} {end}')}"

    def place(self, function: Function) -> int:
        """Return the function's number, for names of rules."""
        return next(place for place, one in enumerate(self.functions) if one is function)

    def mark(self, marker: str) -> str:
        """Return the grammar of a marker. A part that is a token is written as the token, any other part as text."""
        parts = [part for part in added_tokens(self.tokenizer).split(marker) if part]
        ids = [self.find_marker_id(part) if added_tokens(self.tokenizer).fullmatch(part) else None for part in parts]
        return " ".join(quote_literal(part) if id is None else f"<[{id}]>" for part, id in zip(parts, ids, strict=True))

    def head_of(self, marker: str) -> tuple[str, str]:
        """Return the marker's text before its first token, and the grammar of the rest."""
        text = added_tokens(self.tokenizer).split(marker)[0]
        return text, self.mark(marker[len(text) :])

    def plain_tokens(self, *texts: str) -> list[str]:
        """Return the added tokens in these texts that are not special. A matcher also reads such a token as text."""
        found = dict.fromkeys(part for text in texts for part in added_tokens(self.tokenizer).findall(text))
        return [part for part in found if self.find_marker_id(part) not in self.tokenizer.special_ids]

    def find_marker_id(self, marker: str) -> int | None:
        """Return the id of a marker that is one token, else None."""
        return self.tokenizer.backend.token_to_id(marker)

    def model_writes(self, marker: str) -> bool:
        """Return True if the model is known to write the marker."""
        return self.find_marker_id(marker) is not None or self.tokenizer.may_write_marker(marker)

    def write_calls(self, form: Callable[[Function], str], separator: str) -> str:
        """Return the grammar of a call of one of the functions, each written by `form`.

        If many calls are allowed, `separator` stands between two calls.
        """
        one = self.rule("call", " | ".join(form(function) for function in self.functions))
        return self.repeat_item(one, separator)

    def repeat_item(self, one: str, separator: str) -> str:
        """Return the grammar of one item, or of one or more items if many are allowed."""
        return f"{one} ({separator} {one})*" if self.many else one

    def source(self) -> str:
        """Return the text of the grammar."""
        labels = (f"// {name}: {json.dumps(field)}" for name, field in self._fields.items())
        return "\n".join([*(f"{name}: {body}" for name, body in self._lines.items()), *labels])


@lru_cache(maxsize=16)
def added_tokens(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Return a pattern of the tokens that no text is split into, the longest first. It is in a group, for `split`."""
    added = {str(one.content) for one in tokenizer.backend.get_added_tokens_decoder().values()} - {""}
    return re.compile(f"({'|'.join(map(re.escape, sorted(added, key=len, reverse=True))) or '(?!)'})")


def without_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the schema without llguidance's own options."""
    whole = deepcopy(dict(schema))
    for _, node in iter_subschemas(whole):
        node.pop("x-guidance", None)
    return whole


def quote_literal(text: str) -> str:
    """Return the text as a literal."""
    return json.dumps(text, ensure_ascii=False)


def escape_pattern(text: str) -> str:
    """Return a pattern that matches this text only, for use between slashes."""
    return re.sub(r"[!-/:;=?@\[-^`{-~]", lambda found: "\\" + found[0], text).replace("\n", "\\n")


def write_names(writer: GrammarWriter) -> str:
    """Return the grammar of the name of one of the functions."""
    return writer.rule("name", " | ".join(quote_literal(function.name) for function in writer.functions))


def text_without(*texts: str) -> str:
    """Return a terminal: any text that contains none of these."""
    return f"/{ANY}/ & ~/{ANY}({'|'.join(map(escape_pattern, texts))}){ANY}/" if texts else f"/{ANY}/"


def text_ending(end: str, others: tuple[str, ...]) -> str:
    """Return a terminal: any text that ends with `end`, and contains none of the others.

    Text and its end must be one terminal, because a matcher takes the longest match.
    """
    return f"/{ANY}{escape_pattern(end)}/ & ~/{ANY}({'|'.join(map(escape_pattern, others))}){ANY}/"


def text_up_to(end: str, *others: str) -> str:
    """Return a terminal: any text that ends with `end`, with none of the texts (nor `end`) before that.

    Text and its end must be one terminal, because a matcher takes the longest match.
    """
    return f"/{ANY}{escape_pattern(end)}/ & ~/{ANY}({'|'.join(map(escape_pattern, (end, *others)))})(?s:.+)/"
