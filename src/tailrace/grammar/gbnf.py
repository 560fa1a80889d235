"""Translates GBNF to Lark's syntax, for llguidance.

llguidance's own translation turns rules without references into terminals, which its lexer matches greedily: `x "c"`
with x ::= [a-z]+ would then match nothing. Here every rule stays a rule and each character class is a symbol, which is
slower but keeps the language. Rules without a finite text are removed, so that no output begins with one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tailrace.extras import needs
from tailrace.grammar.check import UnsupportedError

with needs("grammar"):
    from llguidance.gbnf_to_lark import (
        AlternativeNode,
        ASTNode,
        GbnfToLarkError,
        GrammarParser,
        RepetitionNode,
        RuleNode,
        RuleRefNode,
        SequenceNode,
    )

ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
# an alternative on a line of its own, which that parser does not read
CONTINUED = re.compile(r"(?:#[^\n]*)?\n\s*(?=\|)")


def as_lark(source: str) -> str:
    """The grammar in Lark's syntax. Raises UnsupportedError: the parser's message, a missing rule, or a grammar without
    a finite text."""
    try:
        rules = GrammarParser().parse(CONTINUED.sub(" ", ESCAPE.sub(plain, source)))
    except (GbnfToLarkError, IndexError) as error:
        raise UnsupportedError(str(error)) from error
    if "root" not in rules:
        raise UnsupportedError("there is no rule root")
    for rule in rules.values():
        for node in below(rule.alternatives):
            if isinstance(node, RuleRefNode) and node.name not in rules:
                raise UnsupportedError(f"rule {node.name!r} is not defined")
    names = {"root": "start"} | {name: f"r{i}" for i, name in enumerate(ended(rules)) if name != "root"}
    lines = (f"{name}: {written(rules[rule].alternatives, names)}" for rule, name in names.items())
    return "%llguidance {}\n" + "\n".join(lines) + "\n"


def ended(rules: dict[str, RuleNode]) -> list[str]:
    """The rules that have a finite text (Hopcroft, Motwani, Ullman, Introduction to Automata Theory, section 7.1.1).

    Raises:
        UnsupportedError: root has none.
    """
    found: dict[str, None] = {}
    rest = list(reversed(rules))  # most rules come before the rules that they use
    while fresh := [name for name in rest if ends(rules[name].alternatives, found)]:
        found |= dict.fromkeys(fresh)
        rest = [name for name in rest if name not in found]
    if "root" not in found:
        raise UnsupportedError("no text of the grammar ends: the rule root always needs itself again")
    return list(found)


def ends(node: ASTNode, found: dict[str, None] | dict[str, str]) -> bool:
    """True if it has a finite text, given that these rules have one."""
    match node:
        case RuleRefNode():
            return node.name in found
        case RepetitionNode():
            return node.min_times == 0 or ends(node.node, found)
        case SequenceNode():
            return all(ends(one, found) for one in node.nodes)
        case AlternativeNode():
            return any(ends(one, found) for one in node.alternatives)
    return True


def written(node: ASTNode, names: dict[str, str]) -> str:
    """The node in Lark's syntax, without the parts that have no finite text."""
    match node:
        case RuleRefNode():
            return names[node.name]
        case RepetitionNode():
            if not ends(node.node, names):
                return '""'
            most = "" if node.max_times is None else node.max_times
            return f"({written(node.node, names)}){{{node.min_times},{most}}}"
        case SequenceNode():
            return " ".join(written(one, names) for one in node.nodes) or '""'
        case AlternativeNode():
            kept = " | ".join(written(one, names) for one in node.alternatives if ends(one, names))
            return f"({kept})"
    return str(node)


def below(node: ASTNode) -> Iterator[ASTNode]:
    """Every node of a rule. A loop, since recursion of generators is slow."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += one.children()


def plain(found: re.Match[str]) -> str:
    """Replace a numeric escape by its character if that can't be taken for syntax. Other escapes stay."""
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
