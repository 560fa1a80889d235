"""GET /metrics, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.service import service_of


async def metrics(request: Request) -> Response:
    """Everything that api/metrics.py knows."""
    return Response(service_of(request).metrics.expose(), headers={"content-type": CONTENT_TYPE_LATEST})
