"""The ASGI application: the table of endpoints, their middleware, and the start and end of the engines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from tailrace.api.auth import ApiKeys, Site, hosts_of
from tailrace.api.connection_limits import ClaimedConnections
from tailrace.api.disconnect import cancel_all
from tailrace.api.error_handlers import HANDLERS
from tailrace.api.event_loop_lag import observe_event_loop_lag
from tailrace.api.front_end import FrontEnd
from tailrace.api.openapi import get_openapi
from tailrace.api.request_id import REQUEST_ID, RequestIdMiddleware
from tailrace.api.response_warnings import WARNING
from tailrace.api.routes.adapters import load_adapter, unload_adapter
from tailrace.api.routes.chat import create_chat_completion
from tailrace.api.routes.compact import compact_response
from tailrace.api.routes.completions import create_completion
from tailrace.api.routes.conversations import (
    create_conversation,
    create_items,
    delete_conversation,
    delete_item,
    list_items,
    retrieve_conversation,
    retrieve_item,
    update_conversation,
)
from tailrace.api.routes.explain import explain_output
from tailrace.api.routes.generate import generate_outputs
from tailrace.api.routes.health import get_health, get_ping, get_version
from tailrace.api.routes.messages import count_tokens, create_message
from tailrace.api.routes.metrics import get_metrics
from tailrace.api.routes.models import list_models, retrieve_model
from tailrace.api.routes.page import get_asset, get_fields, get_index, get_status, redirect_page
from tailrace.api.routes.render import render_chat, render_completion, render_message, render_response
from tailrace.api.routes.requests import cancel_request, control_request
from tailrace.api.routes.responses import count_input_tokens, create_response
from tailrace.api.routes.resume import resume_stream
from tailrace.api.routes.sleep import put_to_sleep, show_sleep, wake_up
from tailrace.api.routes.stored_responses import (
    cancel_response,
    delete_response,
    list_input_items,
    retrieve_response,
)
from tailrace.api.routes.token_io import (
    derender_chat,
    derender_completion,
    generate_tokens,
)
from tailrace.api.routes.tokenize import detokenize_tokens, tokenize_input
from tailrace.api.trace_exporters import start_tracing
from tailrace.api.trailing_slash import TrailingSlash
from tailrace.api.user_admission import EXPOSED, UserAdmission
from tailrace.api.user_line import UserLine
from tailrace.api.worker_queries import answer_question
from tailrace.config import ServerConfig, split_commas
from tailrace.wire.async_client import AsyncClient

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

Endpoint = Callable[[Request], Awaitable[Response]]

ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/v1/chat/completions", create_chat_completion),
    ("POST", "/v1/completions", create_completion),
    ("POST", "/generate", generate_outputs),
    ("GET", "/v1/models", list_models),
    ("GET", "/v1/models/{id:path}", retrieve_model),
    ("POST", "/v1/load_lora_adapter", load_adapter),
    ("POST", "/v1/unload_lora_adapter", unload_adapter),
    ("POST", "/sleep", put_to_sleep),
    ("POST", "/wake_up", wake_up),
    ("GET", "/is_sleeping", show_sleep),
    ("POST", "/v1/responses", create_response),
    ("POST", "/v1/responses/input_tokens", count_input_tokens),
    ("POST", "/v1/responses/compact", compact_response),
    ("GET", "/v1/responses/{id:path}/input_items", list_input_items),
    ("POST", "/v1/responses/{id:path}/cancel", cancel_response),  # these before the next, whose ids they would be
    ("GET", "/v1/responses/{id:path}", retrieve_response),
    ("DELETE", "/v1/responses/{id:path}", delete_response),
    ("POST", "/v1/conversations", create_conversation),
    ("POST", "/v1/conversations/{id:path}/items", create_items),
    ("GET", "/v1/conversations/{id:path}/items", list_items),
    ("GET", "/v1/conversations/{id:path}/items/{item:path}", retrieve_item),
    ("DELETE", "/v1/conversations/{id:path}/items/{item:path}", delete_item),
    ("GET", "/v1/conversations/{id:path}", retrieve_conversation),
    ("POST", "/v1/conversations/{id:path}", update_conversation),
    ("DELETE", "/v1/conversations/{id:path}", delete_conversation),
    ("POST", "/v1/messages", create_message),
    ("POST", "/v1/messages/count_tokens", count_tokens),
    ("POST", "/v1/explain", explain_output),
    ("DELETE", "/v1/requests/{id:path}", cancel_request),
    ("POST", "/v1/chat/completions/control", control_request),
    ("POST", "/v1/chat/completions/{id:path}/control", control_request),
    ("GET", "/v1/chat/completions/{id:path}", resume_stream),
    ("GET", "/v1/completions/{id:path}", resume_stream),
    ("GET", "/v1/messages/msg_{id:path}", resume_stream),
    ("POST", "/v1/chat/completions/render", render_chat),
    ("POST", "/v1/chat/completions/derender", derender_chat),
    ("POST", "/v1/completions/render", render_completion),
    ("POST", "/v1/completions/derender", derender_completion),
    ("POST", "/v1/messages/render", render_message),
    ("POST", "/v1/responses/render", render_response),
    ("POST", "/inference/v1/generate", generate_tokens),
    ("POST", "/tokenize", tokenize_input),
    ("POST", "/detokenize", detokenize_tokens),
    ("GET", "/openapi.json", get_openapi),
    ("GET", "/health", get_health),
    ("GET", "/ping", get_ping),
    ("POST", "/ping", get_ping),
    ("GET", "/version", get_version),
    ("GET", "/metrics", get_metrics),
)
PAGE: tuple[tuple[str, str, Endpoint], ...] = (
    ("GET", "/", get_index),
    ("GET", "/page/fields.json", get_fields),
    ("GET", "/page/status", get_status),
    ("GET", "/page", redirect_page),
    ("GET", "/page/", redirect_page),
    ("GET", "/page/{path:path}", get_asset),
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

    It listens while the engines still start: until they are ready, /health says so and requests get a 503. With
    `listens_when_ready` its lifespan begins when the first of them is ready.
    """

    for service in front.services.values():
        service.client.queries.answer = partial(answer_question, front)

    @asynccontextmanager
    async def run_lifespan(app: Starlette) -> AsyncIterator[None]:
        front.observer.tracing = start_tracing(os.environ)
        tasks = [
            asyncio.create_task(observe_event_loop_lag(front.metrics.event_loop_lag)),
            asyncio.create_task(front.clean_responses()),
        ]
        for service in front.services.values():
            tasks += [asyncio.create_task(front.keep(service)), asyncio.create_task(service.supervisor.watch())]
        if listens_when_ready:
            settled = [asyncio.ensure_future(service.supervisor.settled.wait()) for service in front.services.values()]
            await asyncio.wait(settled, return_when=asyncio.FIRST_COMPLETED)
            await cancel_all(*settled)
        try:
            yield
        finally:
            await cancel_all(*tasks)
            await front.others_gone()
            await front.close()
            await front.observer.close()

    app = Starlette(
        routes=make_routes(ROUTES + PAGE if front.config.page else ROUTES),
        middleware=make_middleware(front),
        exception_handlers=HANDLERS,
        lifespan=run_lifespan,
    )
    app.state.front = front
    return app


