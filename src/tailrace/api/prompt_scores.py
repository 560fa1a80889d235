"""The logprobs of one prompt's tokens, put together as the engine sends them."""

from __future__ import annotations

from tailrace.api.logprobs import clamp_logprob
from tailrace.params import SamplingParams
from tailrace.wire.messages import PromptLogprobs, TokenLogprobs


class PromptScores:
    """Before the first delta they are all there, or the request has failed."""

    def __init__(self, params: SamplingParams, num_prompt: int) -> None:
        self._params, self._places = params, params.scored_places(num_prompt)
        self._entries: list[TokenLogprobs] = []
        self._named: list[list[float]] = []

    def keep(self, event: PromptLogprobs) -> None:
        """The next places; what was sent before a preemption comes once."""
        if len(self._entries) < len(self._places) and event.start == self._places[len(self._entries)]:
            self._entries += event.entries
            self._named += [[clamp_logprob(value) for value in values] for values in event.named]

    @property
    def entries(self) -> list[TokenLogprobs] | None:
        """Of the tokens behind prompt_logprob_start; None if not asked for, or incomplete."""
        return self._entries if self._params.prompt_logprobs is not None and self._complete else None

    @property
    def named(self) -> list[list[float]] | None:
        """Those of prompt_logprob_token_ids, row by row; None as above."""
        if not (rows := self._params.prompt_logprob_token_ids) or not self._complete:
            return None
        found = iter(values for values in self._named if values)
        return [next(found) if ids else [] for ids in rows]

    @property
    def _complete(self) -> bool:
        return len(self._entries) == len(self._places)
