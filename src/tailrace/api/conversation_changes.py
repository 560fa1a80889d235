"""Conversations as they are stored, and changes of them.

In a `Stored`, `body` is the conversation's JSON object and `messages` are its items, without white space between them.
A change is data, so that the front end whose memory has the conversation can make it. It does so on its event loop:
there bytes are copied, and items that are stored are not decoded.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.api.schema.conversations import ConversationObject
from tailrace.api.stored import Stored

if TYPE_CHECKING:
    from tailrace.api.front_end import FrontEnd

MOVED = b""  # the answer to a change whose item is not at its place (any more)


class ItemPlace(msgspec.Struct, frozen=True):
    """An item, and where its JSON begins and ends among the bytes of all items."""

    id: str
    begin: int
    end: int


class ConversationChange(msgspec.Struct):
    """A change of a conversation.

    - append: items. remove: where an item stands. metadata: in place of those that it has; None: they stay.
    """

    append: list[dict[str, Any]] = []
    remove: ItemPlace | None = None
    metadata: dict[str, str] | None = None


class ItemName(msgspec.Struct):
    """An item, of which only the id is read. A conversation can be as large as the store."""

    id: str


def apply_change(stored: Stored, change: ConversationChange) -> Stored | None:
    """Return the changed conversation; None if the item to remove is not at its place."""
    messages = stored.messages
    if change.remove is not None:
        if not stands_at(messages, change.remove):
            return None
        messages = cut_item(messages, change.remove)
    if change.append:
        more = msgspec.json.encode(change.append)
        messages = more if messages == b"[]" else messages[:-1] + b"," + more[1:]
    body = stored.body
    if change.metadata is not None:
        conversation = msgspec.json.decode(body, type=ConversationObject)
        conversation.metadata = change.metadata
        body = msgspec.json.encode(conversation)
    return stored._replace(body=body, messages=messages, created=time.time())


def find_item(messages: bytes, id: str) -> ItemPlace | None:
    """Return where the item with this id stands; None if there is none. Takes long where there are many items."""
    begin = 1
    for item in msgspec.json.decode(messages, type=list[msgspec.Raw]):
        end = begin + len(bytes(item))
        if read_id(item) == id:
            return ItemPlace(id, begin, end)
        begin = end + 1
    return None


def stands_at(messages: bytes, place: ItemPlace) -> bool:
    """Return whether the item stands at this place. Another one may have been removed before it."""
    try:
        return read_id(messages[place.begin : place.end]) == place.id
    except msgspec.DecodeError:
        return False


def cut_item(messages: bytes, place: ItemPlace) -> bytes:
    """Return the items without the one at this place, and without a comma beside it."""
    first = place.begin == 1
    begin = place.begin if first else place.begin - 1
    end = place.end + 1 if first and messages[place.end] != ord("]") else place.end
    return messages[:begin] + messages[end:]


def read_id(item: msgspec.Raw | bytes) -> str:
    """Return the id of an item."""
    return msgspec.json.decode(item, type=ItemName).id


def change_in_memory(front: FrontEnd, user: str, argument: str) -> bytes | None:
    """Change a conversation in the memory of this front end. Return its object; None if it is not here."""
    id, _, change = argument.partition(" ")
    share = front.responses.share_of(user)
    stored = share.find(id)
    if stored is None:
        return None
    changed = apply_change(stored, msgspec.json.decode(change, type=ConversationChange))
    if changed is None:
        return MOVED
    share.put_entry(id, changed)
    return changed.body
