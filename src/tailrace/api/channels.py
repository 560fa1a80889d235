"""Which channels a chat's answer has (content, reasoning, tool calls), and the sampling fields that follow from
them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.errors import ParameterError
from tailrace.options import MarkedSpan, ThinkingBudget
from tailrace.text.reasoning import Markers, ends_inside_reasoning
from tailrace.text.tool_parsers import ToolFormat, ToolSchemas, tool_schemas

if TYPE_CHECKING:
    from tailrace.api.schema.chat import ChatRequest
    from tailrace.api.service import Service

PROMPT_END = 64  # tokens that tell whether the template has opened the reasoning


class Channels(NamedTuple):
    """The arguments of each choice's ChannelSplitter. opened: the prompt ends inside the reasoning."""

    reasoning: Markers | None
    tools: ToolFormat | None
    opened: bool
    declared: ToolSchemas

    @property
    def spans(self) -> tuple[MarkedSpan, ...]:
        """The parts of the text that are not content."""
        thoughts = () if self.reasoning is None else (MarkedSpan(*self.reasoning, self.opened),)
        return thoughts + self.tool_spans

    @property
    def tool_spans(self) -> tuple[MarkedSpan, ...]:
        """The parts of the text that are tool calls."""
        return () if self.tools is None else tuple(MarkedSpan(*pair) for pair in self.tools.markers)

    @property
    def marks(self) -> tuple[str, ...]:
        """Markers that must appear in the text, even where they are special tokens of the vocabulary."""
        return (*(self.reasoning or ()), *(self.tools.marks if self.tools is not None else ()))


def channels_of(service: Service, ask: ChatRequest, prompt: list[int]) -> Channels:
    """The channels of one chat."""
    reasoning = None if ask.separate_reasoning is False else service.reasoning
    tools = service.tools if ask.tools and ask.tool_choice != "none" else None
    return Channels(reasoning, tools, opens_reasoning(service, ask, prompt), tool_schemas(ask.tools))


def opens_reasoning(service: Service, ask: ChatRequest, prompt: list[int]) -> bool:
    """True if the prompt ends inside the model's reasoning."""
    if service.reasoning is None:
        return False
    last = ask.messages[-1].content if ask.continue_final_message else None
    end = last if isinstance(last, str) else service.tokenizer.decode(prompt[-PROMPT_END:])
    if ask.continue_final_message:
        return ends_inside_reasoning(end, service.reasoning)
    return end.rstrip().endswith(service.reasoning[0])


# names of the switch in the templates of reasoning models
THINKING_SWITCHES = ("enable_thinking", "thinking")


def reasoning_before(service: Service, ask: ChatRequest, prompt: list[int]) -> tuple[MarkedSpan | None, int | None]:
    """The reasoning before the text that a grammar constrains, and the token with which the model may open it.

    None, None where the model does not reason: a switch of the template turns it off, or the template has closed it
    already.
    """
    markers, end = service.reasoning, service.tokenizer.decode(prompt[-PROMPT_END:])
    switched_off = any((ask.chat_template_kwargs or {}).get(name) is False for name in THINKING_SWITCHES)
    if markers is None:
        return None, None
    if opens_reasoning(service, ask, prompt):
        return MarkedSpan(*markers, opened=True), None
    opening = service.tokenizer.backend.token_to_id(markers[0])
    if switched_off or ask.continue_final_message or end.rstrip().endswith(markers[1]) or opening is None:
        return None, None
    return MarkedSpan(*markers), opening


def channel_fields(service: Service, ask: ChatRequest, channels: Channels) -> dict[str, Any]:
    """The fields of SamplingParams that follow from the channels: special tokens that are shown, spans without stops,
    and the thinking budget.

    Raises:
        ParameterError: a thinking budget, and the markers of the model's reasoning are not known.
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
            outside=channels.tool_spans,
        )
    return {"shown_token_ids": shown, "stop_outside": outside, "thinking": thinking}
