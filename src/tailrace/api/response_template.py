"""The choice between the checkpoint's response template and the tables of formats."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import ConfigError
from tailrace.text.reasoning import ReasoningFormat
from tailrace.text.response_templates.template import (
    KEY,
    NAME,
    ResponseTemplate,
    UnsupportedTemplateError,
    load_template,
)
from tailrace.text.tool_parsers import ToolFormat

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

WHERE = f"tokenizer_config.json: {KEY}"
OFF = ("none", "identity")  # names that leave a channel in the content


class ChosenTemplate(NamedTuple):
    """A template that reads the answers. reasoning, tools: the formats for budgets and grammars, where they follow from
    it. separate, calls: thoughts and calls have channels. shown: the special tokens that it names."""

    template: ResponseTemplate
    reasoning: ReasoningFormat | None
    tools: ToolFormat | None
    separate: bool
    calls: bool
    shown: tuple[str, ...]


def choose_template(reasoning: str, tools: str, tokenizer: Tokenizer) -> ChosenTemplate | None:
    """Return the checkpoint's template; None if the tables of formats apply.

    The template comes first. A format that the operator names comes before it, for thoughts and calls together. With
    `auto`, a template that tailrace can't apply leaves the choice to the tables, with a warning.

    Args:
        reasoning, tools: the names of the parsers.

    Raises:
        ConfigError: the template must be used, but can't be. ModelLoadError: the template is damaged.
    """
    names = {reasoning, tools}
    if not names & {"auto", NAME} or (NAME not in names and not names <= {"auto", *OFF}):
        return None
    if NAME in names and (others := names - {"auto", NAME, *OFF}):
        raise ConfigError(f"the parser {NAME} reads thoughts and calls together; it can't be used with {others.pop()}")
    if tokenizer.response_template is None:
        if NAME in names:
            raise ConfigError(f"the parser {NAME} needs a {KEY} in tokenizer_config.json, and this model has none")
        return None
    try:
        template = load_template(tokenizer.response_template, WHERE)
    except UnsupportedTemplateError as error:
        if NAME in names:
            raise
        log.warning("the checkpoint's response template is not used: %s", error)
        return None
    if dropped := [field.name for field in template.fields if not field.channel]:
        log.warning("%s: answers leave out the fields %s, which the API does not have", WHERE, ", ".join(dropped))
    log.info("answers are read by the checkpoint's response template")
    special = [token for id in tokenizer.special_ids if (token := tokenizer.backend.id_to_token(id))]
    return ChosenTemplate(
        template,
        None if reasoning in OFF else template.make_reasoning(),
        None if tools in OFF else template.make_tools(),
        reasoning not in OFF,
        tools not in OFF,
        template.list_marks(special),
    )
