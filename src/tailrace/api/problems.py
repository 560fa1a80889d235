"""Errors → HTTP answers in OpenAI's shape: {"error": {"message", "type", "param", "code"}}. The one place that does it."""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tailrace.errors import BY_CODE, EngineError, ParameterError, RequestError, TailraceError
from tailrace.wire.messages import Failed

log = logging.getLogger(__name__)


def body(error: TailraceError) -> bytes:
    """The JSON of an error; also what an error in mid-stream sends."""
    return msgspec.json.encode(
        {
            "error": {
                "message": str(error),
                "type": error.type,
                "param": getattr(error, "param", None),
                "code": error.code,
            }
        }
    )


def answer(error: TailraceError) -> Response:
    """The HTTP response of an error."""
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return Response(body(error), error.status, headers, "application/json")


def from_failed(event: Failed) -> TailraceError:
    """The error that a Failed message stands for."""
    kind = BY_CODE.get(event.code, EngineError)
    return kind(event.message, event.param) if issubclass(kind, RequestError) else kind(event.message)


def from_validation(error: msgspec.ValidationError) -> ParameterError:
    """msgspec's complaint, with the field it names."""
    found = re.search(r"at `\$\.?([^`]*)`", str(error))
    param = found.group(1) if found and found.group(1) else None
    what = str(error).split(" - at ")[0]
    return ParameterError(f"{param}: {what}" if param else what, param)


async def on_tailrace_error(request: Request, error: Exception) -> Response:
    """Ours."""
    assert isinstance(error, TailraceError)
    request.app.state.service.metrics.failed.labels(error.code).inc()
    if error.status >= 500:
        log.error("%s %s: %s", request.method, request.url.path, error)
    return answer(error)


class PathError(RequestError):
    """No such path or method; `status` is set per case."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
        self.code = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}.get(status, self.code)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    response = answer(PathError(f"{request.method} {request.url.path}: {error.detail}", error.status_code))
    response.headers.update(error.headers or {})
    return response


async def on_any_error(request: Request, error: Exception) -> Response:
    """Our bugs."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(EngineError(f"internal error: {type(error).__name__}"))


HANDLERS: dict[Any, Any] = {
    TailraceError: on_tailrace_error,
    HTTPException: on_http_error,
    Exception: on_any_error,
}
