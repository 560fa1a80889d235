"""The body of a request → a schema struct, or an error that names what is wrong. Knows no endpoint.

msgspec checks the fields of the schema. Names and forms of other servers are read as the schema's fields
(aliases.py). Other fields are ignored, logged once per name and named in the answer's headers, or refused, as the
operator says. Fields that would have changed the answer, were they served, are always refused.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tailrace import _cpu
from tailrace.api import error_handlers
from tailrace.api.aliases import ALIASES, READ, RENAMED, resolve_aliases
from tailrace.api.json_place import OUT_OF_RANGE, not_a_number, out_of_range
from tailrace.api.schema.common import TOLERATED, GenerateRequest
from tailrace.api.work_queue import JSON_BYTES
from tailrace.base.memory_trim import trim_memory
from tailrace.base.nearest import suggest_name
from tailrace.errors import ParameterError, RequestError, shorten_text

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

MAX_LOGGED_NAMES = 1000  # bounds the log, and the memory of what was logged
CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")
WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # content coding → zlib's wbits
PIECE = 1 << 18  # bytes unpacked at once; other tasks run in between
LARGE = 1 << 18  # bytes; after larger bodies the C library keeps much of the memory
QUIET_S = 1.0
MAX_FIELDS = 1024  # of the outermost object
OTHERS = 4  # numbers that are decoded in the time of one string
MAX_UNKNOWN = 8  # unknown fields of a body that are named to the client
MAX_NAME = 64  # characters of such a name
MAX_NEUTRAL = 1024  # bytes; a longer value of a refused field is not neutral

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_logged: set[str] = set()
_giving_back: asyncio.TimerHandle | None = None


class BodyNames(NamedTuple):
    """The names of a body's fields. used: field → the name that the body has for it. unknown: names that nobody knows,
    each with a suggestion."""

    used: dict[str, str]
    unknown: dict[str, str]


class Body(NamedTuple, Generic[T]):
    """A body that has been read. size: its bytes."""

    ask: T
    size: int
    names: BodyNames


class BodyReader(Generic[T]):
    """Reads bodies of one schema. `refused`: field → values at which it asks for nothing. others: fields that are read
    elsewhere."""

    def __init__(
        self, schema: type[T], refused: Mapping[str, tuple[Any, ...]], others: frozenset[str] = frozenset()
    ) -> None:
        self._decode = msgspec.json.Decoder(schema).decode
        self._fields = frozenset(schema.__struct_fields__)
        self._aliased = issubclass(schema, GenerateRequest)
        self._known = self._fields | TOLERATED | others
        self._refused = refused
        self._suggested = sorted(self._fields | (RENAMED.keys() if self._aliased else set()))
        unserved = sorted((TOLERATED | others | refused.keys()) - self._fields)
        self._unserved = [name for name in unserved if name.isidentifier()]  # a field of a struct has such a name
        # The schema and the fields that are known but not served: nearly every body is read by this alone, in one pass.
        fields = [(name, msgspec.Raw, None) for name in self._unserved]
        strict = msgspec.defstruct(schema.__name__, fields, bases=(schema,), kw_only=True, forbid_unknown_fields=True)
        self._decode_strict = msgspec.json.Decoder(cast(type[T], strict)).decode

    async def read(self, request: Request) -> Body[T]:
        """The decoded body.

        Raises:
            HTTPException: 413, 415.
            ParameterError: naming the field.
            RequestError: it is no JSON object.
        """
        return await self.decode(request, await read_raw(request))

    async def decode(self, request: Request, raw: bytes) -> Body[T]:
        """The same of bytes that have been read."""
        front, names = request.app.state.front, BodyNames({}, {})
        size = len(raw) // JSON_BYTES
        ask = await front.work_queue.run(request, lambda: self.decoded(raw, front.config.max_body_items, names), size)
        if names.unknown and front.config.unknown_fields == "refuse":
            raise make_unknown_error(names.unknown)
        return Body(ask, len(raw), names)

    def decoded(self, raw: bytes, max_items: int, names: BodyNames | None = None) -> T:
        """See `read`. Decoding holds the interpreter's lock to its end, so the size of the body is checked first.
        names: gets the names of the body's fields."""
        check_items(raw, max_items)
        try:
            body = self._decode_strict(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._decode_lenient(raw, BodyNames({}, {}) if names is None else names)
        for name in self._unserved:
            if value := getattr(body, name):
                self._check_refused(name, value)
                setattr(body, name, None)  # a view of the whole body, which must not live as long as the request
        return body

    def _decode_lenient(self, raw: bytes, names: BodyNames) -> T:
        """A body with names of other servers, with fields that nobody knows, or one that is refused: then the error
        names what is wrong."""
        try:
            fields = _decode_fields(raw)
            if self._aliased:
                fields, raw = self._resolve_fields(fields, raw, names.used)
            for name in (name for name in fields if name not in self._known):
                if name in self._refused:
                    self._check_refused(name, fields[name])
                else:
                    log_once(name)
                    if len(names.unknown) < MAX_UNKNOWN:
                        names.unknown[name] = suggest_name(name[:MAX_NAME], self._suggested)
            return self._decode(raw)
        except msgspec.ValidationError as error:
            raise out_of_range(error_handlers.of_validation(error), raw).rename_fields(names.used) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if named := not_a_number(error, raw):
                raise named from error
            raise RequestError(f"the body is not valid JSON: {error_handlers.of_json(error, raw)}") from error

    def _resolve_fields(
        self, fields: dict[str, msgspec.Raw], raw: bytes, used: dict[str, str]
    ) -> tuple[dict[str, msgspec.Raw], bytes]:
        """The fields without other servers' names, and the body with them."""
        given = {name: decode_value(name, value) for name, value in fields.items() if name in READ}
        made, names = resolve_aliases(given, self._fields)
        used |= names
        rest = {name: value for name, value in fields.items() if name in self._fields or name not in ALIASES}
        if not made and len(rest) == len(fields):
            return fields, raw
        rest |= {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in made.items()}
        return rest, msgspec.json.encode(rest)

    def _check_refused(self, name: str, value: msgspec.Raw) -> None:
        if name not in self._refused:
            return
        if not is_neutral(value, self._refused[name]):
            neutral = " or ".join(msgspec.json.encode(value).decode() for value in self._refused[name])
            raise ParameterError(f"{name}: not supported; leave it out (or {neutral})", name)


async def read_raw(request: Request) -> bytes:
    """The bytes of the body.

    Raises:
        HTTPException: 413, 415.
    """
    check_content_type(request)
    raw = await read_bytes(request, request.app.state.front.config.max_body_mib << 20)
    if len(raw) > LARGE:
        give_back_later()
    return raw


def give_back_later() -> None:
    """Return the memory of large bodies to the system, in a thread, once none has come for QUIET_S."""
    global _giving_back
    if _giving_back is not None:
        _giving_back.cancel()
    loop = asyncio.get_running_loop()
    _giving_back = loop.call_later(QUIET_S, loop.run_in_executor, None, trim_memory)


def check_content_type(request: Request) -> None:
    """The body must be declared as JSON in UTF-8, else 415. A page of another site can send other types without a CORS
    preflight."""
    kind, *parameters = request.headers.get("content-type", "").lower().split(";")
    if kind.strip() != "application/json" and not (
        kind.strip().startswith("application/") and kind.strip().endswith("+json")
    ):
        given = f"not {kind.strip()[:100]}" if kind else "and it is not given"
        raise HTTPException(
            415,
            f"the header content-type must be application/json, {given}; with curl: -H 'content-type: "
            f"application/json'",
        )
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' \t"') not in CHARSETS:
            raise HTTPException(415, f"the charset must be utf-8, not {value.strip()[:100]}")


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body. More than `limit` bytes are a 413, before they are kept in memory."""
    too_large = HTTPException(413, f"the body must be at most {limit} bytes", {"connection": "close"})
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    parts, size = [], 0
    async for part in decompress_body(request):
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def decompress_body(request: Request) -> AsyncGenerator[bytes, None]:
    """The body in pieces, decompressed; where it was compressed, a piece has at most PIECE bytes.

    Raises:
        HTTPException: 400: the data is not of the coding it names. 415: an unknown coding, or several.
    """
    coding = ", ".join(request.headers.getlist("content-encoding")).strip().lower()
    if coding in ("", "identity"):
        async for part in request.stream():
            yield part
        return
    if coding not in WINDOWS:
        known = "gzip, deflate, identity"
        raise HTTPException(
            415, f"the content encoding must be one of {known}, not {coding[:100]}", {"accept-encoding": known}
        )
    inflate = zlib.decompressobj(WINDOWS[coding])
    try:
        async for part in request.stream():
            while part and not inflate.eof:
                yield inflate.decompress(part, PIECE)
                part = inflate.unconsumed_tail
                await asyncio.sleep(0)
            if part or inflate.unused_data:
                raise HTTPException(400, f"the body goes on behind the end of its {coding} data")
        if not inflate.eof:
            raise HTTPException(400, f"the body ends before its {coding} data does")
    except zlib.error as error:
        raise HTTPException(400, f"the body is not {coding}: {error}") from error


def check_items(raw: bytes, limit: int) -> None:
    """Raise RequestError for JSON that would take long to decode. Counted in one pass, without the interpreter's
    lock."""
    fields, parts, values, _ = _cpu.json_size(raw)
    if fields > MAX_FIELDS:
        raise RequestError(f"the body: at most {MAX_FIELDS} fields are taken, got {fields}")
    if parts > limit or values > OTHERS * limit:
        raise RequestError(
            f"the body: at most {limit} objects, lists and strings are taken at once, and {OTHERS * limit} other "
            f"values (--max-body-items), got {parts} and {values}"
        )


def is_neutral(value: msgspec.Raw, neutral: tuple[Any, ...]) -> bool:
    """Return whether the value is one of the neutral values. A number that no double can be is none."""
    text = bytes(value)
    try:
        return len(text) <= MAX_NEUTRAL and msgspec.json.decode(text) in neutral
    except msgspec.ValidationError:
        return False


def decode_value(name: str, value: msgspec.Raw) -> Any:
    """Return the value of a field.

    Raises:
        ParameterError: it holds a number that no double can be.
    """
    try:
        return msgspec.json.decode(value)
    except msgspec.ValidationError as error:
        within = f"{name}{error_handlers.of_validation(error).param or ''}"
        body = msgspec.json.encode({name: value})
        raise out_of_range(ParameterError(f"{within}: {OUT_OF_RANGE}", within), body) from error


def make_unknown_error(unknown: Mapping[str, str]) -> ParameterError:
    """Return the error for fields that nobody knows. unknown: name → suggestion."""
    name, suggestion = next(iter(unknown.items()))
    return ParameterError(f"{shorten_text(name, MAX_NAME)}: unknown field{suggestion}", name)


def log_once(name: str) -> None:
    """Log an unknown field the first time it is seen."""
    if name not in _logged and len(_logged) < MAX_LOGGED_NAMES:
        _logged.add(name)
        log.warning("unknown request field %.100r is ignored", name)
