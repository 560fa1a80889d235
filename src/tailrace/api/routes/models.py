"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.respond import json_answer
from tailrace.api.schema.models import ModelCard, ModelList
from tailrace.api.service import Service, service_of


async def list_models(request: Request) -> Response:
    """What is served."""
    return json_answer(ModelList(data=[card(service_of(request))]))


async def retrieve_model(request: Request) -> Response:
    """One of them, by name (which may hold slashes)."""
    service = service_of(request)
    service.check_model(request.path_params["id"])
    return json_answer(card(service))


def card(service: Service) -> ModelCard:
    """The served model."""
    model = service.supervisor.model
    return ModelCard(
        id=service.model_name, created=service.created_s, max_model_len=None if model is None else model.max_model_len
    )
