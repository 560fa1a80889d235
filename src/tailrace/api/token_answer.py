"""An output that is there already, read like a Generation: tokens that a client sends back become an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tailrace.api.request_record import details_of
from tailrace.api.schema.common import PromptTokensDetails, Timings, Usage
from tailrace.api.schema.token_io import ScoredToken, TokensChoice
from tailrace.base.logprobs import TokenLogprobs
from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.text.output import Delta, TextStream
from tailrace.text.splitter import ReasoningTokens

if TYPE_CHECKING:
    from tailrace.api.service import Service

T = TypeVar("T")

SLICE = 64  # tokens that are read at once
REASONS = ("stop", "length", "abort")


class TokenOutput(NamedTuple):
    """One output. prompt: its prompt's number. place: what the client calls it."""

    prompt: int
    choice: TokensChoice
    place: str


class TokenAnswer:
    """Outputs whose tokens are known, as what reads a generation takes it. user: who asks.

    Args:
        prompt_tokens: how many tokens the prompts have.
    """

    def __init__(
        self,
        service: Service,
        id: str,
        prompts: list[list[int]],
        params: SamplingParams,
        outputs: Sequence[TokenOutput],
        prompt_tokens: int,
    ) -> None:
        self.id, self.prompts, self.params, self.user = id, prompts, params, ""
        self._service, self._outputs, self._prompt_tokens = service, outputs, prompt_tokens
        self.thoughts: list[ReasoningTokens] | None = None

    @property
    def usage(self) -> Usage:
        """The tokens."""
        completion = sum(len(output.choice.token_ids or ()) for output in self._outputs)
        details = details_of(0, 0, self.thoughts)
        total = self._prompt_tokens + completion
        return Usage(self._prompt_tokens, completion, total, PromptTokensDetails(), details)

    @property
    def timings(self) -> Timings:
        """Nothing is known of the time."""
        raise ParameterError("timings_per_token can't be had: nothing is generated", "timings_per_token")

    def prompt_logprobs(self, p: int) -> None:
        """None: a prompt's logprobs are not part of its outputs."""

    def named_logprobs(self, p: int) -> None:
        """None, likewise."""

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Return the result of work on a delta. size: see WorkQueue.run."""
        return await self._service.work_queue.run_unwatched(self.user, work, size)

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """(choice, its next tokens and text); the last delta of each choice has its finish reason.

        Raises:
            ParameterError: naming the output.
        """
        eos = self._service.client.model.eos_token_ids
        for number, (p, choice, place) in enumerate(self._outputs):
            ids, entries = choice.token_ids or [], self._read_logprobs(choice, place)
            text = TextStream(self._service.tokenizer, self.params, eos, self.prompts[p])
            for begin in range(0, len(ids), SLICE):
                if text.finished:
                    break
                part = slice(begin, begin + SLICE)
                yield number, text.feed(ids[part], None if entries is None else entries[part])
                await asyncio.sleep(0)
            if not text.finished:
                yield number, self._flush(text, choice, place)

    def _flush(self, text: TextStream, choice: TokensChoice, place: str) -> Delta:
        reason, ids = choice.finish_reason, choice.token_ids or []
        if reason not in REASONS:
            raise ParameterError(f"{place}.finish_reason must be one of {', '.join(REASONS)}", f"{place}.finish_reason")
        named = choice.stop_reason
        ended = ids and (ids[-1] in self._service.client.model.eos_token_ids or ids[-1] == named)
        stop_id = ids[-1] if reason == "stop" and ended else None
        return text.flush(reason, stop_id, named if isinstance(named, str) else None)

    def _read_logprobs(self, choice: TokensChoice, place: str) -> list[TokenLogprobs] | None:
        """The logprobs of the tokens, if the answer has some.

        Raises:
            ParameterError: they are missing, or not one per token.
        """
        if self.params.logprobs is None:
            return None
        content = (choice.logprobs.content if choice.logprobs is not None else None) or []
        if len(content) != len(choice.token_ids or ()):
            raise ParameterError(f"{place}.logprobs.content must have one entry per token", f"{place}.logprobs.content")
        return [make_entry(token) for token in content]


def make_entry(token: ScoredToken) -> TokenLogprobs:
    """A token's logprobs as the engine has them: the likeliest tokens in order."""
    top = sorted(token.top_logprobs, key=lambda other: (-other.logprob, other.token_id))
    return TokenLogprobs(token.logprob, token.rank or 1, [t.token_id for t in top], [t.logprob for t in top])
