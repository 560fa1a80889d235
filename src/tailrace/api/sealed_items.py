"""Encrypted items in the input of /v1/responses → their text."""

from __future__ import annotations

from tailrace.api.item_messages import COMPACTIONS
from tailrace.api.received import Received
from tailrace.api.schema.response_items import InputItem, InputPart
from tailrace.api.schema.responses import ResponsesRequest
from tailrace.api.sealed import Kind
from tailrace.errors import ParameterError

KINDS: dict[str | None, Kind] = {"reasoning": "reasoning", **dict.fromkeys(COMPACTIONS, "compaction")}


async def open_sealed_items(received: Received[ResponsesRequest]) -> None:
    """Put the text of each encrypted item of the input into its content.

    Raises:
        ParameterError: an encrypted content is none of this server's, or was made for another user.
    """
    items = received.ask.input
    sealed = [] if isinstance(items, str) else [(i, item) for i, item in enumerate(items) if item.encrypted_content]
    if sealed:
        await received.run(
            lambda: [open_item(received, item, f"input[{i}].encrypted_content") for i, item in sealed], received.size
        )


def open_item(received: Received[ResponsesRequest], item: InputItem, name: str) -> None:
    """Put the text of an encrypted item into its content.

    Raises:
        ParameterError: see open_sealed_items.
    """
    kind = KINDS.get(item.type)
    if kind is None:
        raise ParameterError(f"{name}: only items of reasoning and compaction have encrypted content", name)
    text = received.front.sealer.open(kind, received.user, item.encrypted_content or "")
    if text is None:
        raise ParameterError(
            f"{name}: it can't be decrypted: it was changed, made by another server or for another user, or made "
            "before the server's key changed; leave it out",
            name,
        )
    item.content, item.encrypted_content = [InputPart("reasoning_text", text)], None
