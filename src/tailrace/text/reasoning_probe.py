"""Detection of a model's reasoning format, from its vocabulary and the output of its chat template.

A marker somewhere in a template proves nothing: templates of models without reasoning strip thoughts from their input,
or explain tags. So the template renders conversations: before an answer, with thinking on and off, and with an earlier
thought.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tailrace.errors import RequestError
from tailrace.text.reasoning import HARMONY_MARKS, REASONING_FORMATS, ReasoningFormat, start_of

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

# the templates' variables for thinking → their values for (on, off)
SWITCHES: dict[str, tuple[Any, Any]] = {
    **dict.fromkeys(("enable_thinking", "thinking", "reasoning"), (True, False)),
    "thinking_mode": ("enabled", "disabled"),
}
# the templates' variables for the amount of thinking
EFFORTS = ("reasoning_effort", "reasoning_strength", "thinking_effort")
TRIED: tuple[dict[str, Any], ...] = (
    {},
    *({name: value} for name, values in SWITCHES.items() for value in values),
    *({name: effort} for name in EFFORTS for effort in ("high", "none", "no_think")),
)
ASKED = {"role": "user", "content": "Hello"}
THOUGHT = "4d7b1c"
ANSWER = {
    "role": "assistant",
    "content": "Hi",
    **dict.fromkeys(("reasoning_content", "reasoning", "thinking"), THOUGHT),
}


def find_reasoning(tokenizer: Tokenizer) -> ReasoningFormat | None:
    """Return the first format that the model shows; None if it shows no format.

    Raises:
        ModelLoadError: the chat template exceeds its limits.
    """
    if all(tokenizer.backend.token_to_id(mark) is not None for mark in HARMONY_MARKS[:5]):
        return REASONING_FORMATS["harmony"]
    with tokenizer.loading():
        prompts = list(render_chats(tokenizer, [[ASKED]], True))
        told = list(render_chats(tokenizer, [[ASKED, ANSWER], [ASKED, ANSWER, ASKED]], False))
    vocabulary = tokenizer.backend.get_vocab()
    fitted = (form.fitted(vocabulary) for form in REASONING_FORMATS.values())
    return next((form for form in fitted if has_reasoning_format(tokenizer, form, prompts, told)), None)


def has_reasoning_format(tokenizer: Tokenizer, form: ReasoningFormat, prompts: list[str], told: list[str]) -> bool:
    """Return whether the model shows this format. One of three observations is enough:

    - The template opens a thought of this format before an answer, or writes an empty thought there.
    - The template writes an earlier thought between these markers.
    - The markers are tokens, and the template contains one of them.

    Args:
        prompts, told: a question before its answer, and with its answer, as the template writes them with its switches.
    """
    if form.harmony or form.starts_inside or not form.split:  # a user must name these formats
        return form.harmony and any(form.opening + THOUGHT in text for text in told)
    source = tokenizer.template_source
    if form.evidence not in source:
        return False
    if any(start_of(prompt, form) != "unknown" for prompt in prompts) or any(
        has_marked_thought(text, form) for text in told
    ):
        return True
    pairs = zip(form.openings, form.closings, strict=True)
    tokens = (all(tokenizer.backend.token_to_id(marker) is not None for marker in pair) for pair in pairs)
    return any(tokens) and any(marker in source for marker in (*form.openings, *form.closings))


def has_marked_thought(text: str, form: ReasoningFormat) -> bool:
    """Return whether the thought stands between these markers."""
    before, _, behind = text.partition(THOUGHT)
    return before.rstrip().removesuffix(form.label.rstrip()).rstrip().endswith(
        tuple(marker.rstrip() for marker in form.openings)
    ) and behind.lstrip().startswith(tuple(marker.lstrip() for marker in form.closings))


def render_chats(tokenizer: Tokenizer, chats: list[list[dict[str, Any]]], open_turn: bool) -> Iterator[str]:
    """Yield the conversations as the template writes them, with each switch."""
    for messages in chats:
        for options in TRIED:
            try:
                yield tokenizer.render_chat(messages, add_generation_prompt=open_turn, **options)
            except RequestError:  # no template, or it refuses the conversation
                continue
