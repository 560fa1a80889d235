"""A response as it is stored, in memory or in a file: its parts as bytes. Knows no store."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from tailrace.api.schema.response_items import OutputItem, OutputPart
from tailrace.api.schema.responses import Event, ResponseObject
from tailrace.errors import RequestNotFoundError, format_json
from tailrace.params import SamplingParams

ENTRY_BYTES = 1024  # about the memory of an entry besides its contents
CONVERSATION = "conv_"  # the prefix of a conversation's id
# the last event of a stream is one of these
LAST = tuple(f"event: response.{name}\n" for name in ("completed", "incomplete", "failed"))


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
    - messages: the items of the conversation and of the response, as JSON.
    - inputs: how many of the items the response answers.
    - frames: the events of its stream so far, by number; None if it was not streamed.
    - origin: an OutputOrigin in msgpack; b"" until the response is over.
    - items: the ids of its output.
    - created: when it began, in seconds since 1970.
    """

    body: bytes
    messages: bytes
    inputs: int
    frames: list[bytes] | None
    origin: bytes
    items: tuple[str, ...] = ()
    created: float = 0.0

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


def make_stored(
    response: ResponseObject,
    messages: list[dict[str, Any]],
    inputs: int,
    frames: list[bytes] | None,
    origin: OutputOrigin | None = None,
    created: float = 0.0,
) -> Stored:
    """Return the current response as it is stored: without its records. See Stored. (More than six parameters: they are
    the fields of Stored.)"""
    return Stored(
        msgspec.json.encode(plain_response(response)),
        msgspec.json.encode(messages),
        inputs,
        frames,
        b"" if origin is None else msgspec.msgpack.encode(origin),
        tuple(item.id for item in response.output),
        created,
    )


def find_output_item(body: bytes, id: str) -> bytes | None:
    """Return an item of the output of a response, both as JSON."""
    output = msgspec.json.decode(body, type=StoredOutput).output
    return next((bytes(raw) for raw in output if msgspec.json.decode(raw, type=StoredItem).id == id), None)


def is_last(frame: str) -> bool:
    """Return whether an event ends a stream."""
    return frame.startswith(LAST)


def select_frames(frames: list[bytes], number: int) -> list[str]:
    """Return the events from a number on. A reader of the events of a front end that has died since may be beyond the
    last event in the file. It gets that event, as its next one."""
    last = frames[-1].decode() if frames else ""
    if number >= len(frames) and is_last(last):
        mark = '"sequence_number":%d'
        return [last.replace(mark % (len(frames) - 1), mark % number, 1)]
    return [frame.decode() for frame in frames[number:]]


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


def check_response_id(id: str, param: str | None = None) -> None:
    """Raise RequestNotFoundError for the id of a conversation, which is stored beside the responses."""
    if id.startswith(CONVERSATION):
        raise make_missing_error(id, param)


def make_missing_error(id: str, param: str | None = None) -> RequestNotFoundError:
    """The error for a response that is not stored. param: the field that named it, if one did."""
    return RequestNotFoundError(f"no response {format_json(id, 200)} is stored", param)
