"""GET /health: 200 while requests are accepted, also while the model sleeps; 503 while the engine starts, is stalled,
after it died, and during a shutdown. GET and POST /ping: the same status without a body, as vLLM and SageMaker have it.
GET /version."""

from __future__ import annotations

from importlib.metadata import version as installed

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.front_end import FrontEnd, front_of
from tailrace.api.streaming import json_response
from tailrace.api.supervise import Condition


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status`: starting, ready, stalled, sleeping, loading, dead or draining. `error`: why the engine died, or could
    not be loaded again. `part`: of the step, in which a stalled engine is, and has been for so many `seconds`; or of
    the load, of which the share `progress` is done. Of several models it is the worst that counts; `models` has each
    one's status."""

    status: str
    error: str | None
    part: str | None = None
    seconds: float | None = None
    progress: float | None = None
    models: dict[str, str] | None = None


WORST_FIRST: tuple[Condition, ...] = ("dead", "draining", "starting", "stalled", "loading", "sleeping", "ready")


ACCEPTING: tuple[Condition, ...] = ("ready", "sleeping", "loading")


async def get_health(request: Request) -> Response:
    """Whether requests are accepted."""
    found = health_of(front_of(request))
    return json_response(found, status_of(found))


async def get_ping(request: Request) -> Response:
    """The status alone."""
    return Response(status_code=status_of(health_of(front_of(request))))


class Version(msgspec.Struct, frozen=True):
    """Of the package that serves."""

    version: str


async def get_version(request: Request) -> Response:
    """Which tailrace this is."""
    return json_response(Version(installed("tailrace")))


def status_of(health: Health) -> int:
    """200 where requests are accepted."""
    return 200 if health.status in ACCEPTING else 503


def health_of(front: FrontEnd) -> Health:
    """Of the model that is worst off."""
    conditions = {name: service.supervisor.condition for name, service in front.services.items()}
    worst = min(conditions, key=lambda name: WORST_FIRST.index(conditions[name]))
    condition, service = conditions[worst], front.services[worst]
    supervisor = service.supervisor
    error, stall = None if supervisor.error is None else str(supervisor.error), supervisor.stall
    health = Health(condition, error, models=dict(conditions) if front.named else None)
    if condition == "stalled" and stall is not None:
        health = msgspec.structs.replace(health, part=stall.part, seconds=round(stall.seconds, 3))
    if condition == "loading":
        health = msgspec.structs.replace(health, part=service.client.loading or None, progress=service.progress)
    return health
