"""Which channels a chat's answer has, and what that means for its sampling: stops in the content alone, how long it may think."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.errors import ParameterError
from tailrace.options import MarkedSpan, ThinkingBudget
from tailrace.text.channels import Markers, inside
from tailrace.text.tool_parsers import Format, Tools, declared

if TYPE_CHECKING:
    from tailrace.api.schema.chat import ChatRequest
    from tailrace.api.service import Service

PROMPT_END = 64  # tokens that tell whether the template has opened the reasoning


class Channels(NamedTuple):
    """What each choice's ChannelSplitter looks for, and where the prompt has left it."""

    reasoning: Markers | None
    tools: Format | None
    opened: bool
    declared: Tools

    @property
    def spans(self) -> tuple[MarkedSpan, ...]:
        """The parts of the text that are not content."""
        thoughts = () if self.reasoning is None else (MarkedSpan(*self.reasoning, self.opened),)
        return thoughts + self.tool_stretches

    @property
    def tool_stretches(self) -> tuple[MarkedSpan, ...]:
        """Those of tool calls."""
        return () if self.tools is None else tuple(MarkedSpan(*pair) for pair in self.tools.markers)

    @property
    def marks(self) -> tuple[str, ...]:
        """What must be seen of the text, though a vocabulary may have it as special tokens."""
        return (*(self.reasoning or ()), *(self.tools.marks if self.tools is not None else ()))


def channels_of(service: Service, ask: ChatRequest, prompt: list[int]) -> Channels:
    """Of one chat."""
    reasoning = None if ask.separate_reasoning is False else service.reasoning
    tools = service.tools if ask.tools and ask.tool_choice != "none" else None
    return Channels(reasoning, tools, opened(service, ask, prompt), declared(ask.tools))


def opened(service: Service, ask: ChatRequest, prompt: list[int]) -> bool:
    """The prompt ends inside the model's thinking."""
    if service.reasoning is None:
        return False
    last = ask.messages[-1].content if ask.continue_final_message else None
    end = last if isinstance(last, str) else service.tokenizer.decode(prompt[-PROMPT_END:])
    if ask.continue_final_message:
        return inside(end, service.reasoning)
    return end.rstrip().endswith(service.reasoning[0])


# what templates of thinking models call the switch
THINKING_SWITCHES = ("enable_thinking", "thinking")


def thought(service: Service, ask: ChatRequest, prompt: list[int]) -> tuple[MarkedSpan | None, int | None]:
    """The thinking before what a grammar governs, and the token with which the model may open it; None, None where it does not think:
    a switch of the template says so, or the template has closed the thinking already."""
    markers, end = service.reasoning, service.tokenizer.decode(prompt[-PROMPT_END:])
    switched_off = any((ask.chat_template_kwargs or {}).get(name) is False for name in THINKING_SWITCHES)
    if markers is None:
        return None, None
    if opened(service, ask, prompt):
        return MarkedSpan(*markers, opened=True), None
    opening = service.tokenizer.backend.token_to_id(markers[0])
    if switched_off or ask.continue_final_message or end.rstrip().endswith(markers[1]) or opening is None:
        return None, None
    return MarkedSpan(*markers), opening


def channel_fields(service: Service, ask: ChatRequest, channels: Channels) -> dict[str, Any]:
    """The fields of SamplingParams that follow from the channels: special tokens that are shown, spans without stops, the thinking budget.

    Raises:
        ParameterError: a thinking budget, and it is not known how the model thinks.
    """
    tokenizer = service.tokenizer
    ids = (tokenizer.backend.token_to_id(mark) for mark in channels.marks)
    shown = tuple(sorted(tokenizer.special_ids.intersection(id for id in ids if id is not None)))
    outside = channels.spans if ask.stop_scope == "content" else ()
    thinking = None
    if ask.thinking_token_budget is not None:
        if service.reasoning is None:
            raise ParameterError(
                "thinking_token_budget: how this model marks its thinking is not known (--reasoning-parser names it)",
                "thinking_token_budget",
            )
        thinking = ThinkingBudget(
            max_tokens=ask.thinking_token_budget,
            span=MarkedSpan(*service.reasoning, channels.opened),
            closing_token_ids=tuple(tokenizer.encode(service.reasoning[1], add_special_tokens=False)),
            outside=channels.tool_stretches,
        )
    return {"shown_token_ids": shown, "stop_outside": outside, "thinking": thinking}
