"""Which channels a chat's answer has (content, reasoning, tool calls), and the sampling fields that follow from
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.errors import ParameterError, format_json
from tailrace.request.options import MarkedSpan, ThinkingBudget
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.harmony import MESSAGE, START, HarmonySplitter
from tailrace.text.reasoning import ReasoningFormat, Start, start_of, start_within
from tailrace.text.reasoning_probe import SWITCHES
from tailrace.text.response_templates.splitter import TemplateSplitter
from tailrace.text.response_templates.template import ResponseTemplate
from tailrace.text.splitter import Splitter
from tailrace.text.tool_parsers import TOOL_FORMATS, ToolFormat, ToolSchemas, tool_schemas

if TYPE_CHECKING:
    from tailrace.api.schema.chat import ChatRequest
    from tailrace.api.service import Service

WORDS = "reasoning_budget_message"
MAX_WORDS = 4096  # characters of closing words
PROMPT_END = 64  # tokens that tell whether the template has opened the reasoning


class Channels(NamedTuple):
    """The channels of an answer.

    separate: thoughts have a channel of their own. start: where the answer begins. end: the prompt's last text.
    template: the checkpoint's response template, if it reads the answer. calls: the template looks for calls. shown:
    the special tokens that the template names.
    """

    reasoning: ReasoningFormat | None
    tools: ToolFormat | None
    start: Start
    declared: ToolSchemas
    separate: bool = True
    end: str = ""
    template: ResponseTemplate | None = None
    calls: bool = False
    shown: tuple[str, ...] = ()

    def make_splitter(self) -> Splitter:
        """A new splitter, for one choice."""
        form = self.reasoning
        if self.template is not None:
            return TemplateSplitter(self.template, self.end, self.separate, self.calls, self.declared)
        if form is not None and form.harmony:
            return HarmonySplitter(self.end, self.separate, self.tools is not None)
        separate = form is not None and self.separate and form.split
        splitter = ChannelSplitter(form if separate else None, self.tools, self.start, self.declared)
        if self.tools is not None and self.tools.header and self.end.endswith(self.tools.header):
            splitter.begin(self.tools.header)
        if form is not None and not form.split and self.start == "opened":
            splitter.prepend_content(form.opening)
        return splitter

    @property
    def counts(self) -> bool:
        """Tokens of thoughts are counted."""
        return self.reasoning is not None and self.separate and self.reasoning.split

    @property
    def thought(self) -> MarkedSpan | None:
        """A thought as a part of the text, however the model spells it mostly; None if there can be none."""
        form = self.reasoning
        if form is None or (self.start == "closed" and not form.again):
            return None
        until = tuple(span.opening for span in self.tool_spans) if form.calls != "text" and not form.harmony else ()
        return MarkedSpan(
            form.opening, form.closing, self.start == "opened", not form.again, until, form.calls == "inside"
        )

    @property
    def spans(self) -> tuple[MarkedSpan, ...]:
        """The parts of the text that are not content."""
        thought = self.thought if self.separate else None
        return (() if thought is None else (thought,)) + self.tool_spans

    @property
    def tool_spans(self) -> tuple[MarkedSpan, ...]:
        """The parts of the text that are tool calls."""
        return () if self.tools is None else tuple(MarkedSpan(*pair) for pair in self.tools.markers)

    @property
    def marks(self) -> tuple[str, ...]:
        """Markers that must appear in the text, even where they are special tokens of the vocabulary."""
        form = self.reasoning
        if self.template is not None:
            return self.shown
        thoughts = () if form is None or not (self.separate or form.harmony) else form.marks
        return (*thoughts, *(self.tools.marks if self.tools is not None else ()))


def channels_of(service: Service, ask: ChatRequest, prompt: list[int]) -> Channels:
    """The channels of one chat."""
    calls = bool(ask.tools) and ask.tool_choice != "none"
    form, tools = service.reasoning, service.tools if calls else None
    end = service.tokenizer.decode(prompt if ask.continue_final_message else prompt[-PROMPT_END:])
    start = "unknown" if form is None else start_in(form, ask, end, service.tokenizer.template_reads)
    separate, declared = ask.separate_reasoning is not False, tool_schemas(ask.tools)
    if (chosen := service.template) is None:
        return Channels(form, tools, start, declared, separate, end)
    separate, calls = separate and chosen.separate, calls and chosen.calls
    return Channels(form, tools, start, declared, separate, end, chosen.template, calls, chosen.shown)


def start_in(form: ReasoningFormat, ask: ChatRequest, end: str, reads: Callable[[str], bool]) -> Start:
    """Return whether a thought is open at the answer's start.

    A request may turn thinking off without a trace in the prompt.
    end: the end of the prompt. reads: True for a variable that the template reads. Other switches turn nothing off.
    """
    kwargs = ask.chat_template_kwargs or {}
    if form.harmony:
        thought = end.rpartition(START)[2].partition(MESSAGE)[0] + MESSAGE == f"assistant{form.opening}"
        return "opened" if thought else "unknown"
    if ask.continue_final_message:
        last = ask.messages[-1].content
        return start_within(last if isinstance(last, str) else end, form)
    if (start := start_of(end, form)) != "unknown":
        return start
    if any(name in SWITCHES and value == SWITCHES[name][1] and reads(name) for name, value in kwargs.items()):
        return "closed"
    return "opened" if form.starts_inside else "unknown"


def reasoning_before(service: Service, ask: ChatRequest, channels: Channels, of_calls: bool) -> dict[str, Any]:
    """What the model may think before the text that a grammar constrains, as fields of Grammar. Nothing where it does
    not think: a switch of the template turns it off, or the template has closed the thought already.

    Args:
        of_calls: the grammar is that of tool calls.
    """
    form = service.reasoning
    if form is None or (channels.start == "closed" and not form.harmony):
        return {}
    if form.harmony:  # the grammar of calls has the thoughts in it; content begins with its message
        begun = MESSAGE in channels.end.rpartition(START)[2]
        return {} if of_calls or begun else {"after": MarkedSpan("", f"<|channel|>final{MESSAGE}", opened=True)}
    opened = channels.start == "opened"
    if ask.continue_final_message and not opened:
        return {}
    fields: dict[str, Any] = {
        "after": MarkedSpan(form.opening, form.closing, opened),
        "other_closings": tuple(closing for closing in form.closings if closing != form.closing),
    }
    if of_calls and form.calls != "text" and service.tools is not None:
        fields["entry_token_ids"] = encode_marker(service, service.tools.markers[0][0])
    if not opened:
        fields["opening_token_ids"] = tuple(encode_marker(service, opening) for opening in form.openings)
    return fields


def encode_marker(service: Service, marker: str) -> tuple[int, ...]:
    """Return a marker's token ids: mostly one."""
    return tuple(service.tokenizer.encode(marker, add_special_tokens=False))


