"""Images, sounds, films and files in a request. No model here reads them: `--foreign-content` says whether a line of
text takes their place.

An agent sends the whole conversation each time. If one screenshot in a tool's result were refused, the conversation
would be at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from tailrace.api.schema.chat import ChatMessage, Part
from tailrace.api.schema.messages import InputMessage, MessageBlock
from tailrace.api.schema.responses import InputItem, InputPart

Policy = Literal["auto", "placeholder", "refuse"]
AnyPart = Part | MessageBlock | InputPart
KINDS = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    **dict.fromkeys(("file", "input_file", "document"), "file"),
}  # the type of a part → what it is
PLACEHOLDER = "[{}: left out, because this model reads only text]"
WARNING = "left out, because the model reads only text: {}"


def replace_foreign_content(ask: Any, policy: Policy) -> list[str]:
    """Put a line of text in the place of each part that is no text. Return the kinds of the replaced parts.

    Args:
        ask: a body. Its `messages` or `input` are changed in place.
        policy: "auto" replaces parts of tools' results alone. What is not replaced is refused where it is read.
    """
    turns = getattr(ask, "messages", None) or getattr(ask, "input", None)
    if policy == "refuse" or not isinstance(turns, list):
        return []
    replaced: dict[str, None] = {}
    for turn in turns:
        for of_tool, parts in LISTS[type(turn)](turn):
            for part in parts if of_tool or policy == "placeholder" else ():
                if (kind := KINDS.get(part.type)) is not None:
                    part.type, part.text = "text", PLACEHOLDER.format(kind)
                    replaced[kind] = None
    return list(replaced)


def list_chat_parts(message: ChatMessage) -> Iterator[tuple[bool, list[Part]]]:
    """Yield whether a list of parts is a tool's result, and the list."""
    if isinstance(message.content, list):
        yield message.role == "tool", message.content


def list_blocks(message: InputMessage) -> Iterator[tuple[bool, list[MessageBlock]]]:
    """The same of a message in Anthropic's form: results are blocks of the user's turns."""
    if isinstance(message.content, list):
        yield False, message.content
        for block in message.content:
            if block.type == "tool_result" and isinstance(block.content, list):
                yield True, block.content


def list_item_parts(item: InputItem) -> Iterator[tuple[bool, list[InputPart]]]:
    """The same of an item of a response's input."""
    for of_tool, parts in ((True, item.output), (item.role == "tool", item.content)):
        if isinstance(parts, list):
            yield of_tool, parts


LISTS: dict[type, Callable[[Any], Iterator[tuple[bool, list[Any]]]]] = {
    ChatMessage: list_chat_parts,
    InputMessage: list_blocks,
    InputItem: list_item_parts,
}
