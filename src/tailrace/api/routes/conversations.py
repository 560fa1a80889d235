"""/v1/conversations: create, read, change and delete conversations, and their items."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.body import BodyReader
from tailrace.api.conversation_changes import ConversationChange, read_id
from tailrace.api.conversations import (
    change_conversation,
    create_stored,
    make_conversation_error,
    make_item_error,
    read_conversation,
    read_items,
    remove_item,
)
from tailrace.api.front_end import front_of
from tailrace.api.item_pages import PageQuery, make_page, read_page_query
from tailrace.api.received import Received, answers
from tailrace.api.schema.conversations import (
    ConversationDeleted,
    ConversationObject,
    ConversationRequest,
    ConversationUpdate,
    ItemsRequest,
)
from tailrace.api.schema.response_items import InputItem
from tailrace.api.stored import CONVERSATION
from tailrace.api.streaming import json_response
from tailrace.api.work_queue import JSON_BYTES
from tailrace.api.worker_queries import forget_stored

CREATE = BodyReader(ConversationRequest, {})
UPDATE = BodyReader(ConversationUpdate, {})
ITEMS = BodyReader(ItemsRequest, {})
JSON = "application/json"
WHOLE = PageQuery(100, "asc", None)


@answers(CREATE)
async def create_conversation(received: Received[ConversationRequest]) -> Response:
    """Store a conversation with its first items."""
    ask = received.ask
    items = await store_form(received, ask.items or [])
    made = ConversationObject(
        id=f"{CONVERSATION}{uuid4().hex}", created_at=int(time.time()), metadata=ask.metadata or {}
    )
    await create_stored(received.request, made, items)
    return json_response(made)


async def retrieve_conversation(request: Request) -> Response:
    """A conversation, without its items."""
    return Response(await read_conversation(request, request.path_params["id"], "response"), media_type=JSON)


@answers(UPDATE)
async def update_conversation(received: Received[ConversationUpdate]) -> Response:
    """Replace the metadata of a conversation."""
    request = received.request
    change = ConversationChange(metadata=received.ask.metadata or {})
    return Response(await change_conversation(request, request.path_params["id"], change), media_type=JSON)


async def delete_conversation(request: Request) -> Response:
    """Delete a conversation and its items. Responses that are stored stay."""
    id = request.path_params["id"]
    await read_conversation(request, id, "response")
    await forget_stored(request, id)
    return json_response(ConversationDeleted(id))


@answers(ITEMS)
async def create_items(received: Received[ItemsRequest]) -> Response:
    """Add items to a conversation."""
    request = received.request
    items = await store_form(received, received.ask.items)
    await change_conversation(request, request.path_params["id"], ConversationChange(append=items))
    return json_response(make_page(items, WHOLE._replace(limit=len(items))))


async def list_items(request: Request) -> Response:
    """The items of a conversation, page by page: `limit`, `order`, `after`.

    Raises:
        ParameterError: naming the query's parameter. RequestNotFoundError: it is not stored.
    """
    query = read_page_query(request)
    raw = await read_conversation(request, request.path_params["id"], "conversation")
    page = await front_of(request).work_queue.run(
        request, lambda: make_page(msgspec.json.decode(raw), query), len(raw) // JSON_BYTES
    )
    return json_response(page)


async def retrieve_item(request: Request) -> Response:
    """An item of a conversation.

    Raises:
        RequestNotFoundError: the conversation is not stored, or does not have the item.
    """
    id = request.path_params["item"]
    raw = await read_conversation(request, request.path_params["id"], "conversation")

    def find_item() -> msgspec.Raw | None:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
        return next((item for item in items if read_id(item) == id), None)

    found = await front_of(request).work_queue.run(request, find_item, len(raw) // JSON_BYTES)
    if found is None:
        raise make_item_error(id)
    return Response(bytes(found), media_type=JSON)


async def delete_item(request: Request) -> Response:
    """Delete an item of a conversation. The answer is the conversation."""
    changed = await remove_item(request, request.path_params["id"], request.path_params["item"])
    return Response(changed, media_type=JSON)


async def store_form(received: Received[Any], items: list[InputItem]) -> list[dict[str, Any]]:
    """Return items of a request as a conversation stores them, made on the work queue.

    Raises:
        ParameterError: naming the item.
    """
    id = received.request.path_params.get("id")
    if id is not None and not id.startswith(CONVERSATION):
        raise make_conversation_error(id)
    return await received.run(lambda: read_items(received, items), received.size)
