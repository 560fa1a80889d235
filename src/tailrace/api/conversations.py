"""Conversations: items that responses continue and extend. They are stored as responses are, in the same store. See
conversation_changes.py for their form."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request

from tailrace.api.conversation_changes import MOVED, ConversationChange, apply_change, find_item
from tailrace.api.front_end import front_of
from tailrace.api.item_messages import message_of
from tailrace.api.kept_items import keep_item, keep_output, name_item
from tailrace.api.received import Received
from tailrace.api.response_input import read_input
from tailrace.api.schema.conversations import ConversationObject
from tailrace.api.schema.response_items import InputItem
from tailrace.api.schema.responses import ConversationName, ResponseObject, ResponsesRequest
from tailrace.api.sealed_items import open_item
from tailrace.api.stored import CONVERSATION, Stored
from tailrace.api.user import user_of
from tailrace.api.work_queue import JSON_BYTES
from tailrace.api.worker_queries import ask_all, ask_first
from tailrace.errors import ParameterError, RequestNotFoundError, StorageError, format_json

log = logging.getLogger(__name__)


async def remove_item(request: Request, id: str, item: str) -> bytes:
    """Remove an item of a conversation of the request's user. Return the conversation's object as JSON.

    Raises:
        RequestNotFoundError: the conversation, or the item, is not stored. StorageError: the file can't be written.
    """
    changed = MOVED
    while changed == MOVED:  # another item was removed in between
        raw = await read_conversation(request, id, "conversation")
        work = partial(find_item, raw, item)
        place = await front_of(request).work_queue.run(request, work, len(raw) // JSON_BYTES)
        if place is None:
            raise make_item_error(item)
        changed = await change_conversation(request, id, ConversationChange(remove=place))
    return changed


async def change_conversation(request: Request, id: str, change: ConversationChange) -> bytes:
    """Change a conversation of the request's user. Return its object as JSON; MOVED if the item to remove is not at its
    place.

    Raises:
        RequestNotFoundError: the conversation is not stored. StorageError: the file can't be written.
    """
    front, user = front_of(request), user_of(request.scope)
    found: bytes | None = None
    if id.startswith(CONVERSATION) and front.file is not None:
        found = await front.file.run(
            lambda database: database.change(user, id, partial(apply_change, change=change)), user
        )
    elif id.startswith(CONVERSATION):
        argument = f"{id} {msgspec.json.encode(change).decode()}"
        found = next(iter(await ask_all(request, "change conversation", argument)), None)
    if found is None:
        raise make_conversation_error(id)
    return found


async def create_stored(request: Request, conversation: ConversationObject, items: list[dict[str, Any]]) -> None:
    """Store a new conversation for the request's user.

    Raises:
        StorageError: the file can't be written.
    """
    front, user, id = front_of(request), user_of(request.scope), conversation.id
    body, messages = msgspec.json.encode(conversation), msgspec.json.encode(items)
    stored = Stored(body, messages, 0, None, b"", created=time.time())
    if front.file is None:
        front.responses.share_of(user).put_entry(id, stored)
        return
    await front.file.run(lambda database: database.add(user, id, stored, ended=1), user)


async def read_conversation(request: Request, id: str, question: str, param: str | None = None) -> bytes:
    """Return the object of a conversation ("response") or its items ("conversation"), as JSON.

    Raises:
        RequestNotFoundError: it is not stored for the request's user (any more). StorageError: the file can't be read.
    """
    found = await ask_first(request, question, id) if id.startswith(CONVERSATION) else None
    if found is None:
        raise make_conversation_error(id, param)
    return found


async def fetch_items(received: Received[ResponsesRequest]) -> bytes:
    """Return the items of the conversation that a request names, as JSON.

    Raises:
        ParameterError: the request also names a response; or the conversation is larger than a body may be.
            RequestNotFoundError: it is not stored.
    """
    ask = received.ask
    assert ask.conversation is not None
    if ask.previous_response_id is not None:
        raise ParameterError("conversation and previous_response_id can't be given together", "conversation")
    raw = await read_conversation(received.request, name_conversation(ask.conversation), "conversation", "conversation")
    received.add_bytes(raw, "conversation")
    return raw


def name_conversation(given: str | ConversationName) -> str:
    """Return the id of a conversation as a request names it."""
    return given if isinstance(given, str) else given.id


def extend_conversation(
    received: Received[ResponsesRequest], response: ResponseObject
) -> Callable[[], Awaitable[None]] | None:
    """Return a function that adds the response, once it has ended, and what it answers to its conversation; None if it
    has none. If that can't be done, the function takes the conversation out of the response."""
    ask, conversation = received.ask, response.conversation
    if conversation is None:
        return None
    given = read_input(ask.input)

    async def extend() -> None:
        said = [
            item
            for item in response.output
            if item.status == "completed" or item.type in ("message", "reasoning")  # a call that was cut says nothing
        ]
        asked = [name_item(keep_item(item)) for item in given]
        change = ConversationChange(append=[*asked, *keep_output(said)])
        try:
            await change_conversation(received.request, conversation.id, change)
        except (RequestNotFoundError, StorageError) as error:
            log.warning("a conversation could not be extended: %s", error)
            response.conversation = None

    return extend


def read_items(received: Received[Any], items: list[InputItem]) -> list[dict[str, Any]]:
    """Return items as a conversation stores them.

    Raises:
        ParameterError: naming the item, and what it lacks.
    """
    for i, item in enumerate(items):
        name = f"items[{i}]"
        if item.is_reference:
            raise ParameterError(f"{name}: a conversation holds items, not references; send the item itself", name)
        if item.encrypted_content:
            open_item(received, item, f"{name}.encrypted_content")
        message_of(item, name)
    return [name_item(keep_item(item)) for item in items]


def make_conversation_error(id: str, param: str | None = None) -> RequestNotFoundError:
    """Return the error for a conversation that is not stored. param: the field that named it, if one did."""
    return RequestNotFoundError(f"no conversation {format_json(id, 200)} is stored", param)


def make_item_error(id: str) -> RequestNotFoundError:
    """Return the error for an item that a conversation does not have."""
    return RequestNotFoundError(f"the conversation has no item {format_json(id, 200)}")
