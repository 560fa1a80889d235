"""The formats of a model's thoughts and calls: those that the operator names, or those that the model shows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tailrace.api.response_template import ChosenTemplate, choose_template
from tailrace.config import ServerConfig
from tailrace.errors import ConfigError
from tailrace.text.reasoning import ALIASES as REASONING_ALIASES
from tailrace.text.reasoning import REASONING_FORMATS, ReasoningFormat, format_of
from tailrace.text.reasoning_probe import find_reasoning
from tailrace.text.response_templates.template import NAME as TEMPLATE
from tailrace.text.tool_parsers import ALIASES, TOOL_FORMATS, ToolFormat
from tailrace.text.tool_parsers.harmony import HARMONY, NAMES

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

PARSERS = {  # field of ServerConfig → its values
    "reasoning_parser": ("auto", TEMPLATE, "none", "identity", *REASONING_FORMATS, *REASONING_ALIASES),
    "tool_parser": ("auto", TEMPLATE, "none", *NAMES, *TOOL_FORMATS, *ALIASES),
}


def check_parsers(config: ServerConfig) -> None:
    """Check the names of the formats.

    Raises:
        ConfigError: one is not known; the message lists the known ones.
    """
    for field, known in PARSERS.items():
        if (name := getattr(config, field)) not in known:
            flag = "--" + field.replace("_", "-")
            raise ConfigError(f"server.{field} {name!r:.100} ({flag}) is not known; use one of {', '.join(known)}")


def choose_formats(
    config: ServerConfig, tokenizer: Tokenizer
) -> tuple[ChosenTemplate | None, ReasoningFormat | None, ToolFormat | None]:
    """Return the checkpoint's response template, if it reads the answers, and the formats of thoughts and calls."""
    template = choose_template(config.reasoning_parser, config.tool_parser, tokenizer, find_formats)
    if template is not None:
        return template, template.reasoning, template.tools
    reasoning = choose_reasoning(config.reasoning_parser, tokenizer)
    return None, reasoning, choose_tools(config.tool_parser, reasoning, tokenizer)


def name_parsers(
    template: ChosenTemplate | None, reasoning: ReasoningFormat | None, tools: ToolFormat | None
) -> dict[str, str]:
    """Return the names of what `choose_formats` chose, by the fields of ServerConfig."""
    if template is not None:
        thoughts, calls = (TEMPLATE if used else "none" for used in (template.separate, template.calls))
    else:  # A format that was fitted to a vocabulary still has the models of its table.
        thoughts = next((name for name, one in REASONING_FORMATS.items() if shares_models(one, reasoning)), "none")
        known = {"harmony": HARMONY, **TOOL_FORMATS}
        calls = next((name for name, one in known.items() if shares_models(one, tools)), "none")
    return {"reasoning_parser": thoughts, "tool_parser": calls}


def shares_models(one: ReasoningFormat | ToolFormat, other: ReasoningFormat | ToolFormat | None) -> bool:
    """Return whether both are the same format, as far as the models tell."""
    return other is not None and one.models == other.models


def choose_reasoning(chosen: str, tokenizer: Tokenizer) -> ReasoningFormat | None:
    """Return the reasoning format of this name; "auto": the one that the model shows."""
    if chosen == "auto":
        return find_reasoning(tokenizer)
    form = format_of(chosen)
    return None if form is None else form.fitted(tokenizer.backend.get_vocab())


def find_formats(tokenizer: Tokenizer) -> tuple[ReasoningFormat | None, ToolFormat | None]:
    """Return the formats of the tables that the model's chat template and vocabulary show."""
    reasoning = choose_reasoning("auto", tokenizer)
    return reasoning, choose_tools("auto", reasoning, tokenizer)


def choose_tools(chosen: str, reasoning: ReasoningFormat | None, tokenizer: Tokenizer) -> ToolFormat | None:
    """Return the tool format of this name. "auto": the first for which the model's template or vocabulary shows all of
    some evidence. With harmony, calls are messages beside the thoughts."""
    harmony = reasoning is not None and reasoning.harmony
    if chosen not in ("auto", "none") and harmony != (chosen in NAMES):
        log.warning(
            "tool_parser %s has no effect: the reasoning parser is %sharmony", chosen, "" if harmony else "not "
        )
    if harmony:
        return None if chosen == "none" else HARMONY
    vocabulary = tokenizer.backend.get_vocab()
    if chosen != "auto":
        form = TOOL_FORMATS.get(ALIASES.get(chosen, chosen))
        return None if form is None else form.fitted(vocabulary)
    fitted = (form.fitted(vocabulary) for form in TOOL_FORMATS.values())
    return next((form for form in fitted if any(all(map(tokenizer.may_write_marker, e)) for e in form.evidence)), None)
