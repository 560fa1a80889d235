"""Every error tailrace raises on purpose, grouped by its cause. Each has its HTTP status.

    TailraceError
    ├── RequestError                 the client's fault: 400
    │   ├── ParameterError           one field is out of range; also a ValueError
    │   ├── NothingLeftError         its own fields leave no token to draw: 400
    │   ├── GrammarError             the text can't follow the grammar any further: 400
    │   │   ├── DeadEndError             the vocabulary can't spell any continuation
    │   │   └── GrammarLimitError        it takes too much work for one step
    │   ├── CutShortError            its deadline has passed, or it was cancelled, and a part is no answer: 400
    │   ├── ContextLengthError       the prompt can never fit: 400, code context_length_exceeded
    │   ├── ModelNotFoundError       no such model: 404
    │   ├── RequestNotFoundError     no such request is running (or stored): 404
    │   └── AuthenticationError      no API key, or a wrong one: 401
    ├── RateLimitError               the user's limit is reached: 429, try later
    ├── ConfigError                  the operator's fault: refused at start
    │   ├── ModelLoadError           the model can't be found, fetched or loaded
    │   └── MissingExtraError        a package of an extra is not installed; also an ImportError
    ├── StorageError                 the file of stored responses can't be read or written: 503, try later
    └── EngineError                  the engine's fault: 500
        ├── RowError                 the logits of this one request are unusable (NaN, +inf, all masked)
        ├── OverloadedError          too many requests wait: 429, try later
        ├── NotReadyError            the engine is still starting, or the server is shutting down: 503, try later
        ├── MachineBusyError         other processes took the processor time for the request's work: 503, try later
        └── EngineDeadError          the engine process has ended: 503

Internal code raises. Only api/error_handlers.py turns an error into an HTTP answer. Only engine/step.py turns the error
of a single request into its `Failed` message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Self

MAX_CHARS = 2000  # characters of a message, which may quote megabytes from a client
MAX_PARAM_CHARS = 200


class TailraceError(Exception):
    """Base of all errors. `code` is the machine-readable word in messages between processes and in OpenAI's error
    body."""

    status = 500
    code = "internal_error"
    type = "server_error"

    def __str__(self) -> str:
        return shorten_text(super().__str__(), MAX_CHARS)


def shorten_text(text: str, limit: int) -> str:
    """Return the text, its middle cut out if it is longer than `limit`. Its beginning and end name the field and the
    reason."""
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[1 - limit // 2 :]}"


def format_json(value: object, limit: int = 100) -> str:
    """Return what a client sent as a message shows it: as JSON, at most `limit` characters, no control characters."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)[:limit]
    except (TypeError, ValueError, RecursionError):  # keys that are no texts, an integer of thousands of digits
        text = f"a value of type {type(value).__name__}"
    return escape_controls(text)[:limit]


def escape_controls(text: str) -> str:
    """Return the text as one line: what a terminal would obey, such as a line end in a name, is written as in JSON."""
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def describe_error(error: BaseException) -> str:
    """Return one line about an error that is not ours: its type and the first line of its text."""
    return f"{type(error).__name__}: {shorten_text(take_first_line(error, 'no reason given'), MAX_CHARS)}"


def is_shortage(error: BaseException) -> bool:
    """Return whether the machine lacks something, such as memory, room on a disk, or a thread."""
    return isinstance(error, OSError | MemoryError) or str(error) == "can't start new thread"


def take_first_line(error: BaseException, otherwise: str = "") -> str:
    """Return the first line of the error's text. Without a text: `otherwise`, or the name of the error's type."""
    return (str(error).strip().splitlines() or [otherwise or type(error).__name__])[0]


class RequestError(TailraceError):
    """The request can't be served.

    Args:
        param: the field at fault.
        mentions: other fields that the message names.
    """

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None, mentions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.param = None if param is None else shorten_text(param, MAX_PARAM_CHARS)
        self.mentions = tuple(mentions)

    @property
    def field(self) -> str:
        """The name in `param`, without the part inside the field; "" if the error has no field."""
        return re.split(r"[.\[]", self.param or "", maxsplit=1)[0]

    def rename_fields(self, names: Mapping[str, str]) -> Self:
        """Return the error with other names for its field and for those that it mentions. names: field → other name."""
        named = [field for field in dict.fromkeys((self.field, *self.mentions)) if field in names]
        if not named:
            return self
        text = re.sub(rf"\b({'|'.join(map(re.escape, named))})\b", lambda found: names[found[1]], str(self))
        mentions = [names.get(field, field) for field in self.mentions]
        for name in {name for name in mentions if mentions.count(name) > 1}:  # several fields have one name there
            text = re.sub(rf"\b{re.escape(name)}( or {re.escape(name)}\b)+", name, text)
        param = None if self.param is None else names.get(self.field, self.field) + self.param[len(self.field) :]
        return type(self)(text, param, mentions)


