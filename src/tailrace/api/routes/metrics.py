"""GET /metrics, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.front_end import front_of
from tailrace.api.worker_queries import everywhere


async def metrics(request: Request) -> Response:
    """Everything that api/metrics.py knows, of all front ends together."""
    front = front_of(request)
    others = await everywhere(front, "counts")
    text = await front.turns.run(request, lambda: front.metrics.expose(others), 0)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})
