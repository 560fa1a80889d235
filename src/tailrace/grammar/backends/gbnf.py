"""GBNF in Lark's syntax, for llguidance.

llguidance's own translation makes rules without references terminals, which its lexer matches greedily: `x "c"` with x ::= [a-z]+ would
then match nothing. Here every rule stays a rule and each character class is a symbol: slower, but the same language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llguidance.gbnf_to_lark import AlternativeNode, ASTNode, GbnfToLarkError, GrammarParser, RuleRefNode

from tailrace.grammar.check import UnsupportedError

ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
CONTINUED = re.compile(
    r"(?:#[^\n]*)?\n\s*(?=\|)"
)  # an alternative on a line of its own, which that parser does not know


def as_lark(source: str) -> str:
    """Raises UnsupportedError: the parser's complaint, or a rule that is missing."""
    try:
        rules = GrammarParser().parse(CONTINUED.sub(" ", ESCAPE.sub(plain, source)))
    except (GbnfToLarkError, IndexError) as error:
        raise UnsupportedError(str(error)) from error
    if "root" not in rules:
        raise UnsupportedError("there is no rule root")
    for i, rule in enumerate(rules.values()):
        rule.comment = ""
        for node in below(rule.alternatives):
            if isinstance(node, RuleRefNode):
                if node.name not in rules:
                    raise UnsupportedError(f"rule {node.name!r} is not defined")
                node.target = rules[node.name]
        rule.alternatives = rule.alternatives.simplify()
        rule.order = i
    for rule in rules.values():
        rule.name = "start" if rule.name == "root" else f"r{rule.order}"
    return "%llguidance {}\n" + "\n".join(line(rule.name, rule.alternatives) for rule in rules.values()) + "\n"


def line(name: str, body: ASTNode) -> str:
    alternatives = body.alternatives if isinstance(body, AlternativeNode) else [body]
    return f"{name}: " + " | ".join(str(alternative) or '""' for alternative in alternatives)


def below(node: ASTNode) -> Iterator[ASTNode]:
    yield node
    for child in node.children():
        yield from below(child)


def plain(found: re.Match[str]) -> str:
    """A numeric escape as its character, where that can't be taken for syntax; other escapes as they are."""
    digits = found[1] or found[2] or found[3]
    if digits is None:
        return found[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise UnsupportedError(f"{found[0]} is no character")
    character = chr(code)
    if character.isalnum() or code > 0xA0:
        return character
    return f"\\x{code:02x}" if code < 0x100 else character
