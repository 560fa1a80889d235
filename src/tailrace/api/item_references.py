"""References to stored items in the input of /v1/responses → the items."""

from __future__ import annotations

import re

import msgspec

from tailrace.api.kept_items import list_items
from tailrace.api.received import Received
from tailrace.api.schema.response_items import InputItem
from tailrace.api.schema.responses import ResponsesRequest
from tailrace.api.work_queue import JSON_BYTES
from tailrace.api.worker_queries import ask_first
from tailrace.errors import ParameterError, RequestNotFoundError, format_json

INPUT_ITEM = re.compile(r"[a-z]+_(.+)_[0-9]+")  # see list_items: the id of its response stands in the id of an item


async def resolve_references(received: Received[ResponsesRequest]) -> None:
    """Replace each item_reference of the input with the item that it names.

    Raises:
        RequestNotFoundError: the item is not stored (any more). ParameterError: it has no id, or the items are larger
            than a body may be.
    """
    ask = received.ask
    if isinstance(ask.input, str) or not any(item.is_reference for item in ask.input):
        return
    for i, item in enumerate(ask.input):
        if not item.is_reference:
            continue
        if not item.id:
            raise ParameterError(f"input[{i}].id: required, but missing", f"input[{i}].id")
        raw = await stored_item(received, item.id)
        if raw is None:
            raise RequestNotFoundError(
                f"input[{i}].id: no item {format_json(item.id)} is stored. Items of responses with store: false are "
                "not stored, and the oldest are dropped; send the item itself",
                f"input[{i}].id",
            )
        received.add_bytes(raw, "input")
        ask.input[i] = found = msgspec.json.decode(raw, type=InputItem)
        found.encrypted_content = None  # the content is stored too


async def stored_item(received: Received[ResponsesRequest], id: str) -> bytes | None:
    """Return an item that a response wrote, or that a response answers, as JSON; None if it is not stored."""
    found, place = await ask_first(received.request, "item", id), INPUT_ITEM.fullmatch(id)
    if found is not None or place is None:
        return found
    response = f"resp_{place[1]}"
    raw = await ask_first(received.request, "inputs", response)
    if raw is None:
        return None

    def find_item() -> bytes | None:
        items = list_items(msgspec.json.decode(raw), response)
        return next((msgspec.json.encode(item) for item in items if item["id"] == id), None)

    return await received.run(find_item, len(raw) // JSON_BYTES)
