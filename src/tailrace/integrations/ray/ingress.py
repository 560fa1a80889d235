"""The ingress: it computes a request's key, and passes on the answer of the replica that the router chose."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tailrace.api import error_handlers
from tailrace.api.body_bytes import read_bytes
from tailrace.api.request_id import REQUEST_ID
from tailrace.api.routes.messages import EVENTS
from tailrace.api.streaming import NAMED, PLAIN
from tailrace.cli.local import prepare
from tailrace.errors import EngineDeadError
from tailrace.integrations.ray.prompt_key import PromptKeys, RoutedModel
from tailrace.integrations.ray.settings import Settings

log = logging.getLogger(__name__)

LOST = (RayError, RayServeException)
EVENT_FORMATS = {"/v1/messages": EVENTS, "/v1/responses": NAMED}
PASSED = ("type", "asgi", "http_version", "method", "scheme", "query_string", "client", "server")
OF_THE_CODING = (b"content-encoding", b"content-length", b"transfer-encoding")


class Ingress:
    """An ingress. Several share nothing but the list of replicas, which Ray keeps."""

    def __init__(self, replicas: DeploymentHandle, settings: Settings) -> None:
        config, self._blocks = settings.tailrace, settings.ray.route_blocks
        self._most = config.server.max_body_mib << 20
        models = [
            RoutedModel(
                one.name,
                one.tokenizer,
                one.config.cache.block_size,
                tuple(one.config.model.adapters),
                tuple(one.config.model.other_names),
            )
            for one in (map(prepare, config.each()) if self._blocks else ())
        ]
        self._keys = PromptKeys(models, self._blocks, config.server.max_body_items)
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        """Return the answer of a replica, from its first message on.

        A request is sent to one replica and never retried: a request that crashes its replica would crash all others in
        turn. Clients retry a 503 by themselves.
        """
        try:
            body = await read_bytes(request, self._most)
        except HTTPException as error:
            return await error_handlers.on_http_error(request, error)
        scope = make_replica_scope(request.scope, body)
        key = await asyncio.to_thread(self._keys.of, scope["path"], body)
        batches = self._replicas.answer.remote(scope, body, key=key)
        try:
            return Forwarded(scope, await anext(batches), batches)
        except LOST as error:
            return await error_handlers.on_tailrace_error(request, make_lost_error(error))
        except BaseException:
            batches.cancel()
            raise


class Forwarded(Response):
    """The messages of a replica as they arrive. If the replica is lost, a stream ends with an error event. Any other
    answer is cut off, so that no client takes it for complete."""

    def __init__(self, scope: Scope, first: list[Message], rest: Any) -> None:
        super().__init__()
        self._first, self._rest, self._form = first, rest, EVENT_FORMATS.get(scope["path"], PLAIN)
        headers = [(name, value) for name, value in first[0]["headers"] if name != REQUEST_ID.encode()]
        self._first[0]["headers"] = headers  # Ray adds the request's id again
        self._is_stream = dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for batch in self._pass_batches():
                for message in batch:
                    await send(message)
        finally:
            self._rest.cancel()

    async def _pass_batches(self) -> AsyncGenerator[list[Message], None]:
        yield self._first
        try:
            async for batch in self._rest:
                yield batch
        except LOST as error:
            problem = make_lost_error(error)
            if not self._is_stream:
                raise problem from error
            frame = self._form.frame(error_handlers.make_error_body(problem))
            yield [{"type": "http.response.body", "body": frame, "more_body": False}]


def make_lost_error(error: Exception) -> EngineDeadError:
    """Return the client's error for a lost replica."""
    log.error("a replica is lost: %s", error)
    return EngineDeadError("the replica that served the request is gone; try again")


def make_replica_scope(scope: Scope, body: bytes) -> dict[str, Any]:
    """Return the request's scope for the replica: the path below the application's route prefix, and a body that is
    complete and not compressed."""
    path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")) or "/"
    headers = [(name, value) for name, value in scope["headers"] if name not in OF_THE_CODING]
    if body:
        headers.append((b"content-length", str(len(body)).encode()))
    return {**{name: scope[name] for name in PASSED if name in scope}, "path": path, "headers": headers}
