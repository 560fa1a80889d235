"""What an output can be asked to be: OpenAI's response_format, and vLLM's structured_outputs with our own options in
it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tailrace.request.options import MAX_WHITESPACE

# an object, or the same as text
JsonText = dict[str, Any] | str


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object", omit_defaults=True):
    """Any JSON object; or, with a schema (as in llama.cpp), one that fits it."""

    schema: dict[str, Any] | None = None


class JsonSchema(msgspec.Struct):
    """`schema` is enforced, whatever `strict` says."""

    schema: dict[str, Any]
    name: str | None = None
    strict: bool | None = None
    description: str | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", omit_defaults=True):
    """JSON that fits the schema, which stands in json_schema, or (as llama.cpp takes it) in `schema`."""

    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class StructuralTagFormat(msgspec.Struct, tag_field="type", tag="structural_tag", omit_defaults=True):
    """xgrammar's structural tag: its `format`; or its older form, `structures` and `triggers`."""

    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class FlatJsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", omit_defaults=True):
    """JsonSchemaFormat as /v1/responses has it."""

    schema: dict[str, Any]
    name: str | None = None
    strict: bool | None = None
    description: str | None = None


ResponsesFormat = TextFormat | JsonObjectFormat | FlatJsonSchemaFormat


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """At most one constraint, and options of whichever is given, here or elsewhere. `whitespace`: characters of it that
    JSON may have in a row. `close_in_time`: an output that max_tokens would cut is closed before."""

    json: JsonText | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: JsonText | None = None
    backend: str | None = None
    whitespace: Annotated[int, msgspec.Meta(ge=0, le=MAX_WHITESPACE)] | None = None
    close_in_time: bool | None = None
