"""Rewrites oneOf as anyOf if no value fits two of its branches. No grammar can exclude values that fit two.

References are followed before branches are compared. If two branches overlap, the overlap is removed if that is simple:
an optional tag becomes required, or a branch refuses a name that the other one requires. So each value of the result
validates, and some valid values are left out.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import count
from typing import Any

from tailrace.base.json_schema import KEYWORDS, NOTES, SHARED, as_list, iter_subschemas, resolve_pointer
from tailrace.base.schema_conflicts import APPLIED, Conflicts, Scalar, property_of

BESIDE = NOTES | {"discriminator", *SHARED}  # a reference or a union: they don't change what fits
NAMED = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
BARE = ("draft-04", "draft-05", "draft-06", "draft-07")  # in these drafts nothing beside a $ref counts
TYPES = tuple(name for name in KEYWORDS if name != "integer")
MAX_DEPTH = 64  # references in a row

Node = dict[str, Any]


def join_branches(schema: Node) -> Node:
    """Return the schema with an anyOf for each oneOf whose branches can be told apart. Any other oneOf remains.

    Only references within the schema are followed. A schema whose parts have identifiers of their own stays as it is.
    """
    nodes = [node for _, node in iter_subschemas(schema)]
    if not any(as_list(node.get("oneOf")) for node in nodes):
        return schema
    if any(isinstance(node.get(key), str) for node in nodes[1:] for key in NAMED):
        return schema
    whole = deepcopy(schema)
    joining = Joining(whole)
    for _, node in list(iter_subschemas(whole)):
        joining.rewrite_one_of(node)
    return whole


class Joining:
    """The rewriting of one schema, in place.

    Args:
        root: the whole schema.
    """

    def __init__(self, root: Node) -> None:
        self.root = root
        self.bare = any(draft in str(root.get("$schema", "")) for draft in BARE)
        self.conflicts = Conflicts(self.split_reference)
        self._done: set[int] = set()

    def split_reference(self, node: Mapping[str, Any]) -> list[Any]:
        """Return the schemas that must all fit instead of one with a reference."""
        rest = {} if self.bare else {key: value for key, value in node.items() if key != "$ref"}
        target = self.target(node)
        return [rest] if target is None else [rest, target]

    def target(self, node: Mapping[str, Any]) -> Any:
        """Return the target of a schema's reference; None if it is unknown."""
        ref = node["$ref"]
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            return None
        found = self.root if ref == "#" else resolve_pointer(self.root, ref)
        return found if isinstance(found, dict | bool) else None

    def rewrite_one_of(self, node: Node) -> None:
        """Rewrite the oneOf of a schema."""
        if id(node) in self._done:
            return
        self._done.add(id(node))
        if not (branches := as_list(node.get("oneOf"))) or (self.bare and "$ref" in node):
            return
        groups = [self.list_leaves(branch) for branch in branches]
        places = [place for place, group in enumerate(groups) for _ in group]
        sources, plain = zip(*(pair for group in groups for pair in group), strict=True)
        outer = {key: value for key, value in node.items() if key != "oneOf"}
        leaves = self.require_tag(with_own_types(list(plain)), node.pop("discriminator", None))
        apart = self.separate_leaves(leaves, places, outer)
        if apart is None:
            return
        del node["oneOf"]
        joined = branches
        if not all(map(operator.is_, apart, plain)):
            joined = [
                source if one is leaf and isinstance(source, dict) and "$ref" in source else self.shared(one)
                for source, leaf, one in zip(sources, plain, apart, strict=True)
                if one is not False
            ] or [False]
        if "anyOf" in node:
            node["allOf"] = [*as_list(node.get("allOf")), {"anyOf": joined}]
        else:
            node["anyOf"] = joined

    def shared(self, leaf: Any) -> Any:
        """Return a reference to the leaf as a new definition: a schema that refers to itself must not contain
        itself."""
        definitions = self.root.setdefault("$defs", {})
        name = next(name for i in count(len(definitions)) if (name := f"branch{i}") not in definitions)
        definitions[name] = leaf
        return {"$ref": f"#/$defs/{name}"}

    def list_leaves(self, branch: Any, depth: int = 0) -> list[tuple[Any, Any]]:
        """Return the alternatives of a branch, behind references and nested unions.

        Each is a pair: the schema as it is written, and the same schema without a reference.
        """
        if not isinstance(branch, dict) or depth > MAX_DEPTH:
            return [(branch, branch)]
        self.rewrite_one_of(branch)
        keys = branch.keys() - BESIDE
        if "$ref" in keys and (self.bare or len(keys) == 1):
            target = self.target(branch)
            found = [] if target is None else self.list_leaves(target, depth + 1)
            return [(branch, found[0][1])] if len(found) == 1 else found or [(branch, branch)]
        for key in ("anyOf", "allOf"):
            parts = as_list(branch.get(key))
            if keys == {key} and (len(parts) == 1 or (key == "anyOf" and parts)):
                return [leaf for one in parts for leaf in self.list_leaves(one, depth + 1)]
        return [(branch, branch)]

    def require_tag(self, leaves: list[Any], discriminator: Any) -> list[Any]:
        """Return the leaves with a property required that OpenAPI's `discriminator` names, if all leaves declare it.
        Readers (Pydantic) choose the branch by it, even if the schema makes it optional."""
        tag = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
        each_declared = [self.declared(leaf) for leaf in leaves]
        if isinstance(tag, str) and all(declared is not None and tag in declared[0] for declared in each_declared):
            return [narrow_leaf(leaf, [tag], []) for leaf in leaves]
        return leaves

    def separate_leaves(self, leaves: list[Any], places: list[int], outer: Node) -> list[Any] | None:
        """Return the leaves with what keeps them apart; None if two can't be told apart. places: the branch of each."""
        found = list(leaves)
        for i, j in pairs_without_tag([self.conflicts.tags([outer, leaf]) for leaf in leaves]):
            if places[i] == places[j] or self.conflicts.exclude([outer, leaves[i], leaves[j]]):
                continue
            added = self.find_separation(leaves[i], leaves[j], outer)
            if added is None:
                return None
            found[i], found[j] = narrow_leaf(found[i], *added[0]), narrow_leaf(found[j], *added[1])
        return found

    def find_separation(
        self, one: Any, other: Any, outer: Node
    ) -> tuple[tuple[list[str], list[str]], tuple[list[str], list[str]]] | None:
        """Return the names that each of two overlapping branches must have, and those that it can't have; None if no
        names keep the two apart."""
        others = [name for name in TYPES if name != "object"]
        if not self.conflicts.exclude([outer, one, other, {"type": others}]):
            return None
        first, second = self.declared(one), self.declared(other)
        if first is None or second is None:
            return None
        (declared, required), (other_declared, other_required) = first, second
        for name in declared:
            if name in other_declared and self.conflicts.exclude([*declared[name], *other_declared[name]]):
                return ([name], []), ([name], [])
        ours = [name for name in other_required if name not in declared and name not in required]
        theirs = [name for name in required if name not in other_declared and name not in other_required]
        return (([], ours[:1]), ([], theirs[:1])) if ours and theirs else None

    def declared(self, leaf: Any) -> tuple[dict[str, list[Any]], list[str]] | None:
        """Return the schemas of an object's properties, and the names that it requires; None if it has alternatives."""
        found = self.conflicts.alternatives([leaf])
        if found is None or len(found) != 1:
            return None
        names = {name: None for part in found[0] for name in part.get("properties") or ()}
        required = [name for part in found[0] for name in as_list(part.get("required"))]
        return {name: [property_of(part, name) for part in found[0]] for name in names}, required


