"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.front_end import front_of, service_for
from tailrace.api.respond import json_answer
from tailrace.api.schema.models import ModelCard, ModelList
from tailrace.api.service import Service


async def list_models(request: Request) -> Response:
    """What is served."""
    return json_answer(ModelList(data=[card(service) for service in front_of(request).served.values()]))


async def retrieve_model(request: Request) -> Response:
    """One of them, by name (which may hold slashes)."""
    return json_answer(card(service_for(request, request.path_params["id"])))


def card(service: Service) -> ModelCard:
    """What is told of one."""
    model = service.supervisor.model
    return ModelCard(
        id=service.model_name,
        created=service.created_s,
        max_model_len=None if model is None else model.max_model_len,
        parent=service.parent or UNSET,
    )
