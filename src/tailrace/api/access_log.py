"""What is written of each request once it has ended: one line in the log, and a span where OpenTelemetry is
configured."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from tailrace.api.request_record import RequestOrigin, RequestRecord
from tailrace.api.schema.common import Usage
from tailrace.config import ServerConfig
from tailrace.params import SamplingParams

if TYPE_CHECKING:
    from tailrace.api.tracing import Tracing

log = logging.getLogger(__name__)
access = logging.getLogger("tailrace.access")

FLUSH_S = 5.0  # how long the end of the process may wait for spans to go out


class Observer:
    """One per app. `tracing` is None without configuration. named: lines of text say which model it was."""

    def __init__(self, server: ServerConfig, named: bool = False) -> None:
        self._server, self._named = server, named
        self.tracing: Tracing | None = None

    def begin(self, model: str, origin: RequestOrigin, id: str, params: SamplingParams) -> RequestRecord:
        """A record that this observer writes when it ends."""
        return RequestRecord(model, origin, id, params, self.ended)

    def ended(self, record: RequestRecord, usage: Usage) -> None:
        """Write the line and the span."""
        if self._server.log_requests and access.isEnabledFor(logging.INFO):
            self._log_request(record, usage)
        if self.tracing is not None:
            self.tracing.write(record, usage, record.model, self._server)

    async def close(self) -> None:
        """Send what spans there are, within FLUSH_S."""
        tracing, self.tracing = self.tracing, None
        if tracing is None:
            return
        # a daemon, so that an exporter that hangs can't keep the process
        flushing = threading.Thread(target=tracing.close, daemon=True, name="flush traces")
        flushing.start()
        await asyncio.to_thread(flushing.join, FLUSH_S)
        if flushing.is_alive():
            log.warning("some traces could not be sent within %g s and are lost", FLUSH_S)

    def _log_request(self, record: RequestRecord, usage: Usage) -> None:
        reasons, cached = record.finish_reasons, usage.prompt_tokens_details.cached_tokens
        how = [*dict.fromkeys(reasons)]
        how += [f"ended by {record.cause}"] if record.cause else []
        how += [f"failed with {record.error}"] if record.error else []
        first = "no token" if record.first_token_s is None else f"first token after {record.first_token_s:.3f} s"
        drafted, stood = record.drafted, min(record.accepted, usage.completion_tokens)
        whose = f"{record.model}: " if self._named else ""
        guessed = f" ({stood} of {drafted} drafts stood)" if drafted else ""
        access.info(
            "%s%s %s: %s; %d prompt tokens (%d cached), %d completion tokens%s; %s, %.3f s in all",
            whose,
            record.origin.operation,
            record.request_id,
            ", ".join(how),
            usage.prompt_tokens,
            cached,
            usage.completion_tokens,
            guessed,
            first,
            record.total_s,
            extra={
                "request_id": record.request_id,
                "endpoint": record.origin.endpoint,
                "operation": record.origin.operation,
                "streamed": record.origin.streamed,
                "model": record.model,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": cached,
                "completion_tokens": usage.completion_tokens,
                "drafted_tokens": drafted,
                "accepted_tokens": stood,
                "finish_reasons": reasons,
                "error": record.error,
                "cause": record.cause,
                "first_token_s": None if record.first_token_s is None else round(record.first_token_s, 6),
                "total_s": round(record.total_s, 6),
            },
        )