def pairs_without_tag(tags: list[dict[str, set[Scalar]]]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of leaves that no tag tells apart, for the tag that leaves the fewest. tags: see
    Conflicts.tags."""
    owners: dict[str, dict[Scalar, list[int]]] = {}
    for place, named in enumerate(tags):
        for name, values in named.items():
            by_value = owners.setdefault(name, {})
            for value in values:
                by_value.setdefault(value, []).append(place)
    having = Counter(name for named in tags for name in named)

    def estimate_cost(name: str) -> int:
        return (len(tags) - having[name]) * len(tags) + sum(len(same) ** 2 for same in owners[name].values())

    tag = min(owners, key=estimate_cost, default="")
    without = [place for place, named in enumerate(tags) if tag not in named]
    for place, named in enumerate(tags):
        if tag in named:
            others = {*without, *(other for value in named[tag] for other in owners[tag][value])}
            yield from ((place, other) for other in sorted(others) if other > place)
        else:
            yield from ((place, other) for other in range(place + 1, len(tags)))


def with_own_types(leaves: list[Any]) -> list[Any]:
    """Return the leaves without types that several of them accept completely, because their keywords are about other
    types.

    For example, a branch of `properties` accepts every number, and so does the next branch.
    """
    silent = [
        leaf for leaf in leaves if isinstance(leaf, dict) and not leaf.keys() & {"type", "const", "enum", *APPLIED}
    ]
    if len(silent) < 2:
        return leaves
    free = [{name for name in TYPES if not leaf.keys() & KEYWORDS[name]} for leaf in silent]
    shared = {name for name in TYPES if sum(name in names for names in free) > 1}
    left = [name for name in TYPES if name not in shared]
    return [leaf if leaf is False else restrict_types(leaf, left) for leaf in leaves]


def restrict_types(leaf: Any, left: list[str]) -> Any:
    """Return the leaf for values of these types only; False if no type is left."""
    node = dict(leaf) if isinstance(leaf, dict) else {}
    given = node.get("type", list(TYPES))
    names = given if isinstance(given, list) else [given]
    kept = [name for name in names if name in left or (name == "integer" and "number" in left)]
    if kept == names and "type" in node:
        return leaf
    return node | {"type": kept} if kept else False


def narrow_leaf(leaf: Any, needed: list[str], refused: list[str]) -> Any:
    """Return the leaf with further required names, and without other names. The leaf itself if nothing changes."""
    if not refused and set(needed) <= set(as_list(leaf.get("required"))):
        return leaf
    node = dict(leaf)
    if needed:
        node["required"] = list(dict.fromkeys([*as_list(node.get("required")), *needed]))
    if refused:
        node["properties"] = {**(node.get("properties") or {}), **dict.fromkeys(refused, False)}
    return node
