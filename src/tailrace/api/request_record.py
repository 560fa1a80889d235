"""What is known of a request while it runs: where it came in, and what has happened to it. The code that generates
reports to it. Knows no log.

The record begins when the request goes to the engine. A request that is refused before gets no record. Nothing here
sees a prompt or an answer, and nothing is done per token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, UnsetType

from tailrace.api.schema.common import CompletionTokensDetails, Timings, Usage
from tailrace.errors import TailraceError
from tailrace.params import SamplingParams

if TYPE_CHECKING:
    from tailrace.api.user_limits import Admission
    from tailrace.text.splitter import ReasoningTokens

MAX_TRACEPARENT = 128  # characters; W3C's own has 55. A longer header is ignored
MAX_TRACESTATE = 512  # characters: so many must be passed on. A longer header is ignored


class RequestOrigin(NamedTuple):
    """Where a request came in, what it belongs to, and how it is to be treated.

    operation: in the words of the GenAI conventions.
    request_id: the client's name for the request, or one of ours.
    priority: smaller runs first.
    deadline_s: seconds after which the request is cut. The server's own limit may come before.
    interval, interval_ms: tokens, and milliseconds, of one event of its stream. None: the server's setting.
    user: the id of the user who sent it (user.py). cache_salt: the client's, for cached prefixes; "": none.
    admission: what it has of its user's limits; None: there are no limits.
    reports_progress: its client wants to know how much of the prompt is computed.
    """

    operation: str = "chat"
    endpoint: str = ""
    streamed: bool = False
    traceparent: str = ""
    tracestate: str = ""
    request_id: str = ""
    priority: int = 0
    deadline_s: float | None = None
    interval: int | None = None
    interval_ms: float | None = None
    user: str = ""
    cache_salt: str = ""
    admission: Admission | None = None
    reports_progress: bool = False


UNKNOWN = RequestOrigin()  # of what did not come over HTTP


class RequestRecord:
    """One accepted request. Call `first_token`, `finished` and `record_interruption` as they happen, then `end`.

    Args:
        model: its name. id: of the answer. ended: called at the end with the record and the usage.

    Attributes:
        engine_id: what the engine calls the request. No client can choose or guess it.
        drafted, accepted: draft tokens, and those that verification accepted.
    """

    def __init__(
        self,
        model: str,
        origin: RequestOrigin,
        id: str,
        params: SamplingParams,
        ended: Callable[[RequestRecord, Usage], None],
    ) -> None:
        self._ended, self.model = ended, model
        self.origin, self.id, self.params = origin, id, params
        self.engine_id = f"{id}-{token_hex(8)}"
        self.begun_ns, self._begun_s = time.time_ns(), time.perf_counter()
        self.first_token_s: float | None = None
        self.total_s = 0.0
        self.cause: str | None = None
        self.error: str | None = None
        self.drafted = self.accepted = 0
        self._reasons: dict[int, str] = {}

    @property
    def request_id(self) -> str:
        """What the client calls the request; the answer's id where it has no name."""
        return self.origin.request_id or self.id

    @property
    def finish_reasons(self) -> list[str]:
        """Of the choices that have ended, in their order."""
        return [self._reasons[choice] for choice in sorted(self._reasons)]

    @property
    def is_void(self) -> bool:
        """The request failed before its first token."""
        return self.error is not None and self.first_token_s is None

    @property
    def age_s(self) -> float:
        """Seconds since the request was accepted."""
        return time.perf_counter() - self._begun_s

    def measure_timings(self, usage: Usage) -> Timings:
        """Return how long the answer took so far. usage: its tokens so far."""
        first_s, now_s = self.first_token_s, self.age_s
        prompt_ms = 1e3 * (now_s if first_s is None else first_s)
        predicted_ms = 0.0 if first_s is None else 1e3 * (now_s - first_s)
        cached, outputs = usage.prompt_tokens_details.cached_tokens, usage.completion_tokens
        computed = usage.prompt_tokens - cached
        return Timings(
            cached,
            computed,
            prompt_ms,
            divide(prompt_ms, computed),
            divide(1e3 * computed, prompt_ms),
            outputs,
            predicted_ms,
            divide(predicted_ms, outputs),
            divide(1e3 * outputs, predicted_ms),
            self.drafted,
            min(self.accepted, outputs),
        )

    def count_drafts(self, drafts: Sequence[int]) -> None:
        """Count drafts. drafts: of each step, their number and the number of accepted ones."""
        self.drafted += sum(drafts[::2])
        self.accepted += sum(drafts[1::2])

    def first_token(self) -> None:
        """A token has come. Only the first call counts."""
        if self.first_token_s is None:
            self.first_token_s = self.age_s

    def finished(self, choice: int, reason: str) -> None:
        """One of the choices has ended."""
        self._reasons[choice] = reason

    def record_interruption(self, cause: str | None, error: Exception | None = None) -> None:
        """The request ends early: somebody ended it, or it failed. Only the first call counts; others are
        consequences."""
        if self.cause is None and self.error is None:
            self.cause = cause
            if error is not None:
                self.error = error.code if isinstance(error, TailraceError) else TailraceError.code

    def end(self, usage: Usage) -> None:
        """The request is over, however it went. Call exactly once."""
        self.total_s = self.age_s
        self._ended(self, usage)


def divide(amount: float, by: float) -> float:
    """Return the quotient; 0 where there is nothing to divide by."""
    return amount / by if by else 0.0


def details_of(
    accepted: int, total: int, thoughts: Sequence[ReasoningTokens] | None
) -> CompletionTokensDetails | UnsetType:
    """Return the kinds of output tokens; UNSET if the request has neither predicted tokens nor drafts nor thoughts.

    total: of predicted tokens, or of drafts.
    """
    if not total and thoughts is None:
        return UNSET
    counted = UNSET if thoughts is None else sum(counter.count for counter in thoughts)
    return CompletionTokensDetails(accepted, total - accepted, counted)
