"""Conversations as they are stored, and changes of them.

In a `Stored`, `body` is the conversation's JSON object and `messages` are its items. A change is data, so that the
front end whose memory has the conversation can make it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.api.schema.conversations import ConversationObject
from tailrace.api.stored import Stored

if TYPE_CHECKING:
    from tailrace.api.front_end import FrontEnd

NO_ITEM = b""  # the answer to a change whose item the conversation does not have


class ConversationChange(msgspec.Struct):
    """A change of a conversation.

    - append: items. remove: the id of an item. metadata: in place of those that it has; None: they stay.
    """

    append: list[dict[str, Any]] = []
    remove: str | None = None
    metadata: dict[str, str] | None = None


class ItemName(msgspec.Struct):
    """An item, of which only the id is read. A conversation can be as large as the store."""

    id: str


def apply_change(stored: Stored, change: ConversationChange) -> Stored | None:
    """Return the changed conversation; None if it does not have the item to remove."""
    items = msgspec.json.decode(stored.messages, type=list[msgspec.Raw])
    left = items if change.remove is None else [item for item in items if read_id(item) != change.remove]
    if change.remove is not None and len(left) == len(items):
        return None
    body = stored.body
    if change.metadata is not None:
        conversation = msgspec.json.decode(body, type=ConversationObject)
        conversation.metadata = change.metadata
        body = msgspec.json.encode(conversation)
    messages = msgspec.json.encode([*left, *change.append])
    return stored._replace(body=body, messages=messages, created=time.time())


def read_id(item: msgspec.Raw) -> str:
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
        return NO_ITEM
    share.put_entry(id, changed)
    return changed.body
