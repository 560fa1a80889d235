"""Why a token came, over HTTP: the record with the text of its tokens, and POST /v1/explain."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tailrace.explanation import Explanation


class Sentences(msgspec.Struct, frozen=True):
    """The record in words. model: what the model thought. edits, refinements: of each step. draw: how the token was
    drawn. why_not: per shown token why it did not come, "" for the token itself."""

    model: str
    edits: list[str]
    refinements: list[str]
    draw: str
    why_not: list[str]


class TokenExplanation(Explanation, frozen=True, kw_only=True):
    """A record with its text. token, bytes: of the token, as logprobs have them: where a stop cuts it, or special ids
    are skipped, what is left of it. tokens: the names of `ids`."""

    token: str
    bytes: list[int]
    tokens: list[str]
    sentences: Sentences


# a TokenExplanation that is written already
ExplanationJson = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/TokenExplanation"})
]
