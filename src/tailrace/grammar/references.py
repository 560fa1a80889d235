"""Resolves $ref: JSON Schema's identifiers (core, sections 8.2 and 9.2), for schemas that contain all that they refer
to."""

from __future__ import annotations

from typing import Any
from urllib.parse import urldefrag, urljoin

from tailrace.base.json_schema import iter_children, resolve_pointer
from tailrace.errors import format_json
from tailrace.grammar.check import UnsupportedError

MAX_SUBSCHEMAS = 10_000  # the library has room for some 20,000, and takes half a minute to notice that there are more
BASE = "file:///"  # the base address of a schema without one; any that can be joined


class References:
    """The subschemas of one schema by address and by anchor, and the base address of each.

    Args:
        root: the whole schema.
        identifier: "$id", or "id" in draft 4.
        bare: keywords next to a $ref are ignored, as up to draft 7; so an identifier is ignored as well.

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
            base = self._register_subschema(node, base, {} if bare and "$ref" in node else node, identifier)
            self._bases[id(node)] = base
            if len(self._bases) > MAX_SUBSCHEMAS:
                raise UnsupportedError(f"a schema of more than {MAX_SUBSCHEMAS} subschemas")
            waiting += [(child, base) for _, child in iter_children(node)]

    def _register_subschema(self, node: dict[str, Any], base: str, named: dict[str, Any], identifier: str) -> str:
        """Register a subschema; return its base address."""
        name, anchor = named.get(identifier), named.get("$anchor")
        if isinstance(name, str):
            try:
                address, fragment = join_reference(base, name)
            except ValueError as error:
                raise UnsupportedError(f"{identifier} {format_json(name)}: {error}") from error
            if fragment:
                anchor = fragment
            if not name.startswith("#") and address != base:
                if self._resources.setdefault(address, node) is not node:
                    raise UnsupportedError(f"{identifier} {format_json(name)}: two schemas have it")
                base = address
        if isinstance(anchor, str) and self._anchors.setdefault((base, anchor), node) is not node:
            raise UnsupportedError(f"anchor {format_json(anchor)}: two schemas have it")
        return base

    def target(self, node: dict[str, Any], place: str) -> tuple[Any, str]:
        """Return the schema that a $ref refers to, and its place for messages.

        Raises:
            UnsupportedError: there is no such schema here.
        """
        ref = node["$ref"]
        try:
            address, fragment = join_reference(self._bases.get(id(node), BASE), ref)
        except ValueError as error:
            raise UnsupportedError(f"$ref {format_json(ref)} at {place}: {error}") from error
        found: Any = self._resources.get(address)
        if found is not None and fragment.startswith("/"):
            found = self._resolve_pointer(found, fragment)
        elif found is not None and fragment:
            found = self._anchors.get((address, fragment))
        if not isinstance(found, dict | bool):
            raise UnsupportedError(f"$ref {format_json(ref)} at {place}: there is no such schema here")
        return found, ref

    def _resolve_pointer(self, resource: dict[str, Any], pointer: str) -> Any:
        found = resolve_pointer(resource, "#" + pointer)
        if isinstance(found, dict) and id(found) not in self._bases:  # a place where the standard has no subschema
            waiting = [found]
            while waiting:
                one = waiting.pop()
                if id(one) not in self._bases:
                    self._bases[id(one)] = self._bases[id(resource)]
                    waiting += [child for _, child in iter_children(one) if isinstance(child, dict)]
        return found


def join_reference(base: str, reference: str) -> tuple[str, str]:
    """Return the address and its fragment. Raises ValueError."""
    if reference.startswith("#"):  # Python can't join to an address whose scheme it does not know, such as urn:
        return base, urldefrag(reference).fragment
    address, fragment = urldefrag(urljoin(base, reference))
    return address, fragment
