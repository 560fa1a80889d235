"""The ASGI app: which path goes where."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from tailrace.api.problems import HANDLERS
from tailrace.api.routes.chat import chat_completions
from tailrace.api.routes.completions import completions
from tailrace.api.routes.health import health
from tailrace.api.routes.metrics import metrics
from tailrace.api.routes.models import model, models
from tailrace.api.service import Service
from tailrace.config import ServerConfig
from tailrace.text.tokenizer import Tokenizer

ROUTES = [
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/models", models, methods=["GET"]),
    Route("/v1/models/{id:path}", model, methods=["GET"]),
    Route("/health", health, methods=["GET"]),
    Route("/metrics", metrics, methods=["GET"]),
]


def create_app(
    client: Any,
    tokenizer: Tokenizer,
    model_name: str,
    config: ServerConfig | None = None,
    defaults: dict[str, float | int] | None = None,
) -> Starlette:
    """The app over a wire AsyncClient, which somebody else starts and closes. See Service for the arguments."""
    app = Starlette(routes=ROUTES, exception_handlers=HANDLERS)
    app.state.service = Service(client, tokenizer, model_name, config or ServerConfig(), defaults or {})
    return app
