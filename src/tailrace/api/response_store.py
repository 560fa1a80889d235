"""Responses stored for retrieval. Bounded in number and bytes; the oldest are dropped first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from tailrace.api.schema.responses import Event, OutputItem, OutputPart, ResponseObject
from tailrace.errors import RequestNotFoundError
from tailrace.params import SamplingParams

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20


class OutputOrigin(msgspec.Struct, frozen=True):
    """What an output came from, so that it can be explained: the model's name, the prompt, the parameters, and the key
    of the noise; and the output's token ids. key: None: it comes from the seed."""

    model: str
    prompt: list[int]
    params: SamplingParams
    key: int | None
    output: list[int]


origins = msgspec.msgpack.Decoder(OutputOrigin)


class Stored(NamedTuple):
    """body: the response as JSON. messages: the conversation up to it, as the chat template takes it, also as JSON;
    inputs: how many of them the response answers. frames: the events of its stream so far, by number; None where it was
    not streamed. origin: an OutputOrigin in msgpack; b"" until the response is over."""

    body: bytes
    messages: bytes
    inputs: int
    frames: list[bytes] | None
    origin: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.body) + len(self.messages) + len(self.origin) + sum(map(len, self.frames or ()))


def without_records(event: Event) -> Event:
    """The event as it is stored: records of why tokens came are large, an event after the other repeats them, and they
    can be made again (POST /v1/explain)."""
    if event.explanations is UNSET and event.part is UNSET and event.item is UNSET and event.response is UNSET:
        return event
    return msgspec.structs.replace(
        event,
        explanations=UNSET,
        part=event.part if event.part is UNSET else plain_part(event.part),
        item=event.item if event.item is UNSET else plain_item(event.item),
        response=event.response if event.response is UNSET else plain_response(event.response),
    )


def plain_response(response: ResponseObject) -> ResponseObject:
    """Without records."""
    return msgspec.structs.replace(response, output=[plain_item(item) for item in response.output])


def plain_item(item: OutputItem) -> OutputItem:
    """Without records."""
    return msgspec.structs.replace(item, content=[plain_part(part) for part in item.content]) if item.content else item


def plain_part(part: OutputPart) -> OutputPart:
    """Without records."""
    return part if part.explanations is UNSET else msgspec.structs.replace(part, explanations=UNSET)


class ResponseStore:
    """One per front end."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._limits = (max_responses, max_bytes)
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, id: str) -> bool:
        return id in self._stored

    def put(
        self,
        response: ResponseObject,
        messages: list[dict[str, Any]],
        inputs: int = 0,
        streamed: bool = False,
        origin: OutputOrigin | None = None,
    ) -> None:
        """Store the response as it is now without its records, in place of an earlier state, whose events stay. inputs:
        see Stored."""
        before = self._stored.get(response.id)
        frames = ([] if streamed else None) if before is None else before.frames
        self.discard(response.id)
        made = b"" if origin is None else msgspec.msgpack.encode(origin)
        body = msgspec.json.encode(plain_response(response))
        entry = Stored(body, msgspec.json.encode(messages), inputs, frames, made)
        self._stored[response.id] = entry
        self.bytes += entry.size
        self._trim()

    def record(self, id: str, frame: bytes) -> None:
        """Add an event, if the response is stored and was streamed."""
        entry = self._stored.get(id)
        if entry is not None and entry.frames is not None:
            entry.frames.append(frame)
            self.bytes += len(frame)
            self._trim()
            self._wake(id)

    async def beyond(self, id: str, number: int) -> None:
        """Wait until the stream of the response has more than `number` events, or it is not stored (any more)."""
        while (entry := self._stored.get(id)) is not None and len(entry.frames or ()) <= number:
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(id, set())
            waiting.add(change)
            try:
                await change
            finally:
                waiting.discard(change)

    def _wake(self, id: str) -> None:
        for change in self._waiting.pop(id, ()):
            if not change.done():
                change.set_result(None)

    def _trim(self) -> None:
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
            self.bytes -= entry.size
            self._wake(id)


def missing(id: str, param: str | None = None) -> RequestNotFoundError:
    """The error for a response that is not stored. param: the field that named it, if one did."""
    return RequestNotFoundError(f"no response {id[:200]!r} is stored", param)
