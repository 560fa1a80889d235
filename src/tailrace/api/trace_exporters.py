"""Whether there are traces, and by which exporters they leave. OpenTelemetry is imported only where they are
configured."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from tailrace.base.extras import install_hint

if TYPE_CHECKING:
    from tailrace.api.tracing import Tracing

log = logging.getLogger(__name__)

TRACES_EXPORTERS = "opentelemetry_traces_exporter"  # the entry points by which OpenTelemetry finds its exporters
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OF_PROTOCOL = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


def wanted_exporters(env: Mapping[str, str]) -> list[str]:
    """The exporters that OpenTelemetry's own variables ask for, by the names of their entry points; none without
    configuration."""
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = [name for part in env.get("OTEL_TRACES_EXPORTER", "").split(",") if (name := part.strip())]
    if not named and any(env.get(variable) for variable in ENDPOINTS):
        named = ["otlp"]
    protocol = next((env[variable] for variable in PROTOCOLS if env.get(variable)), "http/protobuf")
    return [OF_PROTOCOL.get(protocol, protocol) if name == "otlp" else name for name in named if name != "none"]


def start_tracing(env: Mapping[str, str]) -> Tracing | None:
    """Tracing as configured; None if it is not. A configuration that can't be had gives one warning."""
    wanted = wanted_exporters(env)
    if not wanted:
        return None
    installed = {found.name: found for found in entry_points(group=TRACES_EXPORTERS)}
    missing = [name for name in wanted if name not in installed]
    if missing:
        log.warning(
            "OpenTelemetry is configured to export traces by %s, which is not installed: there will be none "
            "(OTLP over HTTP comes with: %s)",
            ", ".join(missing),
            install_hint("otel"),
        )
        return None
    from tailrace.api.tracing import Tracing, make_batch_processor

    try:
        return Tracing([make_batch_processor(installed[name].load()()) for name in wanted])
    except Exception as error:  # a server without traces is better than none
        log.warning("OpenTelemetry's configuration is impossible, there will be no traces: %s", error)
        return None
