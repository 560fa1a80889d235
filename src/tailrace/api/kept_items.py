"""Items as the server keeps and lists them: what a response answers, and what a conversation holds. Knows no store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import UNSET

from tailrace.api import item_tools
from tailrace.api.item_messages import COMPACTIONS, OUTPUTS, find_call_id, texts_of
from tailrace.api.schema.response_items import InputItem, OutputItem, OutputPart

# type of an item → the prefix of its id
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    **{kind + item_tools.CALL: tool.prefix for kind, tool in item_tools.DEFINED.items()},
    **{kind + item_tools.OUTPUT: f"{tool.prefix}o" for kind, tool in item_tools.DEFINED.items()},
    **dict.fromkeys(COMPACTIONS, "cmp"),
}
FOREIGN = "item"  # the prefix of calls that another server has run
# type of an item → fields that a list of items must have
COMPLETE: dict[str, dict[str, Any]] = {
    "reasoning": {"summary": []},
    "code_interpreter_call": {"code": None, "outputs": None},
    "image_generation_call": {"result": None},
    "computer_call": {"pending_safety_checks": []},
    "shell_call": {"environment": None},
    "shell_call_output": {"max_output_length": None},
    "tool_search_call": {"call_id": None, "execution": "server"},
    "tool_search_output": {"call_id": None, "execution": "server"},
}


def keep_item(item: InputItem) -> dict[str, Any]:
    """Return an item of an input as it is kept, without an id."""
    kind = item.type or "message"
    fields: dict[str, Any] = {name: value for name, value in msgspec.to_builtins(item).items() if value is not None}
    fields = {"type": kind, "status": "completed"} | COMPLETE.get(kind, {}) | fields
    if kind == "message":
        part = {"type": "output_text", "annotations": []} if item.role == "assistant" else {"type": "input_text"}
        given = item.content or ""
        texts = [given] if isinstance(given, str) else [each.text for each in texts_of(given, "content")]
        fields["content"] = [part | {"text": text} for text in texts]
    if (own := item_tools.CALLS.get(kind)) is not None:
        tool = item_tools.DEFINED[own]
        fields[tool.field] = tool.complete(fields[tool.field])
    if kind in OUTPUTS:
        fields["call_id"] = find_call_id(item)
    fields.pop("id", None)  # a call's output may have named its call by it
    return fields


def keep_output(output: Sequence[OutputItem]) -> list[dict[str, Any]]:
    """Return the items of an output as they are kept. The rest of what a response reports of them is in its body."""
    return [
        msgspec.to_builtins(
            msgspec.structs.replace(
                item,
                encrypted_content=UNSET,
                content=[keep_part(part) for part in item.content] if item.content else item.content,
            )
        )
        for item in output
    ]


def keep_part(part: OutputPart) -> OutputPart:
    """Return a part without reports of its tokens."""
    return msgspec.structs.replace(part, logprobs=UNSET, explanations=UNSET)


def name_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return a kept item with an id that no other has."""
    return {"id": f"{find_prefix(item)}_{uuid4().hex}"} | item


def list_items(items: Sequence[dict[str, Any]], response: str) -> list[dict[str, Any]]:
    """Return the kept items that a response answers, as OpenAI lists them. The response's id stands in theirs."""
    of_response = response.removeprefix("resp_")
    return [item | {"id": f"{find_prefix(item)}_{of_response}_{place}"} for place, item in enumerate(items)]


def find_prefix(item: dict[str, Any]) -> str:
    """Return the prefix of the id of a kept item."""
    return PREFIXES.get(item["type"], FOREIGN)
