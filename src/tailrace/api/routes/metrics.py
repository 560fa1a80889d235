"""GET /metrics, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.front_end import front_of
from tailrace.api.worker_queries import ask_all


async def get_metrics(request: Request) -> Response:
    """The metrics of all models and all front ends."""
    front = front_of(request)
    others = await ask_all(request, "counts")
    text = await front.work_queue.run(request, lambda: front.metrics.render_metrics(others), 0)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})
