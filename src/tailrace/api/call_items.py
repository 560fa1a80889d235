"""Calls as the items that the client expects, and the events by which the items grow."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple
from uuid import uuid4

from tailrace.api import item_tools
from tailrace.api.custom_tools import CustomInput
from tailrace.api.open_strings import ObjectReader, StringPiece
from tailrace.api.schema.response_items import OutputItem
from tailrace.api.tool_kinds import Offered


class ItemStep(NamedTuple):
    """An event about a call's item: its type without "response.", and its fields. ADDED: the item begins."""

    type: str
    fields: dict[str, Any]


ADDED = "output_item.added"


class FunctionItem:
    """The call of a function: its arguments are the item's.

    Attributes:
        item: None before it begins.
    """

    TYPE, PREFIX, FIELD, EVENTS = "function_call", "fc", "arguments", "function_call_arguments"

    def __init__(self, offered: Offered, call_id: str) -> None:
        self._offered, self._call_id = offered, call_id
        self._text: list[str] = []
        self.item: OutputItem | None = None

    def feed(self, arguments: str) -> Iterator[ItemStep]:
        """Yield the steps for further arguments. The first arguments may be empty."""
        if self.item is None:
            item = self._begin_item(self.TYPE, self.PREFIX)
            item.name = self._offered.name
            if self._offered.namespace:
                item.namespace = self._offered.namespace
            setattr(item, self.FIELD, "")
            yield ItemStep(ADDED, {})
        yield from self._add_text(self._read(arguments))

    def end(self, status: str) -> Iterator[ItemStep]:
        """Yield the last steps. status: of the item."""
        yield from self._add_text(self._read_end())
        assert self.item is not None
        text = "".join(self._text)
        setattr(self.item, self.FIELD, text)
        yield ItemStep(f"{self.EVENTS}.done", {"item_id": self.item.id, self.FIELD: text})
        self.item.status = status

    def _begin_item(self, kind: str, prefix: str) -> OutputItem:
        self.item = OutputItem(f"{prefix}_{uuid4().hex}", kind, "in_progress", call_id=self._call_id)
        return self.item

    def _add_text(self, text: str) -> Iterator[ItemStep]:
        if text and self.item is not None:
            self._text.append(text)
            yield ItemStep(f"{self.EVENTS}.delta", {"item_id": self.item.id, "delta": text})

    def _read(self, arguments: str) -> str:
        return arguments

    def _read_end(self) -> str:
        return ""


class CustomItem(FunctionItem):
    """The call of a custom tool: its input is the text in the arguments."""

    TYPE, PREFIX, FIELD, EVENTS = "custom_tool_call", "ctc", "input", "custom_tool_call_input"

    def __init__(self, offered: Offered, call_id: str) -> None:
        super().__init__(offered, call_id)
        self._input = CustomInput()

    def _read(self, arguments: str) -> str:
        return self._input.feed(arguments)

    def _read_end(self) -> str:
        return self._input.end()


class OwnItem(FunctionItem):
    """The call of a tool with an item of its own. The item begins when all its fields are known that no event extends.

    If the arguments do not fit the tool, the item is the call of a function: the model was cut off, or no grammar held.
    """

    CUT = "incomplete"  # the status of an item that was cut off

    def __init__(self, offered: Offered, call_id: str) -> None:
        super().__init__(offered, call_id)
        self._tool = item_tools.DEFINED[offered.item]
        self._reader, self._arguments = ObjectReader(), [""]

    def feed(self, arguments: str) -> Iterator[ItemStep]:
        """Yield the steps for further arguments."""
        self._arguments.append(arguments)
        for piece in self._reader.feed(arguments):
            yield from self._watch(piece)

    def end(self, status: str) -> Iterator[ItemStep]:
        """Yield the last steps. status: of the item."""
        arguments = "".join(self._arguments)
        value = item_tools.read_arguments(self._offered.item, arguments)
        if value is None and self.item is None:
            yield from super().feed(arguments)
            yield from super().end("incomplete")
            return
        item = self.item
        if item is None:
            item = yield from self._begin(value or {})
        whole = value is not None and status == "completed"
        value = value or self._value
        yield from self._finish(value)
        self._set(value)
        item.status = status if whole else self.CUT

    @property
    def _value(self) -> dict[str, Any]:
        """The item's field."""
        return getattr(self.item, self._tool.field)

    def _set(self, value: dict[str, Any]) -> None:
        setattr(self.item, self._tool.field, value)

    def _begin(self, value: dict[str, Any]) -> Generator[ItemStep, None, OutputItem]:
        """Begin the item with this value."""
        item = self._begin_item(self._offered.item + item_tools.CALL, self._tool.prefix)
        self._set(value)
        yield ItemStep(ADDED, {})
        return item

    def _watch(self, piece: StringPiece) -> Iterator[ItemStep]:
        """Yield the steps for a piece of a string in the arguments."""
        return iter(())

    def _finish(self, value: dict[str, Any]) -> Iterator[ItemStep]:
        """Yield the last steps of an item with this value."""
        return iter(())


