"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.formats import name_parsers
from tailrace.api.front_end import front_of
from tailrace.api.schema.models import ModelCard, ModelList, ModelStatus
from tailrace.api.service import Service
from tailrace.api.streaming import json_response

# states of an engine → llama.cpp's words
STATUSES = {"sleeping": "sleeping", "loading": "loading", "starting": "loading", "dead": "unloaded"}


async def list_models(request: Request) -> Response:
    """All models and adapters that are served."""
    return json_response(ModelList(data=[make_model_card(service) for service in front_of(request).served.values()]))


async def retrieve_model(request: Request) -> Response:
    """One model or adapter, by name (which may hold slashes)."""
    return json_response(make_model_card(front_of(request).find(request.path_params["id"])))


def make_model_card(service: Service) -> ModelCard:
    """The description of one model or adapter."""
    model, parsers = service.supervisor.model, name_parsers(service.template, service.reasoning, service.tools)
    return ModelCard(
        id=service.model_name,
        created=service.created_s,
        max_model_len=None if model is None else model.max_model_len,
        parent=service.parent or UNSET,
        sampling_defaults=dict(service.defaults),
        reasoning_parser=parsers["reasoning_parser"],
        tool_parser=parsers["tool_parser"],
        tool_grammar=service.tools is not None,
        status=describe_status(service),
    )


def describe_status(service: Service) -> ModelStatus | UnsetType:
    """Whether the model is loaded; UNSET for a model that never sleeps."""
    if not service.may_sleep:
        return UNSET
    value = STATUSES.get(service.supervisor.condition, "loaded")
    return ModelStatus(value, service.progress if value == "loading" else None)
