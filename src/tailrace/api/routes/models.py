"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.schema.models import Model, ModelList
from tailrace.api.service import Service

STARTED = int(time.time())


def served(service: Service) -> Model:
    """The one model there is."""
    return Model(service.model_name, STARTED, service.model.max_model_len)


async def models(request: Request) -> Response:
    """All models."""
    listing = ModelList([served(Service.of(request))])
    return Response(msgspec.json.encode(listing), media_type="application/json")


async def model(request: Request) -> Response:
    """One model; 404 for any other name."""
    service = Service.of(request)
    service.check_name(request.path_params["id"])
    return Response(msgspec.json.encode(served(service)), media_type="application/json")
