"""Responses stored for retrieval, in a share per user. Bounded in number and bytes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET

from tailrace.api.schema.responses import Event, OutputItem, OutputPart, ResponseObject
from tailrace.errors import RequestNotFoundError, format_json
from tailrace.params import SamplingParams

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20
ENTRY_BYTES = 1024  # about the memory of an entry besides its contents


class OutputOrigin(msgspec.Struct, frozen=True):
    """An output's token ids and all that explains them: the model's name, the prompt, the parameters and the noise key.
    Without a key the seed gives it. cache_salt: of its request."""

    model: str
    prompt: list[int]
    params: SamplingParams
    key: int | None
    output: list[int]
    cache_salt: str = ""


origins = msgspec.msgpack.Decoder(OutputOrigin)


class Stored(NamedTuple):
    """A stored response.

    - body: the response as JSON.
    - messages: the conversation up to the response, as the chat template takes it, as JSON.
    - inputs: how many of the messages the response answers.
    - frames: the events of its stream so far, by number; None if it was not streamed.
    - origin: an OutputOrigin in msgpack; b"" until the response is over.
    - items: the ids of its output.
    """

    body: bytes
    messages: bytes
    inputs: int
    frames: list[bytes] | None
    origin: bytes
    items: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return ENTRY_BYTES + len(self.body) + len(self.messages) + len(self.origin) + sum(map(len, self.frames or ()))


class StoredOutput(msgspec.Struct):
    """What is read of a stored response to find an item."""

    output: list[msgspec.Raw]


class StoredItem(msgspec.Struct):
    """What is read of each item."""

    id: str


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
    """The stored responses of all users, in one share per user. One per front end.

    A user has at most `max_responses`. If all users together have more than `max_bytes`, the largest share drops its
    least recently used response. So a user with at most an equal part of the bytes loses no response to other users.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self.max_responses, self.max_bytes = max_responses, max_bytes
        self._known: WeakValueDictionary[str, ResponseShare] = WeakValueDictionary()
        self._filled: dict[str, ResponseShare] = {}  # keeps the shares that hold a response
        self.bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._filled.values()))

    def share_of(self, user: str) -> ResponseShare:
        """Return the share of this user, which may be empty."""
        share = self._known.get(user)
        if share is None:
            share = self._known[user] = ResponseShare(self, user)
        return share

    def count_bytes(self, share: ResponseShare, change: int) -> None:
        """Add a change to the bytes of a share that has changed."""
        share.bytes += change
        self.bytes += change
        if len(share):
            self._filled[share.user] = share
        else:
            self._filled.pop(share.user, None)

    def trim(self) -> None:
        """Drop what is beyond the limit of all users together."""
        while self.bytes > self.max_bytes:
            max(self._filled.values(), key=lambda filled: filled.bytes).drop_oldest()


class ResponseShare:
    """The stored responses of one user, the least recently used first."""

    def __init__(self, store: ResponseStore, user: str) -> None:
        self.user, self.bytes = user, 0
        self._store = store
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._of_item: dict[str, str] = {}  # the id of an output's item → the id of its response
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

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
        """Store the current response without its records. It replaces an earlier state, whose events stay. inputs: see
        Stored."""
        before = self._stored.get(response.id)
        frames = ([] if streamed else None) if before is None else before.frames
        self.discard(response.id)
        made = b"" if origin is None else msgspec.msgpack.encode(origin)
        body = msgspec.json.encode(plain_response(response))
        items = tuple(item.id for item in response.output)
        entry = Stored(body, msgspec.json.encode(messages), inputs, frames, made, items)
        if len(self) >= self._store.max_responses:
            self.drop_oldest()
        self._stored[response.id] = entry
        self._of_item |= dict.fromkeys(items, response.id)
        self._store.count_bytes(self, entry.size)
        self._store.trim()

    def record(self, id: str, frame: bytes) -> None:
        """Add an event, if the response is stored and was streamed."""
        entry = self._stored.get(id)
        if entry is not None and entry.frames is not None:
            entry.frames.append(frame)
            self._store.count_bytes(self, len(frame))
            self._store.trim()
            self._wake_waiters(id)

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

    def _wake_waiters(self, id: str) -> None:
        for change in self._waiting.pop(id, ()):
            if not change.done():
                change.set_result(None)

    def get(self, id: str) -> Stored:
        """Return the stored response, and count it as used.

        Raises:
            RequestNotFoundError: it is not stored (any more).
        """
        if id not in self._stored:
            raise make_missing_error(id)
        self._stored.move_to_end(id)
        return self._stored[id]

    def discard(self, id: str) -> None:
        """Drop it, if it is stored."""
        entry = self._stored.pop(id, None)
        if entry is not None:
            for item in entry.items:
                self._of_item.pop(item, None)
            self._store.count_bytes(self, -entry.size)
            self._wake_waiters(id)

    def drop_oldest(self) -> None:
        """Drop the least recently used response."""
        self.discard(next(iter(self._stored)))

    def get_item(self, id: str) -> bytes | None:
        """Return an item of a stored output as JSON; None if it is not stored (any more)."""
        if id not in self._of_item:
            return None
        body = msgspec.json.decode(self.get(self._of_item[id]).body, type=StoredOutput)
        return next((bytes(raw) for raw in body.output if msgspec.json.decode(raw, type=StoredItem).id == id), None)


def make_missing_error(id: str, param: str | None = None) -> RequestNotFoundError:
    """The error for a response that is not stored. param: the field that named it, if one did."""
    return RequestNotFoundError(f"no response {format_json(id, 200)} is stored", param)
