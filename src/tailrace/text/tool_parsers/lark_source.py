"""A client's Lark grammar of a text, as rules of a larger grammar. The text stands in a JSON string, or as it is.

In a JSON string each character of the text is written as JSON writes it, so strings and regular expressions are
rewritten to the escaped characters. The whole text is one terminal: every rule becomes a terminal. A matcher takes the
longest match and goes back by one byte at most. So it could not end one terminal before an escape of two bytes, nor
before a tag. Recursive rules can't be terminals. They are kept only in a JSON string, and only if no terminal can go on
with an escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tailrace.text.tool_parsers.json_patterns import (
    SPECIAL,
    RewriteError,
    escape_literal,
    find_plain_text,
    quote_text,
    rewrite_pattern,
)

TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|\#[^\n]*)"
    r'|(?P<range>"(?:\\.|[^"\\\n])*"\s*\.\.\s*"(?:\\.|[^"\\\n])*")'
    r'|(?P<string>"(?:\\.|[^"\\\n])*"i?)'
    r"|(?P<regex>/(?!/)(?:\\.|[^/\\\n])+/[a-z]*)"
    r"|(?P<alias>->\s*[A-Za-z_]\w*)"
    r"|(?P<import>%import\s+common\s*(?:\.\s*\w+(?:\s*->\s*\w+)?|\([^)]*\)))"
    r"|(?P<ignore>%ignore)"
    r"|(?P<head>[!?]*[A-Za-z_]\w*\s*:)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<repeat>~\s*\d+(?:\s*\.\.\s*\d+)?|\{\s*\d*\s*,?\s*\d*\s*\})"
    r"|(?P<sign>[|()\[\]*+?&])"
)
IMPORTED = re.compile(r"(\w+)(?:\s*->\s*(\w+))?")
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_FLOAT": r"[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*(?:[^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": r"--[^\n]*",
}
TERMINALS = ("string", "range", "regex")  # kinds of tokens
MAX_SOURCE = 100_000  # characters


class LarkError(ValueError):
    """A grammar that can't be embedded."""


class Token(NamedTuple):
    """A part of a rule's body."""

    kind: str
    text: str


class LarkGrammar:
    """A grammar that was read.

    Attributes:
        bodies: name of a rule or a terminal → its body.

    Raises:
        LarkError: the grammar is malformed, or has a part that can't be embedded.
    """

    def __init__(self, source: str) -> None:
        self.bodies: dict[str, list[Token]] = {}
        self._ignored: list[list[Token]] = []
        if len(source) > MAX_SOURCE:
            raise LarkError(f"the grammar has more than {MAX_SOURCE} characters")
        body: list[Token] | None = None
        for token in read_tokens(source):
            if token.kind == "head":
                name = token.text.rstrip(":").rstrip().lstrip("!?")
                if name in self.bodies:
                    raise LarkError(f"{name} is defined twice")
                body = self.bodies.setdefault(name, [])
            elif token.kind == "import":
                self._add_imports(token.text)
                body = None
            elif token.kind == "ignore":
                body = []
                self._ignored.append(body)
            elif body is None:
                raise LarkError(f"{token.text!r:.40} belongs to no rule")
            else:
                body.append(token)
        self._check()

    def write_rules(self, prefix: str, in_json: bool) -> Iterator[tuple[str, str]]:
        """Yield the name and the body of each rule, the start first. prefix: of all names.

        Args:
            in_json: the text stands in a JSON string.

        Raises:
            LarkError: a rule is recursive and can't be kept; or a regular expression can't be rewritten.
        """
        recursive = self.find_recursive_rule()
        if recursive and not in_json:
            raise LarkError(f"the rule {recursive} is recursive, and this model's calls have no JSON around texts")
        if recursive:
            self._check_kept(recursive)
        names = {name: rename(name, prefix, bool(recursive)) for name in self.bodies}
        gap = rename("gap", prefix, bool(recursive)) if self._ignored else ""
        for name in sorted(self.bodies, key=lambda name: name != "start"):
            own = gap if name.islower() else ""
            text = " ".join(write_token(token, names, own, in_json) for token in self.bodies[name])
            yield names[name], f"{gap} ({text})" if own and name == "start" else text
        if gap:
            parts = (" ".join(write_token(token, names, "", in_json) for token in one) for one in self._ignored)
            yield gap, f"({' | '.join(parts)})*"

    def _add_imports(self, text: str) -> None:
        inside = text.partition("common")[2].strip().lstrip(".").strip("()")
        for name, alias in IMPORTED.findall(inside):
            if name not in COMMON:
                raise LarkError(f"common.{name} is not known")
            self.bodies[alias or name] = [Token("regex", "/" + COMMON[name].replace("/", "\\/") + "/")]

    def _check(self) -> None:
        if "start" not in self.bodies:
            raise LarkError("there is no rule start")
        for name, body in [*self.bodies.items(), *(("%ignore", body) for body in self._ignored)]:
            if name != "%ignore" and not (name.islower() or name.isupper()):
                raise LarkError(f"the name {name!r:.40} must be in small letters or in capitals")
            for token in body:
                if token.kind == "name" and token.text not in self.bodies:
                    raise LarkError(f"{token.text!r:.40} is not defined")
                if token.kind == "name" and token.text.islower() and not name.islower():
                    raise LarkError(f"the terminal {name} refers to the rule {token.text}")

    def find_recursive_rule(self) -> str:
        """Return a rule that refers to itself, or the empty string."""
        done: set[str] = set()
        for begin in self.bodies:
            path, waiting = set[str](), [(begin, False)]
            while waiting:
                name, leaving = waiting.pop()
                if leaving:
                    path.remove(name)
                    done.add(name)
                elif name in path:
                    return name
                elif name not in done:
                    path.add(name)
                    waiting.append((name, True))
                    waiting += [(token.text, False) for token in self.bodies[name] if token.kind == "name"]
        return ""

    def _check_kept(self, recursive: str) -> None:
        """Raise LarkError if a terminal can go on with a character that JSON escapes."""
        for kind, text in (token for body in (*self.bodies.values(), *self._ignored) for token in body):
            written = write_terminal(kind, text, in_json=True) if kind in TERMINALS else ""
            if kind == "string":
                goes_on = bool(SPECIAL & set(find_plain_text(text.removesuffix("i"))[1:]))
            else:
                goes_on = "(?-i:" in written
            if goes_on:
                raise LarkError(
                    f"the rule {recursive} is recursive, and {text:.60} matches quotes, backslashes or line breaks"
                )


