"""The formats in which open models mark their thoughts: a table. To add a format, add a line here.

A format is a declaration. text/channel_splitter.py and text/harmony.py apply it, and docs/reasoning.md is written from
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

Calls = Literal["text", "end", "inside"]
Start = Literal["opened", "closed", "unknown"]


class ReasoningFormat(NamedTuple):
    """The format of thoughts of a family of models.

    - opening, closing: the markers around a thought.
    - also: other spellings of both.
    - label: text after an opening marker that belongs to the marker.
    - models: the models that use the format.
    - names: further names, those of the parsers of vLLM and SGLang.
    - calls: the meaning of a tool call's opening marker within an open thought. With "text" the marker is a part of the
      thought. With "end" it begins a call and ends the thought. With "inside" it begins a call, after which the thought
      continues.
    - starts_inside: the answer begins within a thought, although neither the prompt nor the model writes an opening
      marker.
    - again: an answer may have several thoughts. Otherwise a marker after the first thought is content.
    - frame: markers around the rest of the answer, which are left out.
    - evidence: text in the chat templates of these models, needed if other formats have the same markers.
    - split: False leaves thoughts in the content, after the opening marker that the template has written.
    - suffixed: in a vocabulary the tags' name may end in another suffix, or in no suffix.
    - harmony: messages with channels, which text/harmony.py reads. The markers are those of its analysis channel.
    """

    opening: str
    closing: str
    models: str
    names: tuple[str, ...] = ()
    calls: Calls = "text"
    also: tuple[tuple[str, str], ...] = ()
    label: str = ""
    starts_inside: bool = False
    again: bool = False
    frame: tuple[str, ...] = ()
    evidence: str = ""
    split: bool = True
    suffixed: bool = False
    harmony: bool = False

    @property
    def openings(self) -> tuple[str, ...]:
        """All opening markers."""
        return (self.opening, *(opening for opening, _ in self.also))

    @property
    def closings(self) -> tuple[str, ...]:
        """All closing markers."""
        return (self.closing, *(closing for _, closing in self.also))

    @property
    def marks(self) -> tuple[str, ...]:
        """All markers that must appear in the text, even if they are special tokens of the vocabulary."""
        return (*(HARMONY_MARKS if self.harmony else (*self.openings, *self.closings)), *self.frame)

    def fitted(self, vocabulary: Iterable[str]) -> ReasoningFormat:
        """Return the format with the suffix that the tags have in this vocabulary."""
        if not self.suffixed or (found := next(filter(None, map(SUFFIXED.fullmatch, vocabulary)), None)) is None:
            return self
        return self._replace(opening=f"<think{found[1] or ''}>", closing=f"</think{found[1] or ''}>")


SUFFIXED = re.compile(r"<think(:[^\s<>]+)?>")
HARMONY_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
THINK = ("<think>", "</think>")

# In order of recognition. Peers may disagree about calls in an open thought. Then the format takes them as calls if
# one peer's parser does so for models of the family.
REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "harmony": ReasoningFormat(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        "gpt-oss",
        ("openai_gptoss", "gpt-oss"),
        calls="end",
        again=True,
        harmony=True,
    ),
    "hunyuan_a13b": ReasoningFormat(
        *THINK, "Hunyuan A13B", ("hunyuan",), calls="end", frame=("<answer>\n", "\n</answer>"), evidence="<answer>"
    ),
    "granite_3_3": ReasoningFormat(
        *THINK,
        "Granite 3.3",
        calls="end",
        frame=("<response>", "</response>"),
        evidence="<response></response>",
    ),
    "think": ReasoningFormat(
        *THINK,
        "Qwen3, 3.5, QwQ; GLM-4.5 to 4.7; Kimi K2; DeepSeek R1, V3.1 to V4; MiniMax M2; Nemotron; SmolLM3; Olmo 3; "
        "Ernie 4.5; Step 3.5; MiMo; EXAONE 4; Intern-S1; Ling; LFM2.5; Laguna; Granite 4.2; MiniCPM; dots; IQuest Q1",
        (
            "qwen3",
            "glm45",
            "glm47",
            "ling3",
            "kimi_k2",
            "deepseek_v3",
            "deepseek_v4",
            "deepseek_v41",
            "deepseek-v3",
            "deepseek-v4",
            "deepseek-v41",
            "minimax_m2",
            "nemotron_v3",
            "nemotron_3",
            "granite_thinking_parser",
            "olmo3",
            "ernie45",
            "step3p5",
            "mimo",
            "minicpmv",
            "holo2",
            "poolside_v1",
            "interns1",
            "iquest_q1",
            "dots",
            "nanbeige",
        ),
        calls="end",
    ),
    "deepseek_r1": ReasoningFormat(
        *THINK,
        "models that write only `</think>`: DeepSeek R1 behind its first template, Step 3, QwQ without its template",
        ("step3", "step5", "qwen3-thinking", "deepseek-r1", "minimax", "gigachat35"),
        calls="end",
        starts_inside=True,
    ),
    "minimax_m2_append_think": ReasoningFormat(
        *THINK,
        "clients of MiniMax M2 that send its thoughts back within the content",
        ("minimax-append-think",),
        split=False,
    ),
    "hy_v3": ReasoningFormat(
        "<think:opensource>", "</think:opensource>", "Hunyuan 3 and 4", ("hy_v4",), calls="end", suffixed=True
    ),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]", "Magistral, Ministral 3, Mistral Small 4"),
    "seed": ReasoningFormat("<seed:think>", "</seed:think>", "Seed-OSS", ("seed_oss",)),
    "minimax_m3": ReasoningFormat("<mm:think>", "</mm:think>", "MiniMax M3", ("minimax-m3",)),
    "gemma4": ReasoningFormat("<|channel>", "<channel|>", "Gemma 4", calls="end", label="thought\n"),
    "apertus": ReasoningFormat(
        "<|inner_prefix|>", "<|inner_suffix|>", "Apertus", ("apertus2509",), calls="inside", again=True
    ),
    "kimi_k3": ReasoningFormat(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        "Kimi K3",
        calls="end",
        frame=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    "cohere": ReasoningFormat(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        "Command A (Reasoning, Plus), Command 4",
        ("cohere_command3", "cohere_command4"),
        calls="end",
        frame=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "k2_horizon": ReasoningFormat(
        "<ifm|think>",
        "</ifm|think>",
        "K2 Horizon",
        calls="end",
        also=(("<ifm|think_fast>", "</ifm|think_fast>"), ("<ifm|think_faster>", "</ifm|think_faster>")),
    ),
    "plamo3": ReasoningFormat("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>", "PLaMo 3", calls="end"),
    "muse": ReasoningFormat(
        " to=self<|message|>",
        "<|eom|>",
        "Muse Glimmer, Muse Spark",
        ("muse_glimmer", "musespark1x"),
        calls="end",
        also=(("self<|message|>", "<|eom|>"),),
        again=True,
        frame=(
            "<|start|>assistant",
            *(f"{before}{to}<|message|>" for to in ("user", "commentary") for before in (" to=", "")),
            "<|message|>",
            "<|eom|>",
            "<|eot|>",
        ),
    ),
    "inkling": ReasoningFormat(
        "<|content_thinking|>",
        "<|end_message|>",
        "Inkling",
        calls="end",
        again=True,
        frame=("<|message_model|>", "<|content_text|>", "<|end_message|>", "<|content_model_end_sampling|>"),
    ),
    "solar_open": ReasoningFormat(
        "<|think|>", "<|end|>", "Solar Open", ("solar_open2",), frame=("<|begin|>assistant", "<|content|>")
    ),
    "kimi": ReasoningFormat("◁think▷", "◁/think▷", "Kimi-VL Thinking"),
    "granite": ReasoningFormat(
        "Here is my thought process:",
        "Here is my response:",
        "Granite 3.2",
        also=(("Here's my thought process:", "Here's my response:"),),
    ),
    "apriel": ReasoningFormat(
        "Here are my reasoning steps:\n",
        "[BEGIN FINAL RESPONSE]",
        "Apriel 1.5, 1.6",
        frame=("[END FINAL RESPONSE]",),
    ),
}
ALIASES = {other: name for name, form in REASONING_FORMATS.items() for other in form.names}


def format_of(name: str) -> ReasoningFormat | None:
    """Return the format of this name, a name of this package or of a peer. Return None for "none" (also "identity")."""
    return REASONING_FORMATS.get(ALIASES.get(name, name))


def start_of(prompt: str, form: ReasoningFormat) -> Start:
    """Return where an answer begins, from the end of its prompt. A template may open a thought for the model, or write
    an empty thought if the model must not think."""
    end = prompt.rstrip()
    if form.label and end.endswith(form.label.rstrip()):
        end = end.removesuffix(form.label.rstrip()).rstrip()
    if end.endswith(tuple(marker.rstrip() for marker in form.openings)):
        return "opened"
    if end.endswith(tuple(marker.rstrip() for marker in form.closings)):
        return "closed"
    return "unknown"


def start_within(text: str, form: ReasoningFormat) -> Start:
    """Return where an answer begins that continues the model's own last message."""
    last_opening = max(text.rfind(marker) for marker in form.openings)
    last_closing = max(text.rfind(marker) for marker in form.closings)
    if last_opening == last_closing == -1:
        return "unknown"
    return "opened" if last_opening > last_closing else "closed"
