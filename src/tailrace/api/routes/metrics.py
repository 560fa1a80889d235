"""GET /metrics, for Prometheus."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.service import Service


async def metrics(request: Request) -> Response:
    """All of them."""
    service = Service.of(request)
    text = service.metrics.render(service.client.stats, service.client.error is None)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})
