"""Responses to store, for tests of the stores."""

from __future__ import annotations

from typing import Any

from tailrace.api.response_database import ResponseDatabase
from tailrace.api.schema.response_items import OutputItem
from tailrace.api.schema.responses import ResponseObject, TextOptions
from tailrace.api.stored import Stored, make_stored


def make_response(id: str, text: str = "") -> ResponseObject:
    """A response whose output is one message with this id and text, or nothing."""
    return ResponseObject(
        id=id,
        created_at=0,
        status="completed",
        model="m",
        output=[OutputItem(f"msg_{id}", "message", role="assistant", status="completed")],
        store=True,
        temperature=1.0,
        top_p=1.0,
        tools=[],
        tool_choice="auto",
        text=TextOptions(),
        metadata={"text": text},
        instructions=None,
        max_output_tokens=None,
        previous_response_id=None,
    )


def make_messages(size: int) -> list[dict[str, Any]]:
    """A conversation of about so many bytes."""
    return [{"role": "user", "content": "x" * size}]


def make_state(id: str, size: int = 0, created: float = 0.0, text: str = "") -> Stored:
    """A response as it is stored."""
    return make_stored(make_response(id, text), make_messages(size), 1, [b"event: response.completed\n"], None, created)


def store_whole(database: ResponseDatabase, user: str, stored: Stored, id: str) -> bool:
    """Store the beginning and the end of a response."""
    database.add(user, id, stored._replace(body=b"begun", items=()))
    return database.end(user, id, stored)