def channel_fields(service: Service, ask: ChatRequest, channels: Channels) -> dict[str, Any]:
    """The fields of SamplingParams that follow from the channels: special tokens that are shown, spans without stops,
    and what ends a thought.

    Raises:
        ParameterError: see encode_words.
    """
    tokenizer, form = service.tokenizer, service.reasoning
    ids = (tokenizer.backend.token_to_id(mark) for mark in channels.marks)
    shown = tuple(sorted(tokenizer.special_ids.intersection(id for id in ids if id is not None)))
    outside = channels.spans if ask.stop_scope == "content" else ()
    words = encode_words(service, ask.reasoning_budget_message, channels)
    thinking, span = None, channels.thought
    if form is not None and form.split and span is not None and may_end_thoughts(ask):
        models = None if channels.tools is None or form.harmony else channels.tools.models
        names = [name for name, tools in TOOL_FORMATS.items() if tools.models == models]
        thinking = ThinkingBudget(
            max_tokens=ask.thinking_token_budget,
            span=span,
            closing_token_ids=encode_marker(service, form.closing),
            words_token_ids=words,
            tool_format=names[0] if names else "",
            calls=form.calls,
            also=form.also,
        )
    return {"shown_token_ids": shown, "stop_outside": outside, "thinking": thinking}


def may_end_thoughts(ask: ChatRequest) -> bool:
    """Return whether something other than the model may end a thought: a budget, the client, or a loop.

    Forced tokens can't be had with banned text, or in a beam search. Then a loop ends the sequence.
    """
    bound = any(getattr(ask, name) for name in ("use_beam_search", "banned_strings", "banned_regex"))
    loops = bool(getattr(ask, "repetition_detection", None)) and not bound
    return ask.thinking_token_budget is not None or bool(ask.reasoning_control) or loops


def encode_words(service: Service, given: str | None, channels: Channels) -> tuple[int, ...]:
    """Return the token ids of the words that close a thought. given: the request's words; None: those of the server.

    Raises:
        ParameterError: the words are too long, or would be more than text of the thought.
    """
    words = service.config.reasoning_budget_message if given is None else given
    form, tokenizer = channels.reasoning, service.tokenizer
    if not words or (given is None and (form is None or not form.split)):
        return ()
    if form is None or not form.split:
        raise ParameterError(
            f"{WORDS}: how this model marks its thinking is not known (--reasoning-parser names it)", WORDS
        )
    if len(words) > MAX_WORDS:
        raise ParameterError(f"{WORDS} must have at most {MAX_WORDS} characters, got {len(words)}", WORDS)
    ids = encode_marker(service, words)
    markers = (*form.openings, *form.closings, *(span.opening for span in channels.tool_spans))
    found = next((marker for marker in markers if marker in words), None)
    if found is None:
        found = next((tokenizer.token_of(id) for id in ids if id in tokenizer.special_ids), None)
    if found is not None:
        raise ParameterError(f"{WORDS} must be text of a thought, got {format_json(found)} in it", WORDS)
    return ids
