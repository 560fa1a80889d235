"""Errors → HTTP, in one place: the status, OpenAI's error type (Anthropic's below /v1/messages), and whose fault it is.

Endpoints raise; `HANDLERS` turn the errors into answers. An error in the middle of a stream becomes an event by
`of_any`.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from tailrace import _cpu
from tailrace.api.anthropic_errors import anthropic_body, is_anthropic
from tailrace.api.listed_values import describe_values
from tailrace.api.rate_bucket import divide_up
from tailrace.api.request_id import id_of, write_id
from tailrace.api.schema.errors import ErrorBody, Problem
from tailrace.errors import (
    BY_CODE,
    MAX_CHARS,
    EngineError,
    GrammarError,
    ParameterError,
    RateLimitError,
    RequestError,
    TailraceError,
    format_json,
    shorten_text,
)
from tailrace.wire.messages import Failed

log = logging.getLogger(__name__)

CLIENT_GONE = 499  # for the access log; no client reads it
RETRY_AFTER_MS = 1000

# HTTP's own refusals: status → code
HTTP_CODES = {
    400: "bad_request",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    414: "uri_too_long",
    415: "unsupported_media_type",
    417: "expectation_failed",
    429: "too_many_connections",
    431: "header_fields_too_large",
    501: "not_implemented",
    503: "too_many_connections",
    505: "http_version_not_supported",
}
TRUNCATED = "Input data was truncated"  # msgspec's words

_encode = msgspec.json.Encoder().encode
_PATH = re.compile(r"^(?P<what>.*) - at `(?P<key>key in )?\$\.?(?P<path>.*)`$", re.DOTALL)
_QUOTED = re.compile(r"""^(?P<words>Invalid (?:enum )?value )(?P<value>['"].*)$""", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`")


def make_error_body(error: TailraceError) -> ErrorBody:
    """OpenAI's body for an error of ours."""
    return ErrorBody(Problem(str(error), error.type, getattr(error, "param", None), error.code))


def of_any(error: Exception) -> ErrorBody:
    """The body for any exception. For a bug of ours the log gets the traceback, and the client a plain sentence."""
    if isinstance(error, TailraceError):
        return make_error_body(error)
    log.error("a bug of ours", exc_info=error)
    return ErrorBody(
        Problem("internal error; the server's log says more", TailraceError.type, None, TailraceError.code)
    )


def of_failed(message: Failed, grammar_field: str = "grammar") -> TailraceError:
    """Return the error that the engine reported. grammar_field: the client's name of the grammar."""
    cls = BY_CODE.get(message.code, EngineError)
    if not issubclass(cls, RequestError):
        return cls(message.message)
    if message.param == "grammar":
        return rename_grammar_error(
            message.message, grammar_field, cls if issubclass(cls, GrammarError) else ParameterError
        )
    return cls(message.message, message.param)


def rename_grammar_error(message: str, field: str, kind: type[RequestError] = ParameterError) -> RequestError:
    """An error about a grammar, under the name of the field that the grammar came in."""
    text = message.removeprefix("grammar: ")
    if field in ("tools", "tool_choice") and not text.startswith(field):
        text = f"the schemas of these tools can't be enforced: {text}"
    return kind(text if text.startswith(field) else f"{field}: {text}", field)


def of_validation(error: msgspec.ValidationError, schema: type[msgspec.Struct] | None = None) -> ParameterError:
    """msgspec's error, with the field first: "max_tokens: expected `int | null`, got `str`". schema: of the body, for
    the values that a field may have."""
    text = str(error)
    at = _PATH.match(text)
    what, path = (at["what"], at["path"]) if at else (text, "")
    if quoted := _QUOTED.match(what):  # as Python writes it
        listed = describe_values(schema, path) if schema is not None else ""
        what = quoted["words"] + format_json(ast.literal_eval(quoted["value"]), MAX_CHARS) + listed
    missing = _MISSING.match(what)
    if missing:
        path, what = f"{path}.{missing['name']}".lstrip("."), "required, but missing"
    what = what[:1].lower() + what[1:]
    if path and what.startswith(path):  # it names the field itself
        return ParameterError(what, path)
    return ParameterError(f"{path}: {what}" if path else f"the body: {what}", path or None)


def of_json(error: Exception, raw: bytes) -> str:
    """Why a body is not valid JSON, in words for its author."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        try:
            raw.decode()
        except UnicodeDecodeError as where:
            return f"byte {where.start} is no UTF-8"
    *_, lone = _cpu.json_size(raw)
    if lone >= 0:
        return f"the escape at byte {lone} is half of a surrogate pair, which stands for nothing"
    return "it ends too early" if str(error) == TRUNCATED else str(error).removeprefix("JSON is malformed: ")


def make_error_response(
    scope: Scope,
    status: int,
    problem: ErrorBody,
    headers: Mapping[str, str] | None = None,
    request_id: str | None = None,
) -> Response:
    """An error as a response, in the shape of the endpoint that was asked. request_id: None is that of the headers."""
    shaped, id = problem, request_id or id_of(scope)
    if is_anthropic(scope):
        shaped = anthropic_body(problem, status, id)
    response = Response(_encode(shaped), status, headers, "application/json")
    write_id(response.headers, scope, id)
    return response


def error_response(scope: Scope, error: TailraceError, request_id: str | None = None) -> Response:
    """An error that tailrace raised on purpose. A fault of the server is logged, a fault of the caller is not."""
    if error.status >= 500:
        log.error("%s %s: %s", scope["method"], scope["path"], error)
    return make_error_response(scope, error.status, make_error_body(error), make_retry_headers(error), request_id)


def make_retry_headers(error: TailraceError) -> dict[str, str] | None:
    """When to try again: in seconds, and for OpenAI's and Anthropic's clients in milliseconds. None for an error that
    stays."""
    if error.status not in (429, 503):
        return None
    wait_ms = error.wait_ms if isinstance(error, RateLimitError) else RETRY_AFTER_MS
    return {"retry-after": str(divide_up(wait_ms, 1000)), "retry-after-ms": str(wait_ms)}


def of_http(status: int, message: str) -> ErrorBody:
    """An error of HTTP itself, in OpenAI's shape."""
    kind = RequestError.type if status < 500 else TailraceError.type
    return ErrorBody(Problem(shorten_text(message, MAX_CHARS), kind, None, HTTP_CODES.get(status, "http_error")))


def encode_error_response(status: int, message: str, path: str) -> bytes:
    """A whole HTTP answer as bytes, for a request that is refused; the connection ends with it.

    path: of the request, as far as it is known. The path decides on the shape of the answer."""
    problem = of_http(status, message)
    content = _encode(anthropic_body(problem, status) if is_anthropic({"path": path}) else problem)
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(content)}",
        "connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode() + content


async def on_tailrace_error(request: Request, error: Exception) -> Response:
    """An error of ours that no endpoint has answered."""
    assert isinstance(error, TailraceError)
    return error_response(request.scope, error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """No such path, wrong method, body too large: an error of HTTP in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    message = {
        404: f"there is no {path} here",
        405: f"{path} does not take {request.method}",
    }.get(error.status_code, error.detail)
    return make_error_response(request.scope, error.status_code, of_http(error.status_code, message), error.headers)


async def on_disconnect(request: Request, error: Exception) -> Response:
    """The client has disconnected: nobody reads this."""
    return Response(status_code=CLIENT_GONE)


async def on_bug(request: Request, error: Exception) -> Response:
    """A bug of ours."""
    return make_error_response(request.scope, 500, of_any(error))


HANDLERS: dict[Any, Any] = {
    TailraceError: on_tailrace_error,
    HTTPException: on_http_error,
    ClientDisconnect: on_disconnect,
    Exception: on_bug,
}
