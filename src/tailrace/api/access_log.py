"""What is told of each request once it has ended: one line in the log, and a span where OpenTelemetry is configured.

A request is accepted when it goes to the engine; from then on it has a `Record`, which whoever generates it tells what happens and ends
exactly once. What is refused before has none. Nothing here sees a prompt or an answer, and nothing is done per token.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request

from tailrace.api.schema.common import GenerateRequest, Usage
from tailrace.config import ServerConfig
from tailrace.errors import TailraceError
from tailrace.params import SamplingParams

if TYPE_CHECKING:
    from tailrace.api.tracing import Tracing

log = logging.getLogger(__name__)
access = logging.getLogger("tailrace.access")

MAX_TRACEPARENT, MAX_TRACESTATE = (
    128,
    512,
)  # characters; W3C's own have 55, and at least 512 must be passed on. Longer ones are ignored
FLUSH_S = 5.0  # how long the end of the process may wait for spans to go out
TRACES_EXPORTERS = "opentelemetry_traces_exporter"  # the entry points by which OpenTelemetry finds its exporters
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OF_PROTOCOL = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class Origin(NamedTuple):
    """Where a request came in, what it belongs to, and how it is to be treated.

    operation: in the words of the GenAI conventions. request_id: the client's name for the request, or one of ours.
    priority: smaller runs first. deadline_s: seconds after which the request is cut; the
    server's own limit may come before. interval, interval_ms: tokens, and milliseconds, of one event of its stream; None: the server's.
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


UNKNOWN = Origin()  # of what did not come over HTTP


def origin_of(request: Request, operation: str, ask: GenerateRequest) -> Origin:
    """The origin of a request whose body has been read."""
    headers = request.headers
    parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
    return Origin(
        operation,
        request.scope["path"],
        ask.streamed,
        parent if len(parent) <= MAX_TRACEPARENT else "",
        state if len(state) <= MAX_TRACESTATE else "",
        request_id(request, ask),
        ask.priority or 0,
        ask.deadline_s,
        ask.stream_interval,
        ask.stream_interval_ms,
    )


def request_id(request: Request, ask: GenerateRequest) -> str:
    """The body's, the header's, or a fresh one; also what the answer's header will say."""
    if ask.request_id is not None:
        request.state.request_id = ask.request_id
    return request.state.request_id


class Record:
    """One accepted request. Tell it `first_token`, `finished` and `interrupted` as they happen, then `end`."""

    def __init__(
        self, observer: Observer, model: str, origin: Origin, id: str, request_id: str, params: SamplingParams
    ) -> None:
        self._observer, self.model = observer, model
        self.origin, self.id, self.request_id, self.params = origin, id, request_id, params
        self.begun_ns, self._begun_s = time.time_ns(), time.perf_counter()
        self.first_token_s: float | None = None
        self.total_s = 0.0
        self.cause: str | None = None
        self.error: str | None = None
        self._reasons: dict[int, str] = {}

    @property
    def finish_reasons(self) -> list[str]:
        """Of the choices that have one, in their order."""
        return [self._reasons[choice] for choice in sorted(self._reasons)]

    def first_token(self) -> None:
        """A token is there; only the first time counts."""
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self._begun_s

    def finished(self, choice: int, reason: str) -> None:
        """One of the choices has ended."""
        self._reasons[choice] = reason

    def interrupted(self, cause: str | None, error: Exception | None = None) -> None:
        """It ends before its time: somebody ended it, or it failed. The first time counts: what follows is a consequence."""
        if self.cause is None and self.error is None:
            self.cause = cause
            if error is not None:
                self.error = error.code if isinstance(error, TailraceError) else TailraceError.code

    def end(self, usage: Usage) -> None:
        """It is over, however it went. Call exactly once."""
        self.total_s = time.perf_counter() - self._begun_s
        self._observer.ended(self, usage)


class Observer:
    """One per app. `tracing` is None without configuration. named: lines of text say which model it was."""

    def __init__(self, server: ServerConfig, named: bool = False) -> None:
        self._server, self._named = server, named
        self.tracing: Tracing | None = None

    def begin(self, model: str, origin: Origin, id: str, request_id: str, params: SamplingParams) -> Record:
        """A record that this observer will write."""
        return Record(self, model, origin, id, request_id, params)

    def ended(self, record: Record, usage: Usage) -> None:
        """Write the line and the span."""
        if self._server.log_requests and access.isEnabledFor(logging.INFO):
            self._log(record, usage)
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

    def _log(self, record: Record, usage: Usage) -> None:
        reasons, cached = record.finish_reasons, usage.prompt_tokens_details.cached_tokens
        how = [*dict.fromkeys(reasons)]
        how += [f"ended by {record.cause}"] if record.cause else []
        how += [f"failed with {record.error}"] if record.error else []
        first = "no token" if record.first_token_s is None else f"first token after {record.first_token_s:.3f} s"
        drafted, stood = usage.drafts
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


# ---- whether there are traces at all, found out without importing OpenTelemetry


def wanted_exporters(env: Mapping[str, str]) -> list[str]:
    """The exporters that OpenTelemetry's own variables ask for, by the names of their entry points; none without configuration."""
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = [name for part in env.get("OTEL_TRACES_EXPORTER", "").split(",") if (name := part.strip())]
    if not named and any(env.get(variable) for variable in ENDPOINTS):
        named = ["otlp"]
    protocol = next((env[variable] for variable in PROTOCOLS if env.get(variable)), "http/protobuf")
    return [OF_PROTOCOL.get(protocol, protocol) if name == "otlp" else name for name in named if name != "none"]


def start_tracing(env: Mapping[str, str]) -> Tracing | None:
    """Tracing as configured; None if it is not. What is configured but can't be had is said in one warning."""
    wanted = wanted_exporters(env)
    if not wanted:
        return None
    installed = {found.name: found for found in entry_points(group=TRACES_EXPORTERS)}
    missing = [name for name in wanted if name not in installed]
    if missing:
        log.warning(
            "OpenTelemetry is configured to export traces by %s, which is not installed: there will be none "
            "(OTLP over HTTP comes with: pip install 'tailrace[otel]')",
            ", ".join(missing),
        )
        return None
    from tailrace.api.tracing import Tracing, batched

    try:
        return Tracing([batched(installed[name].load()()) for name in wanted])
    except Exception as error:  # a server without traces is better than none
        log.warning("OpenTelemetry's configuration is impossible, there will be no traces: %s", error)
        return None
