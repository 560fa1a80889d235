"""Removes the parts of a schema that no finite value fits, so that no output begins a part that it can't finish.

A least fixed point, as for a grammar's productive symbols (Hopcroft, Motwani, Ullman, Introduction to Automata Theory,
section 7.1.1). At first no definition has a finite value. A definition has one as soon as its own parts do.
"""

from __future__ import annotations

from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.keywords import TYPES, Node

IN_PLACE = ("allOf", "anyOf", "oneOf")


def prune_schema(body: Node | bool, definitions: dict[str, Node | bool]) -> Node:
    """Return the whole schema with its definitions, without the parts that no finite value fits.

    Raises:
        UnsupportedError: nothing is left; or a reference leads back to itself at the same place of a value, which has
            no meaning.
    """
    check_loops(definitions)
    ended: set[str] = set()
    while fresh := {
        name for name, one in reversed(definitions.items()) if name not in ended and has_finite_value(one, ended)
    }:
        ended |= fresh
    if not has_finite_value(body, ended):
        raise UnsupportedError("no finite value fits this schema")
    left = {name: prune_node(one, ended) for name, one in definitions.items() if name in ended}
    whole = prune_node(body, ended)
    return ({} if isinstance(whole, bool) else whole) | ({"$defs": left} if left else {})


def check_loops(definitions: dict[str, Node | bool]) -> None:
    done: set[str] = set()
    for start in definitions:
        stack: list[tuple[str, list[str]]] = [(start, list_references(definitions[start]))] if start not in done else []
        along = {start}
        while stack:
            name, rest = stack[-1]
            if not rest:
                stack.pop()
                along.discard(name)
                done.add(name)
            elif (following := rest.pop()) in along:
                raise UnsupportedError("a $ref that leads back to itself at the same place of the value")
            elif following not in done:
                along.add(following)
                stack.append((following, list_references(definitions[following])))


def list_references(node: Node | bool) -> list[str]:
    """Return the definitions that apply to the same value as this schema does."""
    if isinstance(node, bool):
        return []
    found = [node["$ref"].removeprefix("#/$defs/")] if "$ref" in node else []
    return found + [name for key in IN_PLACE for one in node.get(key, ()) for name in list_references(one)]


def has_finite_value(node: Node | bool, ended: set[str]) -> bool:
    """Return True if some finite value fits, judged by each keyword alone."""
    if isinstance(node, bool):
        return node
    if "$ref" in node and node["$ref"].removeprefix("#/$defs/") not in ended:
        return False
    if not all(has_finite_value(one, ended) for one in node.get("allOf", ())):
        return False
    if not all(any(has_finite_value(one, ended) for one in node[key]) for key in ("anyOf", "oneOf") if key in node):
        return False
    return "const" in node or "enum" in node or bool(list_finite_types(node, ended))


def list_finite_types(node: Node, ended: set[str]) -> list[str]:
    """Return the types that have a fitting finite value."""
    parts = {"array": array_ends, "object": object_ends}
    return [name for name in node.get("type", list(TYPES)) if name not in parts or parts[name](node, ended)]


def array_ends(node: Node, ended: set[str]) -> bool:
    least, prefix = node.get("minItems", 0), node.get("prefixItems", [])
    return all(has_finite_value(one, ended) for one in prefix[:least]) and (
        least <= len(prefix) or has_finite_value(node.get("items", True), ended)
    )


def object_ends(node: Node, ended: set[str]) -> bool:
    named, patterns = node.get("properties", {}), node.get("patternProperties")
    others = True if patterns else node.get("additionalProperties", True)
    return all(has_finite_value(named.get(name, others), ended) for name in node.get("required", ()))


def prune_node(node: Node | bool, ended: set[str]) -> Node | bool:
    """Return the schema with `false` for each part that no finite value fits."""
    if isinstance(node, bool) or not has_finite_value(node, ended):
        return node is True
    out: Node = dict(node)
    if "const" not in node and "enum" not in node:
        kept = list_finite_types(node, ended)
        if "type" in node or len(kept) < len(TYPES):
            out["type"] = [name for name in kept if name != "integer" or "number" not in kept]
    for key in ("items", "additionalProperties"):
        if key in node:
            out[key] = prune_node(node[key], ended)
    for key in ("prefixItems", *IN_PLACE):
        if key in node:
            out[key] = [prune_node(one, ended) for one in node[key]]
    for key in ("properties", "patternProperties"):
        if key in node:
            out[key] = {name: prune_node(one, ended) for name, one in node[key].items()}
    return out
