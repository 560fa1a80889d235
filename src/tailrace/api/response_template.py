"""The choice between the checkpoint's response template and the tables of formats."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.errors import ConfigError, RequestError
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.reasoning import ReasoningFormat
from tailrace.text.response_templates.splitter import TemplateSplitter
from tailrace.text.response_templates.template import (
    KEY,
    NAME,
    ResponseTemplate,
    UnsupportedTemplateError,
    load_template,
)
from tailrace.text.splitter import Splitter
from tailrace.text.tool_parsers import ToolFormat, tool_schemas

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

WHERE = f"tokenizer_config.json: {KEY}"
Formats = tuple[ReasoningFormat | None, ToolFormat | None]
USER = {"role": "user", "content": "qzasked"}
ARGUMENTS = {"text": "qz words", "count": 3}
FUNCTION = {"name": "qzcalled", "arguments": json.dumps(ARGUMENTS)}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call00001", "type": "function", "function": FUNCTION}],
}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "qzcalled", "description": "qz", "parameters": SCHEMA}}]
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


def choose_template(
    reasoning: str, tools: str, tokenizer: Tokenizer, find_formats: Callable[[Tokenizer], Formats]
) -> ChosenTemplate | None:
    """Return the checkpoint's template; None if the tables of formats apply.

    The template comes first. A format that the operator names comes before it, for thoughts and calls together. With
    `auto`, a template that tailrace can't apply leaves the choice to the tables, with a warning. So does a template
    that reads calls as a format of the tables does: that format has a grammar, and its arguments are streamed.

    Args:
        reasoning, tools: the names of the parsers. find_formats: returns the formats of the tables for this model.

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
    if NAME not in names and agrees_with_tables(template, tokenizer, find_formats(tokenizer)):
        log.info("%s reads calls as a known format does, so the known format is used", WHERE)
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


def agrees_with_tables(template: ResponseTemplate, tokenizer: Tokenizer, formats: Formats) -> bool:
    """Return whether the template and the formats of the tables read the same call from what the model's chat template
    writes."""
    reasoning, tools = formats
    if reasoning is not None and reasoning.harmony:
        return True  # its messages can't be taken for another format's
    if tools is None:
        return False
    try:
        before, whole = (
            tokenizer.render_chat(messages, tools=TOOLS, add_generation_prompt=False)
            for messages in ([USER], [USER, CALL])
        )
    except RequestError:
        return False
    answer, declared = whole.removeprefix(before), tool_schemas(TOOLS)
    theirs = read_calls(TemplateSplitter(template, declared=declared), answer)
    ours = read_calls(ChannelSplitter(reasoning, tools, "unknown", declared), answer)
    return theirs == ours == [("qzcalled", ARGUMENTS)]


def read_calls(splitter: Splitter, text: str) -> list[tuple[str, Any]]:
    """Return the names and arguments of the calls in a text; [] if the arguments are no JSON."""
    found: dict[int, list[str]] = {}
    for segment in [*splitter.feed(text), *splitter.flush()]:
        if segment.call is not None:
            place, name, arguments, _ = segment.call
            call = found.setdefault(place, ["", ""])
            call[0] += name
            call[1] += arguments
    try:
        return [(name, json.loads(arguments)) for name, arguments in found.values()]
    except ValueError:
        return []
