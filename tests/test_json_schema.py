"""Where subschemas stand: nothing that a $ref can lead to is missed, and what names count."""

from __future__ import annotations

import pytest

from tailrace.base.json_schema import free_counts, iter_subschemas, resolve_pointer

FREE = {"type": "object", "minProperties": 3}


@pytest.mark.parametrize(
    "schema",
    [
        FREE,
        {"properties": {"a": {"items": FREE}}},
        {"anyOf": [{}, {"contentSchema": FREE}]},
        {"$ref": "#/x/0", "x": [FREE]},
        {"$ref": "#/x%20y", "x y": FREE},
        {"$ref": "#/a~1b/m~0n", "a/b": {"m~n": FREE}},
        {"$ref": "http://a.b/c#/zz", "$id": "http://a.b/c", "zz": FREE},
        {"$ref": "c#/zz", "$id": "http://a.b/c", "zz": [[FREE]]},
        {"$ref": "#here", "zz": {"$anchor": "here", **FREE}},
        {"items": {"$ref": "#"}, **FREE},
        {"required": ["a", "a", "a"], **FREE},
        {"required": True, **FREE},
        {"additionalProperties": False, "patternProperties": {"^a": {}}, **FREE},
    ],
)
def test_free_names_are_found_wherever_they_stand(schema):
    assert [least for _, least in free_counts(schema)] == [3]


@pytest.mark.parametrize(
    "schema",
    [
        {"required": ["a", "b", "c"], **FREE},
        {"additionalProperties": False, "properties": {"a": {}, "b": {}, "c": {}}, **FREE},
        {"type": "object", "minProperties": 1},
        {"properties": {"minProperties": {"type": "integer"}}},
        {"enum": [FREE]},
        {"unused": FREE},
        {"$ref": "#/x/1", "x": [FREE]},
        {"$ref": "#/x/y", "x": [FREE]},
        {"minProperties": True},
    ],
)
def test_where_names_are_known_or_nothing_binds_none_is_found(schema):
    assert not list(free_counts(schema))


def test_circles_end():
    schema = {"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"items": {"$ref": "#/a"}, "not": {"$ref": "elsewhere"}}}
    assert {"#", "#/a", "#/b"} <= {place for place, _ in iter_subschemas(schema)}
    assert resolve_pointer(schema, "#/b/items/$ref/0") is None
