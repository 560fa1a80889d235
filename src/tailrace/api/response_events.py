"""Segments of text → the items and events of a response, in OpenAI's order: an item is added, its text grows, it is
done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import UNSET

from tailrace.api.call_items import ADDED, FunctionItem, ItemStep, make_call
from tailrace.api.response_logprobs import Reports
from tailrace.api.schema.response_items import OutputItem, OutputPart
from tailrace.api.schema.responses import Event, Incomplete, ResponseObject, ResponseUsage
from tailrace.api.tool_kinds import Offered
from tailrace.text.splitter import Segment
from tailrace.text.tool_parsers import ToolCall

# channel → (type of item, its id's prefix, type of its part, the events of its text)
KINDS = {
    "content": ("message", "msg", "output_text", "response.output_text"),
    "reasoning": ("reasoning", "rs", "reasoning_text", "response.reasoning_text"),
}
SUMMARY = "summary_text"
NO_OFFERS: Mapping[str, Offered] = MappingProxyType({})
FULL = "max_tool_calls"  # the cause of an end by a further call
# finish reason → (status, why it is incomplete)
ENDS = {"stop": ("completed", None), "length": ("incomplete", "max_output_tokens")}


class ResponseEvents:
    """One response as it grows. Each method returns the events to send.

    Args:
        note: called with each event, as it is made. offered: see FlatTools. seal: encrypts a thought; None: thoughts
            are not encrypted.

    Attributes:
        full: the response has as many calls as it may have, and the model began another one.
    """

    def __init__(
        self,
        response: ResponseObject,
        note: Callable[[Event], None],
        offered: Mapping[str, Offered] = NO_OFFERS,
        seal: Callable[[str], str] | None = None,
    ) -> None:
        self.response, self._note, self._offered, self._seal = response, note, offered, seal
        self.full = False
        self._calls = 0
        reasoning = response.reasoning or {}
        self._summarised = bool(reasoning.get("summary") or reasoning.get("generate_summary"))
        self._call: FunctionItem | None = None  # the call that is open
        self._count = 0
        self._channel = ""  # of the item that is open, if any
        self._text: list[str] = []
        self._reports = Reports([], [])

    def begin(self) -> Iterator[Event]:
        """The response runs now."""
        if not self._count:
            yield self._make_event("response.created", response=self.response)
        yield self._make_event("response.in_progress", response=self.response)

    def queue(self) -> Iterator[Event]:
        """The response has been created, and runs later."""
        yield self._make_event("response.created", response=self.response)
        yield self._make_event("response.queued", response=self.response)

    def add(self, segment: Segment, reports: Reports) -> Iterator[Event]:
        """More text, or a tool call. reports: of the tokens of its text."""
        if self.full:
            return
        if segment.call is not None:
            yield from self._write_call(segment.call)
            return
        kind, prefix, part, events = KINDS[segment.channel]
        if self._channel != segment.channel:
            yield from self._close_item()
            item = OutputItem(f"{prefix}_{uuid4().hex}", kind, "in_progress", content=[])
            if kind == "message":
                item.role = "assistant"
            else:
                item.summary = []
            yield from self._open_item(item)
            self._channel = segment.channel
            yield self._make_event(
                "response.content_part.added", **self._locate_item(), content_index=0, part=self._make_part(part, "")
            )
            yield from self._write_summary("part.added", part=OutputPart(SUMMARY, ""))
        self._text.append(segment.text)
        self._reports.logprobs.extend(reports.logprobs)
        self._reports.explanations.extend(reports.explanations)
        scored = make_logprobs_field(part, reports.logprobs) | make_explanations_field(reports.explanations)
        yield self._make_event(f"{events}.delta", **self._locate_item(), content_index=0, delta=segment.text, **scored)
        yield from self._write_summary("text.delta", delta=segment.text)

    def end(self, finish_reason: str, stop_reason: Any, usage: ResponseUsage, whole: bool = True) -> Iterator[Event]:
        """The response is over, for this reason. whole: False if its last item is a call that was cut off."""
        cut = str(stop_reason)
        status, why = ENDS.get(finish_reason, ("cancelled" if cut == "cancelled" else "incomplete", cut))
        if self.full and cut == FULL:
            status, why = ENDS["stop"]
        yield from self._close_item("completed" if status == "completed" and whole else "incomplete")
        self.response.status, self.response.usage = status, usage
        self.response.completed_at = int(time.time()) if status == "completed" else None
        self.response.incomplete_details = Incomplete(why) if why is not None and status == "incomplete" else None
        kind = "response.completed" if status == "completed" else "response.incomplete"
        yield self._make_event(kind, response=self.response)

    def fail_response(self) -> Iterator[Event]:
        """The response has failed: see response.error."""
        yield from self._close_item("incomplete")
        self.response.status = "failed"
        yield self._make_event("response.failed", response=self.response)

    @property
    def _at(self) -> int:
        return len(self.response.output) - 1

    def _locate_item(self) -> dict[str, Any]:
        return {"item_id": self.response.output[-1].id, "output_index": self._at}

    def _open_item(self, item: OutputItem) -> Iterator[Event]:
        self.response.output.append(item)
        yield self._make_event("response.output_item.added", output_index=self._at, item=item)

    def _write_call(self, call: ToolCall) -> Iterator[Event]:
        if call.name:
            yield from self._close_item()
            most = self.response.max_tool_calls
            self.full = most is not None and self._calls >= most
            if self.full:
                return
            self._calls += 1
            self._call = make_call(self._offered.get(call.name, Offered(call.name)), call.id)
        if self._call is not None:
            yield from self._write_steps(self._call, self._call.feed(call.arguments))

    def _write_steps(self, call: FunctionItem, steps: Iterator[ItemStep]) -> Iterator[Event]:
        for kind, fields in steps:
            if kind == ADDED and call.item is not None:
                yield from self._open_item(call.item)
            else:
                yield self._make_event(f"response.{kind}", output_index=self._at, **fields)

    def _close_item(self, status: str = "completed") -> Iterator[Event]:
        if self._call is not None:
            call, self._call = self._call, None
            yield from self._write_steps(call, call.end(status))
            yield self._make_event("response.output_item.done", output_index=self._at, item=call.item)
        if not self._channel:
            return
        _, _, kind, events = KINDS[self._channel]
        item, text = self.response.output[-1], "".join(self._text)
        part = self._make_part(kind, text)
        scored = make_logprobs_field(kind, self._reports.logprobs) | make_explanations_field(self._reports.explanations)
        yield self._make_event(f"{events}.done", **self._locate_item(), content_index=0, text=text, **scored)
        yield self._make_event("response.content_part.done", **self._locate_item(), content_index=0, part=part)
        yield from self._write_summary("text.done", text=text)
        yield from self._write_summary("part.done", part=OutputPart(SUMMARY, text))
        if self._summarised and item.type == "reasoning":
            item.summary = [OutputPart(SUMMARY, text)]
        item.content, item.status = [part], status
        if self._seal is not None and item.type == "reasoning":
            item.encrypted_content = self._seal(text)
        yield self._make_event("response.output_item.done", output_index=self._at, item=item)
        self._channel = ""
        self._text, self._reports = [], Reports([], [])

    def _write_summary(self, kind: str, **fields: Any) -> Iterator[Event]:
        """The thought is its own summary, if a summary is asked for."""
        if self._summarised and self._channel == "reasoning":
            yield self._make_event(
                f"response.reasoning_summary_{kind}", **self._locate_item(), summary_index=0, **fields
            )

    def _make_part(self, kind: str, text: str) -> OutputPart:
        found = make_explanations_field(self._reports.explanations)
        if kind != "output_text":
            return OutputPart(kind, text, **found)
        return OutputPart(kind, text, [], self._reports.logprobs or UNSET, **found)

    def _make_event(self, type: str, **fields: Any) -> Event:
        event = Event(type=type, sequence_number=self._count, **fields)
        self._count += 1
        self._note(event)
        return event


def make_logprobs_field(part: str, logprobs: list[msgspec.Raw]) -> dict[str, Any]:
    """The `logprobs` field, which OpenAI's clients expect with output text; empty where none are asked for."""
    return {"logprobs": logprobs} if part == "output_text" else {}


def make_explanations_field(explanations: list[msgspec.Raw]) -> dict[str, Any]:
    """The `explanations` field, where they are asked for."""
    return {"explanations": explanations} if explanations else {}
