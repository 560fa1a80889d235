"""Translates GBNF to Lark's syntax, for llguidance.

llguidance's own translation turns rules without references into terminals, which its lexer matches greedily: `x "c"`
with x ::= [a-z]+ would then match nothing. Here every rule stays a rule and each character class is a symbol, which is
slower but keeps the language. Rules without a finite text are removed, so that no output begins with one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tailrace.base.extras import require_extra
from tailrace.errors import format_json
from tailrace.grammar.check import UnsupportedError

with require_extra("grammar"):
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
    """Return the grammar in Lark's syntax. Raises UnsupportedError: the parser's message, a missing rule, or a grammar
    without a finite text."""
    try:
        rules = GrammarParser().parse(CONTINUED.sub(" ", ESCAPE.sub(replace_escape, source)))
    except (GbnfToLarkError, IndexError) as error:
        raise UnsupportedError(str(error)) from error
    if "root" not in rules:
        raise UnsupportedError("there is no rule root")
    for rule in rules.values():
        for node in walk_nodes(rule.alternatives):
            if isinstance(node, RuleRefNode) and node.name not in rules:
                raise UnsupportedError(f"rule {format_json(node.name)} is not defined")
    names = {"root": "start"} | {name: f"r{i}" for i, name in enumerate(find_finite_rules(rules)) if name != "root"}
    lines = (f"{name}: {write_lark(rules[rule].alternatives, names)}" for rule, name in names.items())
    return "%llguidance {}\n" + "\n".join(lines) + "\n"


def find_finite_rules(rules: dict[str, RuleNode]) -> list[str]:
    """Return the rules that have a finite text (Hopcroft, Motwani, Ullman, Introduction to Automata Theory, section
    7.1.1).

    Raises:
        UnsupportedError: the rule root has no finite text.
    """
    found: dict[str, None] = {}
    rest = list(reversed(rules))  # most rules come before the rules that they use
    while fresh := [name for name in rest if has_finite_text(rules[name].alternatives, found)]:
        found |= dict.fromkeys(fresh)
        rest = [name for name in rest if name not in found]
    if "root" not in found:
        raise UnsupportedError("no text of the grammar ends: the rule root always needs itself again")
    return list(found)


def has_finite_text(node: ASTNode, found: dict[str, None] | dict[str, str]) -> bool:
    """Return True if the node has a finite text, given the rules that have one."""
    match node:
        case RuleRefNode():
            return node.name in found
        case RepetitionNode():
            return node.min_times == 0 or has_finite_text(node.node, found)
        case SequenceNode():
            return all(has_finite_text(one, found) for one in node.nodes)
        case AlternativeNode():
            return any(has_finite_text(one, found) for one in node.alternatives)
    return True


def write_lark(node: ASTNode, names: dict[str, str]) -> str:
    """Return the node in Lark's syntax, without the parts that have no finite text."""
    match node:
        case RuleRefNode():
            return names[node.name]
        case RepetitionNode():
            if not has_finite_text(node.node, names):
                return '""'
            most = "" if node.max_times is None else node.max_times
            return f"({write_lark(node.node, names)}){{{node.min_times},{most}}}"
        case SequenceNode():
            return " ".join(write_lark(one, names) for one in node.nodes) or '""'
        case AlternativeNode():
            kept = " | ".join(write_lark(one, names) for one in node.alternatives if has_finite_text(one, names))
            return f"({kept})"
    return str(node)


def walk_nodes(node: ASTNode) -> Iterator[ASTNode]:
    """Yield every node of a rule. A loop, since recursion of generators is slow."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += one.children()


def replace_escape(found: re.Match[str]) -> str:
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
