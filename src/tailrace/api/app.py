"""The ASGI application: the table of endpoints, what wraps them, and the engines' life around them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.api.access_log import start_tracing
from tailrace.api.auth import ApiKeys, Site, hosts_of
from tailrace.api.disconnect import end
from tailrace.api.error_handlers import HANDLERS
from tailrace.api.front_end import FrontEnd
from tailrace.api.lag import watch_lag
from tailrace.api.openapi import openapi
from tailrace.api.respond import REQUEST_ID, id_of_headers
from tailrace.api.routes.chat import create_chat_completion
from tailrace.api.routes.completions import create_completion
from tailrace.api.routes.health import health
from tailrace.api.routes.metrics import metrics
from tailrace.api.routes.models import list_models, retrieve_model
from tailrace.api.routes.requests import cancel_request
from tailrace.api.routes.responses import cancel_response, create_response, delete_response, retrieve_response
from tailrace.api.routes.tokenize import detokenize, tokenize
from tailrace.config import ServerConfig
from tailrace.wire.async_client import AsyncClient

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

Endpoint = Callable[[Request], Awaitable[Response]]

ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/v1/chat/completions", create_chat_completion),
    ("POST", "/v1/completions", create_completion),
    ("GET", "/v1/models", list_models),
    ("GET", "/v1/models/{id:path}", retrieve_model),
    ("POST", "/v1/responses", create_response),
    ("POST", "/v1/responses/{id:path}/cancel", cancel_response),  # before the next, of which it would be an id
    ("GET", "/v1/responses/{id:path}", retrieve_response),
    ("DELETE", "/v1/responses/{id:path}", delete_response),
    ("DELETE", "/v1/requests/{id:path}", cancel_request),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("GET", "/openapi.json", openapi),
    ("GET", "/health", health),
    ("GET", "/metrics", metrics),
)


def create_app(
    client: AsyncClient,
    tokenizer: Tokenizer,
    config: ServerConfig,
    model_name: str,
    defaults: Mapping[str, float | int] | None = None,
) -> Starlette:
    """The application that serves one model.

    Args:
        client: not started. model_name: the one name that requests may give. defaults: sampling fields of the model.
    """
    front = FrontEnd(config)
    front.add(client, tokenizer, model_name, defaults)
    return app_of(front)


def app_of(front: FrontEnd, listens_when_ready: bool = False) -> Starlette:
    """The application of a front end. Its lifespan starts the clients and closes them.

    It listens while the engines still start: until then /health says so and requests get a 503. With `listens_when_ready` its lifespan
    begins when the first of them is ready.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        front.observer.tracing = start_tracing(os.environ)
        tasks = [asyncio.create_task(watch_lag(front.metrics.event_loop_lag))]
        for service in front.services.values():
            tasks += [asyncio.create_task(front.keep(service)), asyncio.create_task(service.supervisor.watch())]
        if listens_when_ready:
            settled = [asyncio.ensure_future(service.supervisor.settled.wait()) for service in front.services.values()]
            await asyncio.wait(settled, return_when=asyncio.FIRST_COMPLETED)
            await end(*settled)
        try:
            yield
        finally:
            await end(*tasks)
            await front.others_gone()
            await front.close()
            await front.observer.close()

    app = Starlette(
        routes=routes(),
        middleware=wrapping(front.config),
        exception_handlers=HANDLERS,
        lifespan=lifespan,
    )
    app.state.front = front
    return app


def routes() -> list[Route]:
    """One per path, so that a method it does not have is answered with all that it has."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for method, path, endpoint in ROUTES:
        by_path.setdefault(path, {})[method] = endpoint
    return [Route(path, by_method(endpoints), methods=list(endpoints)) for path, endpoints in by_path.items()]


def by_method(endpoints: dict[str, Endpoint]) -> Endpoint:
    """The endpoint of the request's method; HEAD is GET."""
    if len(endpoints) == 1:
        return next(iter(endpoints.values()))

    async def chosen(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return chosen


def wrapping(config: ServerConfig) -> list[Middleware]:
    """What every request passes, outermost first."""
    found, origins = [Middleware(RequestId)], listed(config.cors_origins)
    hosts = hosts_of(listed(config.allowed_hosts), config.host)
    if hosts is not None:
        found.append(Middleware(Site, hosts=hosts, origins=origins))
    if origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=[REQUEST_ID],
            )
        )
    if keys := listed(config.api_keys):
        found.append(Middleware(ApiKeys, keys=keys))
    return found


def listed(words: str) -> list[str]:
    """What is between the commas."""
    return [word for part in words.split(",") if (word := part.strip())]


class RequestId:
    """Names each request, as the client's x-request-id says if it does, and says the name in the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        state = scope.setdefault("state", {})
        state["request_id"] = id_of_headers(Headers(scope=scope).get(REQUEST_ID))

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = state["request_id"]
            await send(message)

        await self._app(scope, receive, named)
