"""The request's body → a schema struct, or an error that names what is wrong. Knows no endpoint.

Fields of the schema are checked by msgspec. Fields beyond it are ignored, and logged once per name, unless they would
have changed the answer: those are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tailrace.api import problems
from tailrace.api.schema.common import TOLERATED
from tailrace.errors import ParameterError, RequestError

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

MAX_LOGGED_NAMES = 1000  # so that nobody can fill the log, or the memory of it
FORM = "application/x-www-form-urlencoded"  # what `curl -d` says of any body

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_logged: set[str] = set()


class BodyReader(Generic[T]):
    """Reads bodies of one schema. `refused`: field → values at which it asks for nothing."""

    def __init__(self, schema: type[T], refused: Mapping[str, tuple[Any, ...]]) -> None:
        self._decode = msgspec.json.Decoder(schema).decode
        self._known = frozenset(schema.__struct_fields__) | TOLERATED
        self._refused = refused

    async def read(self, request: Request) -> T:
        """The decoded body.

        Raises:
            HTTPException: 413, 415.
            ParameterError: naming the field.
            RequestError: it is no JSON object.
        """
        check_content_type(request)
        raw = await read_bytes(request, request.app.state.service.config.max_body_mib << 20)
        try:
            fields = _decode_fields(raw)
            self._check_fields(fields)
            return self._decode(raw)
        except msgspec.ValidationError as error:
            raise problems.of_validation(error) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(f"the body is not valid JSON: {error}") from error

    def _check_fields(self, fields: dict[str, msgspec.Raw]) -> None:
        for name in fields.keys() - self._known:
            if name not in self._refused:
                log_once(name)
            elif msgspec.json.decode(fields[name]) not in self._refused[name]:
                neutral = " or ".join(msgspec.json.encode(value).decode() for value in self._refused[name])
                raise ParameterError(f"{name}: not supported; leave it out (or {neutral})", name)


def check_content_type(request: Request) -> None:
    """JSON, nothing, or what `curl -d` sends by default; anything else is a 415."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind not in ("", "application/json", FORM) and not kind.endswith("+json"):
        raise HTTPException(415, f"the content type must be application/json, not {kind}")


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body, at most `limit` bytes of it; more is a 413, before it is held."""
    too_large = HTTPException(413, f"the body must be at most {limit} bytes", {"connection": "close"})
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def log_once(name: str) -> None:
    """Say that a field is unknown, the first time it is seen."""
    if name not in _logged and len(_logged) < MAX_LOGGED_NAMES:
        _logged.add(name)
        log.warning("unknown request field %.100r is ignored", name)
