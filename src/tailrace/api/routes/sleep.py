"""POST /sleep and /wake_up, and GET /is_sleeping, in vLLM's shapes: an operator gives a model's memory back, and loads
the model again. The parameters are in the query."""

from __future__ import annotations

import asyncio
import time

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.front_end import front_of
from tailrace.api.item_pages import read_query_choice
from tailrace.api.service import Service
from tailrace.api.streaming import json_response
from tailrace.errors import NotReadyError, ParameterError, format_json

ASK_EVERY_S = 0.1  # an engine that has something to do does not sleep
EXIT_S, ABORT_S = 5.0, 60.0  # for the process to end, after `drain_timeout_s` or at once
SLEEP_PARAMETERS, WAKE_PARAMETERS = ("level", "mode", "model"), ("model",)


class Sleeping(msgspec.Struct, frozen=True):
    """`is_sleeping`: all models do. `models`: each one, where models have names."""

    is_sleeping: bool
    models: dict[str, bool] | UnsetType = UNSET


async def put_to_sleep(request: Request) -> Response:
    """End the engines, and answer when their memory is free.

    Raises:
        ParameterError: naming the query's parameter, or the operator does not allow this. NotReadyError: a model still
            had requests after `drain_timeout_s`.
    """
    services = choose_services(request, SLEEP_PARAMETERS)
    read_query_choice(request, "level", ("1", "2"))  # both: nothing of the model stays in memory
    abort = read_query_choice(request, "mode", ("abort", "wait")) == "abort"
    await asyncio.gather(*(end_engine(service, abort) for service in services))
    return Response()


async def end_engine(service: Service, abort: bool) -> None:
    """Wait until the engine sleeps. abort: end what runs.

    Raises:
        NotReadyError, EngineDeadError: it can't sleep.
    """
    client = service.client
    until_s = time.monotonic() + (ABORT_S if abort else service.config.drain_timeout_s + EXIT_S)
    while not client.asleep:
        service.supervisor.check()
        if time.monotonic() > until_s:
            raise NotReadyError(f"{service.model_name} has requests that still run; try again, or use mode=abort")
        if client.ready:
            client.ask_to_sleep(abort)
        await asyncio.sleep(ASK_EVERY_S)


async def wake_up(request: Request) -> Response:
    """Load the models, and answer when they are ready.

    Raises:
        ParameterError: as for put_to_sleep. NotReadyError: a model could not be loaded.
    """
    services = [service for service in choose_services(request, WAKE_PARAMETERS) if service.client.asleep]
    await asyncio.gather(*(service.client.sleep.wait_until_awake() for service in services))
    return Response()


async def show_sleep(request: Request) -> Response:
    """Whether models sleep. It wakes none."""
    services = select_services(request)
    found = {service.base_name: service.client.asleep for service in services}
    return json_response(Sleeping(all(found.values()), found if front_of(request).named else UNSET))


def choose_services(request: Request, parameters: tuple[str, ...]) -> list[Service]:
    """The models that the query means, if the operator lets clients change them.

    Raises:
        ParameterError: the operator does not; or the query has another parameter. ModelNotFoundError: see
            FrontEnd.find.
    """
    path = request.url.path
    if not front_of(request).config.sleep_endpoints:
        raise ParameterError(f"{path}: the operator lets no client change whether a model sleeps (--sleep-endpoints)")
    for name in request.query_params:
        if name not in parameters:
            known = ", ".join(parameters)
            raise ParameterError(f"{path} has no parameter {format_json(name, 200)}; it has {known}", name)
    return select_services(request)


def select_services(request: Request) -> list[Service]:
    """The model that the query names, or all.

    Raises:
        ModelNotFoundError: see FrontEnd.find.
    """
    front, name = front_of(request), request.query_params.get("model")
    if name is None:
        return [*front.services.values()]
    return [front.services[front.find(name).base_name]]
