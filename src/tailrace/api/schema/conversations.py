"""/v1/conversations: requests and answers."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.api.schema.common import CacheSalt, Priority
from tailrace.api.schema.response_items import InputItem
from tailrace.api.schema.responses import Includable, ResponseUsage


class ConversationRequest(msgspec.Struct, kw_only=True):
    """A conversation to create. items: what it begins with."""

    items: list[InputItem] | None = None
    metadata: dict[str, str] | None = None


class ConversationUpdate(msgspec.Struct, kw_only=True):
    """The metadata that replace those of a conversation; null removes them."""

    metadata: dict[str, str] | None


class ItemsRequest(msgspec.Struct, kw_only=True):
    """Items to add to a conversation. include: asks for parts of items that no item here has."""

    items: list[InputItem]
    include: list[Includable] | None = None


class ConversationObject(msgspec.Struct, kw_only=True):
    """A conversation, without its items."""

    id: str
    created_at: int
    metadata: dict[str, str]
    object: str = "conversation"


class ConversationDeleted(msgspec.Struct, frozen=True):
    """It is stored no longer."""

    id: str
    object: str = "conversation.deleted"
    deleted: bool = True


class CompactRequest(msgspec.Struct, kw_only=True):
    """A conversation to compact. The fields mean what they mean in ResponsesRequest."""

    model: str
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None


class CompactedResponse(msgspec.Struct, kw_only=True):
    """The messages of the user, and one compaction item with what the model must know of all else."""

    id: str
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage | None
    object: str = "response.compaction"
