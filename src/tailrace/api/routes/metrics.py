"""GET /metrics, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.peers import everywhere
from tailrace.api.service import service_of


async def metrics(request: Request) -> Response:
    """Everything that api/metrics.py knows, of all front ends together."""
    service = service_of(request)
    others = await everywhere(service, "counts")
    text = await service.turns.run(request, lambda: service.metrics.expose(others), 0)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})
