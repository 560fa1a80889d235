"""Why a token came, over HTTP: the record with the text of its tokens, and POST /v1/explain."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET

from tailrace.api.schema.common import Usage
from tailrace.explain.record import ExplainOptions, Explanation
from tailrace.explain.sentences import Sentences
from tailrace.request.fields import TokenId

Place = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
NoiseKey = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{16}$(?!\n)")]  # Python's $ lets \n through


class TokenExplanation(Explanation, frozen=True, kw_only=True):
    """A record with its text.

    token, bytes: as in logprobs. If a stop cuts the token, or special ids are skipped, only the rest of it. tokens: the
    names of `ids`.
    """

    token: str
    bytes: list[int]
    tokens: list[str]
    sentences: Sentences


# a TokenExplanation that is written already
ExplanationJson = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/TokenExplanation"})
]


class ExplainRequest(msgspec.Struct, kw_only=True):
    """The body of the answered request with all its fields, and its output; or only the id of a stored response.

    - messages, prompt, input: the one that is given shows the endpoint.
    - output_token_ids: the output.
    - choice: which of several.
    - key: the noise key, for requests without a seed; every record has it.
    - positions: indexes in the output, by default all.
    - explain: what the records show.
    - what_if: sampling fields to explain with instead.
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
    """The explanations of an output.

    - explanations: one per position, in order.
    - consistent: the request's parameters draw each token that was looked at, or it may have come from drafts.
    - first_difference: the index of the first other token.
    - verdict: the same in words.
    """

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
