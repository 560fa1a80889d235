"""oneOf becomes anyOf only where no value fits two branches, and whatever fits the new schema fits the given one."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.base import schema_branches
from tailrace.base.schema_branches import join_branches
from tailrace.base.schema_conflicts import Conflicts

VALUES: list[Any] = [None, True, False, 0, 1, 1.0, 1.5, 7, "", "a", "b", "abc", [], [1], ["a", 1], {}]
VALUES += [{"k": "a"}, {"k": "b", "x": 1}, {"x": 1}, {"y": 1}, {"x": 1, "y": 1}, {"k": 1, "y": "a"}, {"k": None}]
VALUES += [{"k": "a", "k2": {"k": one}} for one in "ab"]


def fits(schema: Any, value: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def unions(schema: Any) -> int:
    return json.dumps(schema).count('"oneOf"')


def tagged(tag: Any, *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": tag, **more}, "required": ["k", *required]}


A, B = tagged({"const": "a"}), tagged({"const": "b"})
DEFS = {"A": A, "B": B, "AB": {"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}}


@pytest.mark.parametrize(
    "branches",
    [
        [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
        [{"$ref": "#/$defs/A", "description": "d"}, {"allOf": [{"$ref": "#/$defs/B"}]}],
        [{"$ref": "#/$defs/AB"}, tagged({"enum": [1, "c"]}), {"type": "null"}],
        [{"anyOf": [A, B]}, tagged({"type": "integer"})],
        [A, {**A, "properties": {"k": {"type": ["null", "boolean"]}}}],
        [tagged({"const": "a"}, "k2", k2=B), tagged({"const": "a"}, "k2", k2=A)],
        [{"properties": {"k": {"const": "a"}}, "required": ["k"]}, {"properties": {"k": {"const": 1}}}],
        [{"type": "integer", "maximum": 0}, {"type": "number", "exclusiveMinimum": 0}],
        [{"type": "string", "maxLength": 1}, {"type": "string", "minLength": 2}, {"type": "array"}],
        [{"type": "array", "maxItems": 0}, {"type": "array", "minItems": 1, "prefixItems": [{"type": "string"}]}],
        [{"type": "object", "required": ["x"]}, {"type": "object", "required": ["y"]}],
        [{"type": "object", "properties": {}, "additionalProperties": False}, {"type": "object", "required": ["x"]}],
        [{"const": 1}, {"enum": [True, "1"]}],
    ],
)
def test_branches_that_can_be_told_apart_are_alternatives(branches: list[Any]):
    schema = {"$defs": DEFS, "oneOf": branches}
    found = join_branches(schema)
    assert (unions(found), unions(schema) > 0) == (0, True)
    for value in VALUES:
        assert not fits(found, value) or fits(schema, value), value
    for branch in branches:  # each branch is still there
        assert any(fits(found, value) for value in VALUES if fits({"$defs": DEFS, **branch}, value)), branch


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "integer"}, {"type": "number"}],
        [A, A],
        [A, {"$ref": "#/$defs/AB"}],
        [{"const": 1}, {"const": 1.0}],
        [{"type": "string", "minLength": 2}, {"type": "string"}],
        [{"type": "object"}, {"type": "object", "required": ["x"]}],
        [{"$ref": "http://example.org/a"}, A],
        [True, A],
    ],
)
def test_branches_that_overlap_stay_exclusive(branches: list[Any]):
    assert unions(join_branches({"oneOf": branches})) == 1


def test_branches_without_parts_are_branches():
    for key in ("anyOf", "allOf"):
        assert join_branches({"oneOf": [{key: []}]}) == {"anyOf": [{key: []}]}


def test_what_a_value_must_not_have_stays_forbidden():
    schema = {"oneOf": [{"type": "object", "required": ["x"]}, {"type": "object", "required": ["y"]}]}
    found = join_branches(schema)
    assert [fits(found, value) for value in ({"x": 1}, {"y": 1}, {"x": 1, "y": 1})] == [True, True, False]


def test_a_discriminator_is_required_where_all_branches_declare_it():
    branches = [{**A, "required": []}, {**B, "properties": {**B["properties"], "y": {}}, "required": ["y"]}]
    found = join_branches({"oneOf": branches, "discriminator": {"propertyName": "k"}})
    assert [fits(found, value) for value in ({"k": "a"}, {"k": "b", "y": 1}, {"y": 1}, {})] == [
        True,
        True,
        False,
        False,
    ]


def test_schemas_that_are_not_understood_stay_as_they_are():
    for schema in (
        {"$defs": {"a": {"$id": "x", **A}}, "oneOf": [{"$ref": "#/$defs/a"}, B]},
        {"oneOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"oneOf": [{"properties": {"a": {"$ref": "#"}}}, {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}]},
        {"oneOf": 5},
        {"oneOf": [True, {"anyOf": []}, {"allOf": []}]},
        {"anyOf": [A, B]},
    ):
        assert join_branches(schema) == schema
    plain = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}}
    beside = {"$ref": "#/definitions/a", **A}  # nothing beside a reference counts in draft 7
    assert unions(join_branches({**plain, "oneOf": [beside, B]})) == 1


SMALL = st.sampled_from(["k", "x", "y"])
LEAF = st.one_of(
    st.sampled_from(["string", "integer", "number", "null", "array", "object"]).map(lambda name: {"type": name}),
    st.sampled_from(["a", "b", 1, True, None]).map(lambda value: {"const": value}),
    st.lists(st.sampled_from(["a", "b", 1, 1.5]), min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.sampled_from([{"minimum": 1}, {"maximum": 1}, {"minLength": 1}, {"maxLength": 0}, {"minItems": 1}, True, {}]),
)


def compose(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("object"),
            "properties": st.dictionaries(SMALL, inner, max_size=2),
            "required": st.lists(SMALL, max_size=2, unique=True),
            "additionalProperties": st.sampled_from([False, {"type": "string"}]),
        },
    )
    lists = st.fixed_dictionaries({"type": st.just("array"), "prefixItems": st.lists(inner, min_size=1, max_size=2)})
    several = st.lists(inner, min_size=1, max_size=3)
    unions = st.sampled_from(["anyOf", "allOf", "oneOf"]).flatmap(lambda key: several.map(lambda given: {key: given}))
    return st.one_of(objects, lists, unions, st.just({"$ref": "#/$defs/d"}))


SCHEMAS = st.recursive(LEAF, compose, max_leaves=6)
OBJECTS = st.dictionaries(SMALL, st.sampled_from(["a", "b", 1, 1.5, None, ["a"], {"k": "a"}]), max_size=3)


def check_kept(branches: list[Any], shared: Any, values: list[Any]) -> None:
    """Whatever fits the new schema fits the given one."""
    schema = {"$defs": {"d": shared}, "type": ["object", "string", "number", "null"], "oneOf": branches}
    found = join_branches(schema)
    for value in [*VALUES, *values]:
        assert not fits(found, value) or fits(schema, value), (found, value)


@settings(max_examples=examples(200), deadline=None)
@given(branches=st.lists(SCHEMAS, min_size=2, max_size=3), shared=LEAF, values=st.lists(OBJECTS, max_size=8))
def test_no_value_is_gained(branches: list[Any], shared: Any, values: list[Any]):
    check_kept(branches, shared, values)


def test_a_proof_that_holds_too_often_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Conflicts, "exclude", lambda *_: True)
    with pytest.raises(AssertionError):
        check_kept([A, A], {}, [])


@pytest.mark.parametrize("size", [200])
def test_large_unions_are_compared_in_bounded_steps(size: int):
    branch = {"anyOf": [{"anyOf": [{"type": "object", "properties": {"a": {"$ref": "#"}}}] * 20}] * 20}
    assert unions(join_branches({"oneOf": [branch] * size})) == 1
    many = [tagged({"const": i}) for i in range(size)]
    assert unions(join_branches({"oneOf": many})) == 0


def test_a_schema_that_refers_to_itself_does_not_contain_itself():
    kids = {"type": "array", "items": {"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}}
    node = {"properties": {"k": {"const": "a"}, "kids": kids}, "required": ["x"], "type": "object"}
    other = {"properties": {"k": {"const": "b"}, "kids": kids}, "required": ["y"], "type": "object"}
    inline = {"oneOf": [{"oneOf": [node, other]}, {"$ref": "#/$defs/C"}]}
    third = {"properties": {"k": {"const": "c"}, "up": inline}, "type": "object"}
    schema = {"$defs": {"A": node, "B": other, "C": third}, "$ref": "#/$defs/C"}
    found = join_branches(schema)
    assert unions(found) == 0  # written as JSON, so it has an end
    for value in (
        {"k": "c", "up": {"k": "a", "x": 1, "kids": [{"k": "b", "y": 1}]}},
        {"k": "c", "up": {"k": "c", "up": {"k": "b", "y": 1}}},
    ):
        assert (fits(found, value), fits(schema, value)) == (True, True)
    assert not fits(found, {"k": "c", "up": {"k": "a", "y": 1}})


TAGS = st.sampled_from(["a", "b", "1", 1, 1.0, 2, True, False, None])
TAG = st.one_of(
    TAGS.map(lambda value: {"const": value}),
    st.lists(TAGS, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.sampled_from([{"type": "string"}, {"anyOf": [{"const": "a"}, {"const": 2}]}, {"$ref": "#/$defs/d"}, True]),
)
BRANCHES = st.lists(
    st.fixed_dictionaries(
        {"properties": st.dictionaries(SMALL, TAG, min_size=1, max_size=3)},
        optional={
            "type": st.sampled_from(["object", "object", ["object", "null"]]),
            "required": st.lists(SMALL, max_size=3, unique=True),
            "anyOf": st.just([{"required": ["k"]}, {"required": ["x"]}]),
        },
    ),
    min_size=2,
    max_size=6,
)


def all_pairs(tags: list[Any]) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(len(tags)), 2))


def check_same_as_all_pairs(branches: list[Any], outer: dict[str, Any]) -> None:
    """Tags decide what a comparison of all pairs decides."""
    schema = {**outer, "$defs": {"d": {"const": "b"}}, "oneOf": branches}
    found = join_branches(schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_branches, "pairs_without_tag", all_pairs)
        assert found == join_branches(schema)


OUTER = st.sampled_from([{}, {"type": "object"}, {"required": ["k"]}, {"type": "object", "required": ["x", "k"]}])


@given(BRANCHES, OUTER)
@settings(max_examples=examples(300), deadline=None)
def test_tags_decide_as_all_pairs_do(branches: list[Any], outer: dict[str, Any]):
    check_same_as_all_pairs(branches, outer)


def test_a_tag_that_is_not_required_is_seen_as_a_fault():
    """The property above finds tags that some values lack."""
    branches = [{"type": "object", "properties": {"k": {"const": name}}} for name in ("a", "b")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Conflicts, "tags", lambda _, schemas: {"k": {(False, schemas[1]["properties"]["k"]["const"])}})
        with pytest.raises(AssertionError):
            check_same_as_all_pairs(branches, {})


@pytest.mark.parametrize("place", ["$ref", "in place"])
def test_a_thousand_branches_with_a_tag_are_told_apart(place: str):
    names = [f"b{i}" for i in range(1000)]
    version = {"const": 1}
    defs = {name: tagged({"const": name}, "v", v=version, x={"type": "integer"}) for name in names}
    branches = [{"$ref": f"#/$defs/{name}"} for name in names] if place == "$ref" else list(defs.values())
    found = join_branches({"$defs": defs, "oneOf": branches})
    assert found == {"$defs": defs, "anyOf": branches}
    twice = join_branches({"$defs": defs, "oneOf": [*branches, defs["b7"]]})
    assert unions(twice) == 1
