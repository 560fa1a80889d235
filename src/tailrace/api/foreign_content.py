"""Images, sounds, films and files in a request. No model here reads them: `--foreign-content` says whether a line of
text takes their place.

An agent sends the whole conversation each time. If one screenshot in a tool's result were refused, the conversation
would be at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from tailrace.api.foreign_calls import FIELDS, is_readable
from tailrace.api.schema.chat import ChatMessage, Part
from tailrace.api.schema.message_blocks import InputMessage, MessageBlock
from tailrace.api.schema.response_items import InputItem, InputPart

Policy = Literal["auto", "placeholder", "refuse"]
AnyPart = Part | MessageBlock | InputPart
AnyTurn = ChatMessage | InputMessage | InputItem
KINDS = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    **dict.fromkeys(("file", "input_file", "document", "container_upload"), "file"),
}  # the type of a part → what it is
PLACEHOLDER = "[{}: left out, because this model reads only text]"
WARNING = "left out, because the model reads only text: {}"


def replace_foreign_content(ask: Any, policy: Policy) -> list[str]:
    """Put a line of text in the place of each part that is no text. Return the kinds of the replaced parts.

    Args:
        ask: a body. The turns in one of its FIELDS are changed in place.
        policy: "auto" replaces parts of tools' results and of the model's turns alone. What is not replaced is refused
            where it is read. A user's turn right behind a result is a part of it: clients put a result's image there,
            because results of chats have none.
    """
    turns = next((found for name in FIELDS if (found := getattr(ask, name, None))), None)
    if policy == "refuse" or not isinstance(turns, list):
        return []
    replaced: dict[str, None] = {}
    of_tool = False
    for turn in turns:
        of_tool = holds_result(turn) or (of_tool and turn.role == "user")
        if of_tool or policy == "placeholder" or turn.role == "assistant":
            replaced |= dict.fromkeys(replace_parts(turn))
    return list(replaced)


def replace_parts(turn: AnyTurn) -> Iterator[str]:
    """Replace the parts of a turn that are no text. Yield the kind of each."""
    for part in list_parts(turn):
        kind = KINDS.get(part.type or "")
        if kind is not None and not (isinstance(part, MessageBlock) and is_readable(part)):
            part.type = "input_text" if isinstance(part, InputPart) else "text"
            part.text = PLACEHOLDER.format(kind)
            yield kind
    if isinstance(turn, ChatMessage) and turn.audio is not None:  # what a model has spoken
        spoken = turn.audio.get("transcript")
        turn.content = turn.content or (spoken if isinstance(spoken, str) else PLACEHOLDER.format("audio"))
        turn.audio = None
        yield "audio"


def holds_result(turn: AnyTurn) -> bool:
    """Return whether a turn is, or has, the result of a tool."""
    blocks = turn.content if isinstance(turn, InputMessage) else ()
    output = turn.output if isinstance(turn, InputItem) else None
    return turn.role == "tool" or output is not None or any(part.type == "tool_result" for part in list_of(blocks))


def list_parts(turn: AnyTurn) -> Iterator[AnyPart]:
    """Yield the parts of a turn, and those of its results."""
    yield from list_of(turn.content)
    if isinstance(turn, InputItem):
        yield from list_of(turn.output)
    if isinstance(turn, InputMessage):
        for block in list_of(turn.content):
            yield from list_of(block.content) if block.type == "tool_result" else ()


def list_of(content: Any) -> list[Any]:
    """Return the content if it is a list. A text has no parts."""
    return content if isinstance(content, list) else []
