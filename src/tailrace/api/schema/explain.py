"""Why a token came, over HTTP: the record with the text of its tokens, and POST /v1/explain."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tailrace.explanation import Explanation
from tailrace.sentences import Sentences


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