class ParameterError(RequestError, ValueError):
    """A parameter is out of range. The message names the field, the range and the given value."""

    code = "invalid_value"


def nest_error(outer: str, error: RequestError) -> ParameterError:
    """Return the error of a field inside the field `outer`. It names both fields."""
    text, inner = str(error), error.param
    if inner is None:
        return ParameterError(f"{outer}: {text.removeprefix('the body: ')}", outer)
    return ParameterError(f"{outer}.{text}" if text.startswith(inner) else f"{outer}: {text}", f"{outer}.{inner}")


class NothingLeftError(RequestError):
    """The request's own fields leave no token to draw."""

    code = "no_token_left"


class GrammarError(RequestError):
    """The text can't follow the request's grammar any further."""

    def __init__(self, message: str, param: str | None = "grammar", mentions: Sequence[str] = ()) -> None:
        super().__init__(message, param, mentions)


class DeadEndError(GrammarError):
    """The vocabulary can't spell any continuation here."""

    code = "grammar_dead_end"


class GrammarLimitError(GrammarError):
    """The grammar takes too much work for one step."""

    code = "grammar_limit"


class CutShortError(RequestError):
    """Its deadline passed or someone cancelled it, and the part so far is no answer."""

    code = "cut_short"


class ContextLengthError(RequestError):
    """Prompt and output can't fit the model's context or the KV cache, now or ever."""

    code = "context_length_exceeded"


class ModelNotFoundError(RequestError):
    """The server has no model of this name."""

    status = 404
    code = "model_not_found"


class RequestNotFoundError(RequestError):
    """No request of this id is running or stored."""

    status = 404
    code = "request_not_found"


class AuthenticationError(RequestError):
    """The server needs an API key, and the request has none of its keys."""

    status = 401
    code = "invalid_api_key"


class RateLimitError(TailraceError):
    """The request's user has reached a limit of the operator. No field is at fault.

    Args:
        kind: of the limit, as OpenAI has it in the error's type: "requests" or "tokens".
        wait_ms: after which the request would be within the limit.
    """

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, kind: str = "requests", wait_ms: int = 1000) -> None:
        super().__init__(message)
        self.type, self.wait_ms = kind, wait_ms


class ConfigError(TailraceError):
    """A flag, an environment variable or a configuration file has an impossible value."""

    code = "invalid_config"


class ModelLoadError(ConfigError):
    """The model can't be found, fetched, converted or loaded."""

    code = "model_load_failed"


class MissingExtraError(ConfigError, ImportError):
    """A package of an extra (base/extras.py) is not installed. The message has the command that installs it."""


class StorageError(TailraceError):
    """The file of stored responses can't be read or written."""

    status = 503
    code = "storage_error"


class EngineError(TailraceError):
    """A failure of the engine."""

    code = "engine_error"


class RowError(EngineError):
    """This request's logits have no defined distribution: NaN, +inf, or every token masked."""

    code = "invalid_logits"


class OverloadedError(EngineError):
    """Too many requests are waiting."""

    status = 429
    code = "overloaded"
    type = "rate_limit_error"


class NotReadyError(EngineError):
    """The engine is still starting, or the server is shutting down and refuses new requests."""

    status = 503
    code = "not_ready"


class MachineBusyError(EngineError):
    """A process of ours got almost no processor time, so its work was given up. The request is not to blame."""

    status = 503
    code = "machine_busy"


class EngineDeadError(EngineError):
    """The engine process died or never started. Every open stream ends with this error."""

    status = 503
    code = "engine_dead"


BY_CODE: dict[str, type[TailraceError]] = {
    cls.code: cls
    for cls in (
        RequestError,
        ParameterError,
        NothingLeftError,
        CutShortError,
        ContextLengthError,
        ModelNotFoundError,
        RequestNotFoundError,
        AuthenticationError,
        RateLimitError,
        ConfigError,
        ModelLoadError,
        EngineError,
        RowError,
        DeadEndError,
        GrammarLimitError,
        OverloadedError,
        NotReadyError,
        MachineBusyError,
        EngineDeadError,
    )
}