def read_tokens(source: str) -> Iterator[Token]:
    """Yield the parts of a grammar, without space and comments."""
    at = 0
    while at < len(source):
        if (found := TOKEN.match(source, at)) is None:
            raise LarkError(f"{source[at : at + 20]!r} is not supported")
        at = found.end()
        if found.lastgroup not in ("space", "alias"):
            yield Token(str(found.lastgroup), found[0])


def rename(name: str, prefix: str, kept: bool) -> str:
    """Return the name of a rule within the larger grammar. kept: a rule stays a rule."""
    if kept:
        return f"{prefix.upper() if name.isupper() else prefix.lower()}_{name}"
    return f"{prefix.upper()}_{'T' if name.isupper() else 'R'}_{name.upper()}"


def write_token(token: Token, names: Mapping[str, str], gap: str, in_json: bool) -> str:
    """Return a part of a body. gap: the rule of ignored text, which may follow each terminal."""
    kind, text = token
    if kind == "sign":
        return {"[": "(", "]": ")?"}.get(text, text)
    if kind == "repeat":
        return text
    if kind == "name":
        return f"({names[text]} {gap})" if gap and text.isupper() else names[text]
    written = write_terminal(kind, text, in_json)
    return f"({written} {gap})" if gap else written


def write_terminal(kind: str, text: str, in_json: bool) -> str:
    """Return a string, a range or a regular expression.

    Raises:
        LarkError: it can't be written.
    """
    try:
        return rewrite_terminal(kind, text, in_json)
    except RewriteError as error:
        raise LarkError(f"{text:.80}: {error}") from error


def rewrite_terminal(kind: str, text: str, in_json: bool) -> str:
    """See write_terminal.

    Raises:
        RewriteError: see rewrite_pattern.
    """
    if kind == "range":
        first, last = (find_plain_text(part.strip()) for part in text.split("..", 1))
        if len(first) != 1 or len(last) != 1:
            raise RewriteError("a range needs two characters")
        pattern, flags = f"[{escape_literal(first)}-{escape_literal(last)}]", ""
    elif kind == "string":
        folded = text.endswith("i")
        return quote_text(find_plain_text(text.removesuffix("i") if folded else text), folded, in_json)
    else:
        pattern, _, flags = text[1:].rpartition("/")
        pattern = pattern.replace("\\/", "/")
    rewritten = rewrite_pattern(pattern, flags)
    return f"/{escape_slash(rewritten)}/" if in_json else f"/{escape_slash(pattern)}/{flags}"


def escape_slash(pattern: str) -> str:
    """Return a pattern for use between slashes."""
    return pattern.replace("/", "\\/")
