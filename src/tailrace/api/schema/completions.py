"""Completions, as documented by OpenAI; what we add is marked."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.schema.common import GenerationRequest, Usage
from tailrace.errors import ParameterError

MAX_LOGPROBS = 20
MAX_PROMPTS = 256
DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionRequest(GenerationRequest, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    # beyond OpenAI
    add_special_tokens: bool = True

    def num_logprobs(self) -> int | None:
        """How many rivals per token, None for no logprobs."""
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise ParameterError(f"logprobs must be in [0, {MAX_LOGPROBS}], got {self.logprobs}", "logprobs")
        return self.logprobs

    def refuse_unsupported(self) -> None:
        """Raise ParameterError for what would change the answer and can't be done (yet)."""
        if self.suffix:
            raise ParameterError("suffix is not supported", "suffix")
        if self.best_of not in (None, self.n or 1):
            raise ParameterError("best_of is only supported where it equals n", "best_of")
        if self.echo and self.logprobs is not None:
            raise ParameterError("echo together with logprobs is not supported", "echo")

    def prompts(self) -> list[str | list[int]]:
        """The prompts, each text or token ids.

        Raises:
            ParameterError: it is none of the four forms.
        """
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if prompt and all(type(item) is int for item in prompt):
            return [prompt]
        texts = all(isinstance(item, str) for item in prompt)
        ids = all(isinstance(item, list) and all(type(i) is int for i in item) for item in prompt)
        if not prompt or not (texts or ids):
            raise ParameterError("prompt must be a string, token ids, or a non-empty list of either", "prompt")
        if len(prompt) > MAX_PROMPTS:
            raise ParameterError(f"prompt must have at most {MAX_PROMPTS} entries, got {len(prompt)}", "prompt")
        return prompt


class Logprobs(msgspec.Struct):
    """OpenAI's legacy shape: four aligned lists. Of tokens with equal text among the rivals the likeliest is listed."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    """In a chunk what is new, in the answer all of it. stop_reason and token_ids are additions."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """A chunk, or the whole answer: OpenAI gives both one shape."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str | None = None
    usage: Usage | None | UnsetType = UNSET