class ShellItem(OwnItem):
    """The call of `shell`: its commands leave as they are written."""

    def __init__(self, offered: Offered, call_id: str) -> None:
        super().__init__(offered, call_id)
        self._open = False  # the last command has not ended

    def _watch(self, piece: StringPiece) -> Iterator[ItemStep]:
        count = 0 if self.item is None else len(self._value["commands"])
        if piece.name != "commands" or piece.place != count - self._open:
            return  # arguments that do not fit: without a grammar the list may have other values than strings
        if self.item is None:
            yield from self._begin(self._tool.complete({"commands": []}))
        commands = self._value["commands"]
        if not self._open:
            self._open = True
            commands.append("")
            yield ItemStep("shell_call_command.added", {"command_index": piece.place, "command": ""})
        if piece.text:
            commands[-1] += piece.text
            yield ItemStep("shell_call_command.delta", {"command_index": piece.place, "delta": piece.text})
        if piece.over:
            yield self._end_command()

    def _finish(self, value: dict[str, Any]) -> Iterator[ItemStep]:
        if self._open:
            yield self._end_command()

    def _end_command(self) -> ItemStep:
        self._open = False
        commands = self._value["commands"]
        return ItemStep("shell_call_command.done", {"command_index": len(commands) - 1, "command": commands[-1]})


class PatchItem(OwnItem):
    """The call of `apply_patch`: its diff leaves as it is written, if the type and the path come before."""

    CUT = "in_progress"  # of the statuses that such an item may have

    def __init__(self, offered: Offered, call_id: str) -> None:
        super().__init__(offered, call_id)
        self._known: dict[str, str] = {}

    def _watch(self, piece: StringPiece) -> Iterator[ItemStep]:
        if piece.place is not None:
            return  # a list, which does not fit
        if piece.name != "diff":
            self._known[piece.name] = self._known.get(piece.name, "") + piece.text
            return
        if self.item is None and "path" in self._known and self._known.get("type") in ("create_file", "update_file"):
            yield from self._begin({name: self._known[name] for name in ("type", "path")} | {"diff": ""})
        if self.item is not None:
            yield from self._add_diff(piece.text)

    def _begin(self, value: dict[str, Any]) -> Generator[ItemStep, None, OutputItem]:
        return (yield from super()._begin(value | {"diff": ""} if "diff" in value else value))

    def _finish(self, value: dict[str, Any]) -> Iterator[ItemStep]:
        if self.item is None or "diff" not in value:
            return
        yield from self._add_diff(value["diff"].removeprefix(self._value["diff"]))
        yield ItemStep("apply_patch_call_operation_diff.done", {"item_id": self.item.id, "diff": value["diff"]})

    def _add_diff(self, text: str) -> Iterator[ItemStep]:
        if text and self.item is not None:
            self._value["diff"] += text
            yield ItemStep("apply_patch_call_operation_diff.delta", {"item_id": self.item.id, "delta": text})


WRITERS = {"local_shell": OwnItem, "shell": ShellItem, "apply_patch": PatchItem}


def make_call(offered: Offered, id: str | None) -> FunctionItem:
    """Return the writer of a call. id: the model's; None: it gave none."""
    kind = CustomItem if offered.custom else WRITERS.get(offered.item, FunctionItem)
    return kind(offered, id or f"call_{uuid4().hex[:24]}")
