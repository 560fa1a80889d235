"""The ingress: finds a request's key, and passes the answer on as it comes from the replica that the router chose."""

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
from tailrace.api.body import read_bytes
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
    """One or several; they share nothing but the list of replicas, which Ray keeps."""

    def __init__(self, replicas: DeploymentHandle, settings: Settings) -> None:
        config, self._blocks = settings.tailrace, settings.ray.route_blocks
        self._most = config.server.max_body_mib << 20
        models = [
            RoutedModel(one.name, one.tokenizer, one.config.cache.block_size, tuple(one.config.model.adapters))
            for one in (map(prepare, config.each()) if self._blocks else ())
        ]
        self._keys = PromptKeys(models, self._blocks, config.server.max_body_items)
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        """The answer of a replica, from its first message on.

        A request is sent to one replica. It is not tried again elsewhere: one that kills its replica would kill them
        all, one after the other. Clients try a 503 again by themselves.
        """
        try:
            body = await read_bytes(request, self._most)
        except HTTPException as error:
            return await error_handlers.on_http_error(request, error)
        scope = passed(request.scope, body)
        key = await asyncio.to_thread(self._keys.of, scope["path"], body)
        batches = self._replicas.answer.remote(scope, body, key=key)
        try:
            return Forwarded(scope, await anext(batches), batches)
        except LOST as error:
            return await error_handlers.on_tailrace_error(request, lost(error))
        except BaseException:
            batches.cancel()
            raise


class Forwarded(Response):
    """Messages of a replica as they come. If the replica is lost, a stream ends with an error event; another answer is
    cut off, so that no client takes it for whole."""

    def __init__(self, scope: Scope, first: list[Message], rest: Any) -> None:
        super().__init__()
        self._first, self._rest, self._form = first, rest, EVENT_FORMATS.get(scope["path"], PLAIN)
        headers = [(name, value) for name, value in first[0]["headers"] if name != REQUEST_ID.encode()]
        self._first[0]["headers"] = headers  # Ray adds the request's id again
        self._is_stream = dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for batch in self._batches():
                for message in batch:
                    await send(message)
        finally:
            self._rest.cancel()

    async def _batches(self) -> AsyncGenerator[list[Message], None]:
        yield self._first
        try:
            async for batch in self._rest:
                yield batch
        except LOST as error:
            problem = lost(error)
            if not self._is_stream:
                raise problem from error
            frame = self._form.frame(error_handlers.body(problem))
            yield [{"type": "http.response.body", "body": frame, "more_body": False}]


def lost(error: Exception) -> EngineDeadError:
    """What a client is told of a replica that is gone."""
    log.error("a replica is lost: %s", error)
    return EngineDeadError("the replica that served the request is gone; try again")


def passed(scope: Scope, body: bytes) -> dict[str, Any]:
    """What the replica is told of the request: the path below the application's route prefix; the body is there, and
    not compressed any more."""
    path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")) or "/"
    headers = [(name, value) for name, value in scope["headers"] if name not in OF_THE_CODING]
    if body:
        headers.append((b"content-length", str(len(body)).encode()))
    return {**{name: scope[name] for name in PASSED if name in scope}, "path": path, "headers": headers}
