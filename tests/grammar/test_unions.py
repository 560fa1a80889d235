"""Unions as Pydantic, zod and people write them: a text of each branch can be written, a mixture can't. The oracles are
jsonschema and Pydantic."""

from __future__ import annotations

import itertools
import json
from typing import Annotated, Any, Literal, Optional

import jsonschema
import pydantic
import pytest
from jsonschema.validators import validator_for
from pydantic import Field

from grammar.test_schema import spells, taken


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog", "hound"] = "dog"
    name: str


class Rest(pydantic.BaseModel):
    kind: Literal[3]
    owner: str | None = None
    young: list[Annotated[Cat | Dog | Rest, Field(discriminator="kind")]] = []


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    mode: Literal["x"]
    value: int


class Open(pydantic.BaseModel):
    mode: Literal["y"]
    value: str


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
Mode = Annotated[Closed | Open, Field(discriminator="mode")]
Deep = Annotated[Annotated[Cat | Dog, Field(discriminator="kind")] | Rest, Field(discriminator="kind")]


class Holder(pydantic.BaseModel):
    pet: Pet | None = None
    pets: list[Pet]
    by_name: dict[str, Mode] = {}


class Named(pydantic.RootModel[Pet]):
    pass


class Nested(pydantic.BaseModel):
    one: Named | Mode


CATS = ['{"kind":"cat","lives":9}', '{"kind":"dog","name":"rex"}', '{"kind":"hound","name":""}']
MODES = ['{"mode":"x","value":1}', '{"mode":"y","value":"s"}']
RESTS = ['{"kind":3}', '{"kind":3,"owner":null,"young":[{"kind":3,"young":[{"kind":"cat","lives":1}]}]}']
WRONG = ['{"kind":"cat","name":"rex"}', '{"kind":"dog","lives":9}', '{"kind":"bird"}', '{"lives":9}', "{}", "null", "3"]
WRONG += ['{"mode":"x","value":"s"}', '{"mode":"y","value":1}', '{"kind":"3"}', '{"kind":3,"young":[{"kind":"cat"}]}']
WRONG += ['{"mode":"x","value":1,"more":2}']
UNIONS: list[tuple[Any, list[str]]] = [
    (Pet, CATS),
    (Mode, MODES),
    (Deep, [*CATS, *RESTS]),
    (Named, CATS),
    (list[Pet], ["[]", f"[{','.join(CATS)}]"]),
    (tuple[Pet, Mode], [f"[{CATS[0]},{MODES[1]}]"]),
    (Optional[Pet], [*CATS, "null"]),  # noqa: UP045, an Annotated alias has no operator
    (
        Holder,
        [
            f'{{"pets":[{CATS[0]}]}}',
            '{"pet":null,"pets":[]}',
            f'{{"pet":{CATS[1]},"pets":[{CATS[2]},{CATS[0]}],"by_name":{{"q":{MODES[0]}}}}}',
        ],
    ),
    (Nested, [f'{{"one":{one}}}' for one in (*CATS, *MODES)]),
]


@pytest.mark.parametrize(("kind", "texts"), UNIONS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_unions_as_pydantic_writes_them(kind: Any, texts: list[str], mode: Any):
    adapter = pydantic.TypeAdapter(kind)
    schema = adapter.json_schema(mode=mode)
    assert '"oneOf"' in json.dumps(schema)
    compiled = taken(schema)
    wrong = [*WRONG, *(f"[{one}]" for one in WRONG), *(f'{{"pets":[{one}]}}' for one in WRONG)]
    wrong += [f'{{"one":{one}}}' for one in WRONG]
    for text in [*texts, *wrong]:
        try:
            adapter.validate_json(text, strict=True)
            fits = True
        except pydantic.ValidationError:
            fits = False
        valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
        written = spells(compiled.matcher(), text)
        assert written <= valid, text  # nothing that does not validate
        assert written or text not in texts, text  # all that the model class writes, with its tag
        assert fits or not written, text


def test_the_tag_is_written_although_it_has_a_default():
    """Pydantic does not list a tag with a default as required, and reads no value without it."""
    compiled = taken(pydantic.TypeAdapter(Pet).json_schema())
    assert not spells(compiled.matcher(), '{"name":"rex"}')


CAT, DOG = ({"type": "object", "properties": {"kind": {"const": kind}}} for kind in ("cat", "dog"))
CAT["properties"] |= {"lives": {"type": "integer"}}
DOG["properties"] |= {"name": {"type": "string"}}
CAT["required"], DOG["required"] = ["kind", "lives"], ["kind"]
PLACES: list[dict[str, Any]] = [
    {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
    {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
    {"oneOf": [{"$ref": "#/$defs/Pet"}, {"type": "null"}]},
    {"oneOf": [{"allOf": [{"$ref": "#/$defs/Cat"}], "description": "d"}, {"$ref": "#/$defs/ref"}]},
    {"oneOf": [CAT, {"$ref": "#/definitions/Dog"}]},
    {"oneOf": [{"$ref": "#/properties/dog"}, {"$ref": "#/$defs/Cat"}], "properties": {"dog": DOG}},
    {"type": "object", "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "properties": {"more": {}}},
    {"allOf": [{"$ref": "#/$defs/Pet"}, {"required": ["kind"]}]},
    {"oneOf": [{k: v for k, v in one.items() if k != "type"} for one in (CAT, DOG)]},
    {"oneOf": [{**CAT, "additionalProperties": False}, {**DOG, "additionalProperties": False}]},
    {"$schema": "http://json-schema.org/draft-07/schema#", "oneOf": [{"$ref": "#/definitions/Cat", "x": 1}, DOG]},
]


@pytest.mark.parametrize("schema", PLACES, ids=lambda schema: json.dumps(schema)[:60])
def test_unions_as_people_write_them(schema: dict[str, Any]):
    shared = {"Cat": CAT, "Dog": DOG, "ref": {"$ref": "#/$defs/Dog"}}
    shared["Pet"] = {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/ref"}]}
    schema = {**schema, "$defs": shared, "definitions": shared}
    compiled = taken(schema)
    kinds, more = ['"kind":"cat"', '"kind":"dog"', '"kind":1'], ['"lives":1', '"name":"n"', '"name":1']
    objects = [[], *([one] for one in kinds), *map(list, itertools.product(kinds, more))]
    written = 0
    for text in ["null", "1", '"cat"', "[]", *(f"{{{','.join(parts)}}}" for parts in objects)]:
        valid = validator_for(schema)(schema).is_valid(json.loads(text))
        assert spells(compiled.matcher(), text) == valid, text
        written += valid
    assert written >= 3


def test_branches_that_only_other_names_tell_apart():
    """A value with both names fits both branches, so oneOf refuses it."""
    branches = [{"type": "object", "required": [name]} for name in ("url", "id")]
    compiled = taken({"oneOf": branches})
    written = [spells(compiled.matcher(), text) for text in ('{"url":1}', '{"id":1}', '{"id":1,"url":1}', "{}")]
    assert written == [True, True, False, False]
