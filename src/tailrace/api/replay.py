"""An output that was given once, explained by the engine. Knows no HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tailrace.api.generation import Generation
from tailrace.api.request_record import RequestOrigin
from tailrace.api.schema.common import PromptTokensDetails, Usage
from tailrace.api.stored import OutputOrigin
from tailrace.errors import CutShortError, EngineError
from tailrace.explain.record import Explanation
from tailrace.wire.messages import Difference, Replay, Replayed, SequenceEvent

if TYPE_CHECKING:
    from tailrace.api.service import Service
    from tailrace.wire.async_stream import AsyncStream

# what a generation reports of tokens that are drawn: here none is
REPORTS = {
    "logprobs": None,
    "logprob_token_ids": (),
    "report_entropy": False,
    "prompt_logprobs": None,
    "prompt_logprob_start": 0,
    "prompt_logprob_token_ids": (),
    "prompt_logprobs_temperature": 1.0,
    "explain": None,
    "return_sampling_mask": False,
}


class ExplainedOutput(Generation):
    """A generation whose output is there already. `finished` once it is over.

    Attributes:
        records: so far. difference, unsure, stop_token_id: see wire.messages.Replayed.
    """

    def __init__(self, service: Service, id: str, output: OutputOrigin, replay: Replay, origin: RequestOrigin) -> None:
        params = msgspec.structs.replace(output.params, n=1, **REPORTS)
        super().__init__(service, id, [output.prompt], params, origin)
        self._replay = replay
        self.records: list[Explanation] = []
        self.difference: Difference | None = None
        self.unsure = 0
        self.stop_token_id: int | None = None

    async def finished(self) -> None:
        """Until all records have come.

        Raises:
            TailraceError: it failed, or was cut.
        """
        cut = ""
        async for _, delta in self.deltas():
            cut = delta.stop_reason if delta.finish_reason == "abort" else ""
        if cut:
            asked = cut in ("deadline", "cancelled")
            raise (CutShortError if asked else EngineError)(f"the explanation was cut off before its end: {cut}")

    @property
    def work(self) -> int:
        """Tokens that were computed: the prompt, and the output that is explained."""
        return len(self.prompts[0]) + len(self._replay.output)

    @property
    def usage(self) -> Usage:
        """The prompt's tokens; nothing is generated."""
        prompt = len(self.prompts[0])
        return Usage(prompt, 0, prompt, PromptTokensDetails(min(self._cached[0], prompt)))

    def _submit_prompt(self, prompt: list[int]) -> AsyncStream:
        return self._service.submit(self._record, prompt, self.params, self._replay)

    def _filter_events(self, p: int, events: list[SequenceEvent]) -> list[SequenceEvent]:
        for event in events:
            if isinstance(event, Replayed):
                self.records += event.records
                self.difference, self.unsure = event.difference, event.unsure
                self.stop_token_id = event.stop_token_id
                self._cached[p] += event.cached_tokens
        return [event for event in events if not isinstance(event, Replayed)]
