"""One request and what came back, as it came: status, headers, body or events with their times. Nothing is judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class StreamEvent:
    """One server-sent event. data: its text. after_s: seconds from the request to its arrival. parsed: its JSON, or
    None where it is none ([DONE] is none)."""

    data: str
    after_s: float
    parsed: Any = None


@dataclass
class Exchange:
    """A request and its answer. body: the JSON that was sent, or the text as it was sent where that is no JSON.

    status: 0 where no answer came. failure: what went wrong below HTTP ("timeout", "connection closed", …), else "".
    text: the answer's body, of a stream all its lines. parsed: the body's JSON, or None. events, comments: of a stream.
    """

    method: str
    path: str
    body: Any
    streamed: bool = False
    needs_key: bool = False
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = b""
    parsed: Any = None
    events: list[StreamEvent] = field(default_factory=list)
    comments: int = 0
    failure: str = ""
    elapsed_s: float = 0.0

    @property
    def ok(self) -> bool:
        """An answer of status 200 that came whole."""
        return self.status == 200 and not self.failure

    @property
    def refused(self) -> bool:
        """Whether the server refused the request clearly: a 4xx, or 501."""
        return (400 <= self.status < 500 and self.status != 429) or self.status == 501

    @property
    def text(self) -> str:
        """The answer's body; bytes that are no UTF-8 become U+FFFD."""
        return self.raw.decode(errors="replace")

    @property
    def done(self) -> bool:
        """The stream's last event is [DONE]."""
        return bool(self.events) and self.events[-1].data == "[DONE]"

    @property
    def error_message(self) -> str:
        """What the server says is wrong, in its own words, from whichever shape it has."""
        found = self.parsed
        for event in self.events:
            if isinstance(event.parsed, dict) and "error" in event.parsed:
                found = event.parsed
        if isinstance(found, dict):
            inner = found.get("error", found)
            if isinstance(inner, dict):
                inner = inner.get("message", inner.get("detail", inner))
            return inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
        return self.failure or self.text[:500]


class Refused(Exception):  # noqa: N818, no error: the law is not offered
    """The server refused a well-formed request of a law with a clear 4xx: the verdict is "not offered"."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__("the request was refused")
        self.exchange = exchange


class NoAnswer(Exception):  # noqa: N818
    """A well-formed request got a 5xx, a broken connection or nothing in time: the law can't be judged. The law
    "errors.no-5xx" judges the server for it."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__("the request was not answered")
        self.exchange = exchange
