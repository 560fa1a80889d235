"""Spans by OpenTelemetry's GenAI conventions, written when a request has ended. Imported only where an exporter is
configured.

https://github.com/open-telemetry/semantic-conventions-genai: docs/gen-ai/gen-ai-spans.md. The conventions describe the
caller's side; this is the server's, so the kind is SERVER and the times are those measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from tailrace.api.request_record import RequestRecord
from tailrace.api.schema.common import Usage
from tailrace.base.extras import require_extra
from tailrace.config import ServerConfig
from tailrace.params import SamplingParams

with require_extra("otel"):
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    from opentelemetry.util.types import AttributeValue

SERVICE = "tailrace"
W3C = TraceContextTextMapPropagator()

# attribute → field of the parameters; written where the field is not neutral
WHERE_SET = {
    "gen_ai.request.seed": "seed",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.stop_sequences": "stop",
    "gen_ai.request.choice.count": "n",
}
NEUTRAL = SamplingParams()


def make_batch_processor(exporter: SpanExporter) -> SpanProcessor:
    """A processor that sends in batches, in the background; the OTEL_BSP_… variables configure it."""
    return BatchSpanProcessor(exporter)


class Tracing:
    """Writes one span per request. Sampler, limits and resource are as OpenTelemetry's own variables say."""

    def __init__(self, processors: Sequence[SpanProcessor]) -> None:
        given = OTELResourceDetector().detect().attributes
        resource = Resource.create({"service.name": SERVICE, "service.version": version("tailrace"), **given})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        for processor in processors:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tailrace", version("tailrace"))

    def write(self, record: RequestRecord, usage: Usage, model: str, server: ServerConfig) -> None:
        """The span of a request that has ended."""
        origin = record.origin
        carrier = {"traceparent": origin.traceparent, "tracestate": origin.tracestate}
        span = self._tracer.start_span(
            f"{origin.operation} {model}",
            context=W3C.extract(carrier, Context()),
            kind=SpanKind.SERVER,
            attributes=make_attributes(record, usage, model, server),
            start_time=record.begun_ns,
        )
        if record.error is not None:
            span.set_status(StatusCode.ERROR)  # without a message, which may quote the request; error.type has the code
        span.end(record.begun_ns + round(record.total_s * 1e9))

    def close(self) -> None:
        """Send the remaining spans. May block for as long as the exporter likes."""
        self._provider.shutdown()


def make_attributes(record: RequestRecord, usage: Usage, model: str, server: ServerConfig) -> dict[str, AttributeValue]:
    """All attributes of the span."""
    params = record.params
    found: dict[str, AttributeValue] = {
        "gen_ai.operation.name": record.origin.operation,
        "gen_ai.provider.name": SERVICE,
        "gen_ai.request.model": model,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.response.id": record.id,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.prompt_tokens_details.cached_tokens,
        "server.address": server.host,
        "server.port": server.port,
    }
    if params.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = params.max_tokens
    for attribute, field in WHERE_SET.items():
        value = getattr(params, field)
        if value != getattr(NEUTRAL, field):
            found[attribute] = value
    if params.top_k > 0:
        found["gen_ai.request.top_k"] = float(params.top_k)
    if record.finish_reasons:
        found["gen_ai.response.finish_reasons"] = record.finish_reasons
    if record.origin.streamed:
        found["gen_ai.request.stream"] = True
    if record.first_token_s is not None:
        found["tailrace.time_to_first_token"] = record.first_token_s
        if record.origin.streamed:
            found["gen_ai.response.time_to_first_chunk"] = record.first_token_s
    if record.error is not None:
        found["error.type"] = record.error
    if record.cause is not None:
        found["tailrace.abort.cause"] = record.cause
    return found
