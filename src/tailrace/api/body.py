"""The body of a request → a schema struct, or an error that names what is wrong. Knows no endpoint.

msgspec checks the fields of the schema. Names and forms of other servers are read as the schema's fields
(aliases.py). Other fields are ignored, logged once per name and named in the answer's headers, or refused, as the
operator says. Fields that would have changed the answer, were they served, are always refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec
from starlette.requests import Request

from tailrace import _cpu
from tailrace.api import error_handlers
from tailrace.api.aliases import ALIASES, READ, RENAMED, resolve_aliases
from tailrace.api.body_bytes import read_raw
from tailrace.api.json_place import OUT_OF_RANGE, not_a_number, out_of_range
from tailrace.api.nested_names import Nested, collect_unknown, has_untyped, list_fields, make_strict
from tailrace.api.schema.common import TOLERATED, GenerateRequest
from tailrace.api.work_queue import JSON_BYTES
from tailrace.base.nearest import suggest_name
from tailrace.errors import ParameterError, RequestError, shorten_text

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

MAX_LOGGED_NAMES = 1000  # bounds the log, and the memory of what was logged
MAX_FIELDS = 1024  # of the outermost object
OTHERS = 4  # numbers that are decoded in the time of one string
MAX_UNKNOWN = 8  # unknown fields of a body that are named to the client
MAX_NAME = 64  # characters of such a name
MAX_NEUTRAL = 1024  # bytes; a longer value of a refused field is not neutral

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_names = msgspec.json.Decoder(float_hook=len).decode  # numbers beyond a double's range are no error
_INDEX = re.compile(r"\[\d+\]")
_logged: set[str] = set()


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
        self.schema = schema
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
        self._decode_strict = msgspec.json.Decoder(cast(type[T], make_strict(schema, fields, {}))).decode
        self._nested = {name: structs for name, structs in list_fields(schema).items() if structs}
        self._untyped = [field.name for field in msgspec.structs.fields(schema) if has_untyped(field.type)]

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
        names = BodyNames({}, {}) if names is None else names
        try:
            body = self._decode_strict(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._decode_lenient(raw, names)
        for name in self._unserved:
            if value := getattr(body, name):
                self._check_refused(name, value)
                setattr(body, name, None)  # a view of the whole body, which must not live as long as the request
        self._note_nested({name: value for name in self._untyped if (value := getattr(body, name))}, names)
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
                    note_unknown(name, name, self._suggested, names)
            body = self._decode(raw)
            nested = {name: _decode_names(fields[name]) for name in self._nested if name in fields}
            self._note_nested(nested, names)
            return body
        except msgspec.ValidationError as error:
            problem = out_of_range(error_handlers.of_validation(error, self.schema), raw)
            raise problem.rename_fields(names.used) from error
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

    def _note_nested(self, values: Mapping[str, Any], names: BodyNames) -> None:
        """Note the unknown names within the values of fields."""
        found: dict[tuple[Any, str], Nested] = {}
        for field, value in values.items():
            collect_unknown(self._nested[field], value, names.used.get(field, field), found, MAX_UNKNOWN)
        for place, name, known in found.values():
            note_unknown(f"{place}.{name}", name, known, names)

    def _check_refused(self, name: str, value: msgspec.Raw) -> None:
        if name not in self._refused:
            return
        if not is_neutral(value, self._refused[name]):
            neutral = " or ".join(msgspec.json.encode(value).decode() for value in self._refused[name])
            raise ParameterError(f"{name}: not supported; leave it out (or {neutral})", name)


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


def note_unknown(place: str, name: str, known: Sequence[str], names: BodyNames) -> None:
    """Log an unknown name, and note it for the client with a suggestion. place: the whole name."""
    log_once(_INDEX.sub("[]", place))
    if len(names.unknown) < MAX_UNKNOWN:
        names.unknown[place] = suggest_name(name[:MAX_NAME], known)


def log_once(name: str) -> None:
    """Log an unknown field the first time it is seen."""
    if name not in _logged and len(_logged) < MAX_LOGGED_NAMES:
        _logged.add(name)
        log.warning("unknown request field %.100r is ignored", name)
