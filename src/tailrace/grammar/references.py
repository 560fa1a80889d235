"""Resolves $ref: JSON Schema's identifiers (core, sections 8.2 and 9.2), for schemas that contain all that they refer
to."""

from __future__ import annotations

from typing import Any
from urllib.parse import urldefrag, urljoin

from tailrace.grammar.check import UnsupportedError
from tailrace.json_schema import children, pointed

MAX_SUBSCHEMAS = 10_000  # the library has room for some 20,000, and takes half a minute to find that out
BASE = "file:///"  # the base address of a schema without one; any that can be joined


class References:
    """The subschemas of one schema by address and by anchor, and the base address of each.

    Args:
        root: the whole schema.
        identifier: "$id", or "id" in draft 4.
        bare: nothing beside a $ref counts, as up to draft 7; so no identifier does either.

    Raises:
        UnsupportedError: an invalid address, or one that two schemas have.
    """

    def __init__(self, root: dict[str, Any], identifier: str, bare: bool) -> None:
        self._resources: dict[str, dict[str, Any]] = {BASE: root}
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        self._bases: dict[int, str] = {}
        waiting: list[tuple[Any, str]] = [(root, BASE)]
        while waiting:
            node, base = waiting.pop()
            if not isinstance(node, dict) or id(node) in self._bases:
                continue
            base = self._note(node, base, {} if bare and "$ref" in node else node, identifier)
            self._bases[id(node)] = base
            if len(self._bases) > MAX_SUBSCHEMAS:
                raise UnsupportedError(f"a schema of more than {MAX_SUBSCHEMAS} subschemas")
            waiting += [(child, base) for _, child in children(node)]

    def _note(self, node: dict[str, Any], base: str, named: dict[str, Any], identifier: str) -> str:
        """Register a subschema; return its base address."""
        name, anchor = named.get(identifier), named.get("$anchor")
        if isinstance(name, str):
            try:
                address, fragment = joined(base, name)
            except ValueError as error:
                raise UnsupportedError(f"{identifier} {name!r:.100}: {error}") from error
            if fragment:
                anchor = fragment
            if not name.startswith("#") and address != base:
                if self._resources.setdefault(address, node) is not node:
                    raise UnsupportedError(f"{identifier} {name!r:.100}: two schemas have it")
                base = address
        if isinstance(anchor, str) and self._anchors.setdefault((base, anchor), node) is not node:
            raise UnsupportedError(f"anchor {anchor!r:.100}: two schemas have it")
        return base

    def target(self, node: dict[str, Any], place: str) -> tuple[Any, str]:
        """The schema that a $ref refers to, and its place for messages.

        Raises:
            UnsupportedError: there is no such schema here.
        """
        ref = node["$ref"]
        try:
            address, fragment = joined(self._bases.get(id(node), BASE), ref)
        except ValueError as error:
            raise UnsupportedError(f"$ref {ref!r:.100} at {place}: {error}") from error
        found: Any = self._resources.get(address)
        if found is not None and fragment.startswith("/"):
            found = self._inside(found, fragment)
        elif found is not None and fragment:
            found = self._anchors.get((address, fragment))
        if not isinstance(found, dict | bool):
            raise UnsupportedError(f"$ref {ref!r:.100} at {place}: there is no such schema here")
        return found, ref

    def _inside(self, resource: dict[str, Any], pointer: str) -> Any:
        found = pointed(resource, "#" + pointer)
        if isinstance(found, dict) and id(found) not in self._bases:  # a place where the standard has no subschema
            waiting = [found]
            while waiting:
                one = waiting.pop()
                if id(one) not in self._bases:
                    self._bases[id(one)] = self._bases[id(resource)]
                    waiting += [child for _, child in children(one) if isinstance(child, dict)]
        return found


def joined(base: str, reference: str) -> tuple[str, str]:
    """The address and its fragment. Raises ValueError."""
    if reference.startswith("#"):  # Python can't join to an address whose scheme it does not know, such as urn:
        return base, urldefrag(reference).fragment
    address, fragment = urldefrag(urljoin(base, reference))
    return address, fragment
