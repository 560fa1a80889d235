"""Structural tags: free text in which tagged spans must fit a schema. Reads both of xgrammar's JSON forms, and supports
what llguidance can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailrace.base.extras import require_extra
from tailrace.errors import format_json
from tailrace.grammar.check import UnsupportedError, raise_grammar_error


def normalize_tag(tag: dict[str, Any], whitespace: int) -> dict[str, Any]:
    """Return the tag in the newer form, with bounded white space in its JSON. Raises ParameterError if the older form
    is incomplete."""
    if "format" not in tag:
        tag = {"type": "structural_tag", "format": convert_older_tag(tag)}
    for content in walk_formats(tag["format"]):
        if content.get("type") == "json_schema":
            content.setdefault("max_whitespace_cnt", max(1, whitespace))
    return tag


def convert_older_tag(tag: dict[str, Any]) -> dict[str, Any]:
    """Return the older form, {"structures": [{"begin", "schema", "end"}], "triggers": [...]}, as triggered tags."""
    tags = []
    for structure in tag["structures"]:
        if not isinstance(structure, dict) or not isinstance(structure.get("begin"), str):
            raise_grammar_error('each of a structural tag\'s structures needs "begin", "schema" and "end"')
        schema = structure.get("schema", structure.get("json_schema", {}))
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"type": "tag", "begin": structure["begin"], "content": content, "end": structure.get("end", "")})
    if not isinstance(triggers := tag.get("triggers"), list) or not triggers:
        raise_grammar_error("a structural tag needs one or more triggers")
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def walk_formats(node: Any) -> Iterator[dict[str, Any]]:
    """Yield all formats within a format, itself included. Schemas contain none."""
    if isinstance(node, list):
        for inner in node:
            yield from walk_formats(inner)
    elif isinstance(node, dict):
        if "type" in node:
            yield node
        for key, inner in node.items():
            if key != "json_schema":
                yield from walk_formats(inner)


def as_lark(tag: dict[str, Any], options: dict[str, Any]) -> str:
    """Triggered tags around JSON as a grammar of llguidance. options: for each schema. Raises UnsupportedError for any
    other format."""
    with require_extra("grammar"):
        from llguidance import StructTag

    form = tag["format"]
    if form.get("type") != "triggered_tags" or any(
        form.get(k) for k in ("at_least_one", "stop_after_first", "excludes")
    ):
        raise UnsupportedError(
            f"the structural tag format {format_json(form.get('type'))}: only plain triggered_tags are supported"
        )
    parts = []
    for item in form.get("tags", ()):
        content, begin, end = item.get("content", {}), item.get("begin"), item.get("end")
        schema = content.get("json_schema")
        plain = content.get("type") == "json_schema" and content.get("style", "json") == "json"
        if not plain or not isinstance(schema, dict) or content.get("any_order") or content.get("excludes"):
            raise UnsupportedError("a tag's content that is not plain JSON of a schema")
        trigger = next((t for t in form["triggers"] if isinstance(begin, str) and t and begin.startswith(t)), None)
        if trigger is None or not isinstance(end, str):
            raise UnsupportedError("a tag that begins with none of the triggers, or has several ends")
        bounded = {**schema, "x-guidance": options}
        parts.append(StructTag(trigger=trigger, begin=begin, grammar=bounded, end=end))
    if {part.trigger for part in parts} != set(form["triggers"]):
        raise UnsupportedError("a trigger that no tag begins with")
    return StructTag.to_grammar(parts, assume_special=False)


def list_schema_contents(tag: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the contents that have a schema; not copies."""
    return [content for content in walk_formats(tag["format"]) if isinstance(content.get("json_schema"), dict)]
