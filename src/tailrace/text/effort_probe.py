"""Detection of the efforts that a chat template knows: it renders a question with each value of its variables for the
amount of thinking, and with a value that no template knows."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from tailrace.errors import RequestError
from tailrace.text.reasoning_probe import ASKED, EFFORTS, SWITCHES

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

OFF = "none"
LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")  # the least first
OFF_SPELLINGS = (OFF, "no_think")
DEFAULT_LEVELS = LEVELS[:3]  # what a prompt without an effort may stand for
UNKNOWN = "qzeffort"
QUESTIONS: tuple[list[dict[str, Any]], ...] = ([ASKED], [{"role": "system", "content": "Hello"}, ASKED])


class KnownEfforts(NamedTuple):
    """The efforts that one variable of a template tells apart.

    - levels: effort → the variable's value; None: the variable is left out.
    - off: the value that turns thinking off; None: there is none.
    """

    levels: dict[str, str | None]
    off: str | None

    @property
    def names(self) -> list[str]:
        """What a request may ask for, the least first."""
        return [*((OFF,) if self.off is not None else ()), *(name for name in LEVELS if name in self.levels)]

    def find_level(self, effort: str) -> str | None:
        """Return the nearest known level that is not above the effort; None if there is none."""
        below = LEVELS[: LEVELS.index(effort) + 1]
        return next((name for name in reversed(below) if name in self.levels), None)


_efforts: WeakKeyDictionary[Tokenizer, dict[str, KnownEfforts]] = WeakKeyDictionary()


def find_efforts(tokenizer: Tokenizer) -> dict[str, KnownEfforts]:
    """Return what `probe_efforts` returns. Only the first call tries the template."""
    if tokenizer not in _efforts:
        _efforts[tokenizer] = probe_efforts(tokenizer)
    return _efforts[tokenizer]


def probe_efforts(tokenizer: Tokenizer) -> dict[str, KnownEfforts]:
    """Return the efforts that the template knows, by variable. A variable is left out if the template writes any value,
    or if no value changes the prompt: then each value is passed as it is.

    Raises:
        ModelLoadError: the chat template exceeds its limits.
    """
    names = [name for name in EFFORTS if tokenizer.template_reads(name)]
    if not names:
        return {}
    with tokenizer.loading():
        found = {name: probe_variable(tokenizer, name) for name in names}
    return {name: known for name, known in found.items() if known is not None}


def probe_variable(tokenizer: Tokenizer, name: str) -> KnownEfforts | None:
    """Return the efforts that one variable tells apart; None if its values need no translation."""
    on = {switch: values[0] for switch, values in SWITCHES.items() if tokenizer.template_reads(switch)}
    unknown = render_questions(tokenizer, on | {name: UNKNOWN})
    if unknown is not None and UNKNOWN in unknown.lower():
        return None
    default = render_questions(tokenizer, on)
    prompts = {value: render_questions(tokenizer, on | {name: value}) for value in (*OFF_SPELLINGS, *LEVELS)}
    source = tokenizer.template_source
    quoted = {level for level in LEVELS if f"'{level}'" in source or f'"{level}"' in source}
    known = {
        value: prompt
        for value, prompt in prompts.items()
        if prompt is not None and (prompt != unknown or (value in quoted and prompt == default))
    }
    if all(prompt == unknown for prompt in known.values()):
        return None
    levels: dict[str, str | None] = {level: level for level in LEVELS if level in known}
    if default is not None and default not in known.values():
        levels |= dict.fromkeys(find_default_levels(levels))
    return KnownEfforts(levels, next((value for value in OFF_SPELLINGS if value in known), None))


def find_default_levels(known: Container[str]) -> Sequence[str]:
    """Return the levels that a prompt without an effort stands for: medium, as with OpenAI, if the template does not
    know this level. If it knows only levels above medium (DeepSeek V4), the levels below medium, too."""
    if not any(level in known for level in DEFAULT_LEVELS):
        return DEFAULT_LEVELS
    return () if DEFAULT_LEVELS[-1] in known else DEFAULT_LEVELS[-1:]


def render_questions(tokenizer: Tokenizer, options: dict[str, Any]) -> str | None:
    """Return the prompts of short conversations; None if the template refuses these options."""
    prompts: list[str] = []
    for messages in QUESTIONS:
        try:
            prompts.append(tokenizer.render_chat(messages, add_generation_prompt=True, **options))
        except RequestError:  # it may refuse a system message alone
            prompts.append("")
    return "\n".join(prompts) if any(prompts) else None
