"""Responses stored for retrieval. Bounded in number and bytes; the oldest are dropped first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec

from tailrace.api.schema.responses import ResponseObject
from tailrace.errors import RequestNotFoundError

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20


class Stored(NamedTuple):
    """body: the response as JSON. messages: the conversation up to it, as the chat template takes it, also as JSON."""

    body: bytes
    messages: bytes


class ResponseStore:
    """One per front end."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._limits = (max_responses, max_bytes)
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, id: str) -> bool:
        return id in self._stored

    def put(self, response: ResponseObject, messages: list[dict[str, Any]]) -> None:
        """Store the response as it is now, in place of an earlier state."""
        self.discard(response.id)
        entry = Stored(msgspec.json.encode(response), msgspec.json.encode(messages))
        self._stored[response.id] = entry
        self.bytes += len(entry.body) + len(entry.messages)
        while len(self._stored) > self._limits[0] or self.bytes > self._limits[1]:
            self.discard(next(iter(self._stored)))

    def get(self, id: str) -> Stored:
        """The stored response.

        Raises:
            RequestNotFoundError: it is not stored (any more).
        """
        if id not in self._stored:
            raise missing(id)
        return self._stored[id]

    def discard(self, id: str) -> None:
        """Drop it, if it is stored."""
        entry = self._stored.pop(id, None)
        if entry is not None:
            self.bytes -= len(entry.body) + len(entry.messages)


def missing(id: str, param: str | None = None) -> RequestNotFoundError:
    """The error for a response that is not stored. param: the field that named it, if one did."""
    return RequestNotFoundError(f"no response {id[:200]!r} is stored", param)