class PathRoute(Route):
    """A route that answers every method of its path: a method that the path does not take is a 405."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        return (Match.FULL if match is Match.PARTIAL else match), child


def make_routes(table: Iterable[tuple[str, str, Endpoint]]) -> list[Route]:
    """One route per path, so that a 405 lists all methods of the path. Paths without a parameter come first: a
    parameter could also be their last part."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for method, path, endpoint in sorted(table, key=lambda row: "{" in row[1]):
        by_path.setdefault(path, {})[method] = endpoint
    return [PathRoute(path, by_method(endpoints), methods=list(endpoints)) for path, endpoints in by_path.items()]


def by_method(endpoints: dict[str, Endpoint]) -> Endpoint:
    """The endpoint of the request's method; HEAD is GET."""
    if len(endpoints) == 1:
        return next(iter(endpoints.values()))

    async def call_endpoint(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return call_endpoint


def make_middleware(front: FrontEnd) -> list[Middleware]:
    """The middleware, outermost first."""
    config = front.config
    found, origins = [Middleware(TrailingSlash), Middleware(RequestIdMiddleware)], split_commas(config.cors_origins)
    hosts = hosts_of(split_commas(config.allowed_hosts), config.host)
    if hosts is not None:
        found.append(Middleware(Site, hosts=hosts, origins=origins))
    if origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=[REQUEST_ID, WARNING, *(EXPOSED if front.limits is not None else ())],
            )
        )
    if keys := config.keys:
        found.append(Middleware(ApiKeys, keys=keys, page=config.page))
    found.append(Middleware(ClaimedConnections, keyed=bool(keys)))
    if front.limits is not None:
        found.append(Middleware(UserAdmission, limits=front.limits))
    found.append(Middleware(UserLine, observe_wait=front.observe_wait))
    return found
