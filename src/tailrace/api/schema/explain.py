"""Why a token came, over HTTP: the record with the text of its tokens, and POST /v1/explain."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET

from tailrace.api.schema.common import Usage
from tailrace.explanation import ExplainOptions, Explanation
from tailrace.fields import TokenId
from tailrace.sentences import Sentences

Place = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
NoiseKey = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{16}$(?!\n)")]  # Python's $ lets \n through


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


class ExplainRequest(msgspec.Struct, kw_only=True):
    """The body of the request that was answered, with all its fields (`messages`, `prompt` or `input` say of which
    endpoint), and its output; or the id of a stored response, and nothing of these.

    output_token_ids: the output. choice: which of several. key: of its noise, for requests without a seed; every record
    has it. positions: indexes in the output, by default all. explain: what the records show. what_if: sampling fields
    to explain with instead.
    """

    model: str | None = None
    messages: Any = UNSET
    prompt: Any = UNSET
    input: Any = UNSET
    response_id: str | None = None
    output_token_ids: list[TokenId] | None = None
    choice: Place | None = None
    key: NoiseKey | None = None
    positions: list[Place] | None = None
    explain: bool | ExplainOptions | None = None
    what_if: dict[str, Any] | None = None


OF_EXPLANATIONS = frozenset({"response_id", "output_token_ids", "choice", "key", "positions", "what_if"})


class ExplainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """explanations: one per position, in order. consistent: each token that was looked at is what the request's
    parameters draw, or may have come from drafts. first_difference: the index of the first that is not. verdict: the
    same in words."""

    id: str
    object: str = "explanation"
    created: int
    model: str
    prompt_token_ids: list[int]
    explanations: list[ExplanationJson]
    consistent: bool
    first_difference: int | None
    verdict: str
    usage: Usage
