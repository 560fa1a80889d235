"""A model's chat templates: messages → the text of the prompt."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from uuid import uuid4

from tailrace.errors import RequestError
from tailrace.text.templates.call_texts import render_with_texts
from tailrace.text.templates.forms import Message
from tailrace.text.templates.messages import fit_messages
from tailrace.text.templates.probe import make_attempt, probe_template
from tailrace.text.templates.probe_turns import TEXT_BESIDE_CALLS, probe_turns
from tailrace.text.templates.program import DEFAULT_LIMITS, TemplateLimits, TemplateProgram
from tailrace.text.templates.sources import DEFAULT, WITH_DOCUMENTS, WITH_TOOLS
from tailrace.text.templates.tool_probe import probe_tools

log = logging.getLogger(__name__)


class ChatTemplate:
    """One template, and the forms of messages that it takes.

    Attributes:
        program: the compiled template.
        forms: see `probe_template`.
        tools: in which conversations the template writes tools.
    Raises:
        ModelLoadError: the template can't be read, or exceeds its limits. `where` names it in the message.
        MissingExtraError: Jinja is not installed.
    """

    def __init__(
        self,
        source: str,
        special_tokens: dict[str, str],
        where: str = "the chat template",
        limits: TemplateLimits = DEFAULT_LIMITS,
    ) -> None:
        self.program = TemplateProgram(source, where, limits)
        self._special_tokens = special_tokens
        attempt = make_attempt(self.program, special_tokens)
        forms = probe_template(self.program, attempt)
        turns, lost = probe_turns(forms, attempt, self.program.constants)
        self.forms = forms._replace(turns=turns)
        self.tools = probe_tools(self.render)
        self.program.end_load()
        if not forms.contents:
            log.warning("%s writes none of the messages that were tried: chats are refused, or lose their text", where)
        self._drops_text = TEXT_BESIDE_CALLS in lost
        if lost:
            log.warning("%s leaves out in silence: %s", where, ", ".join(lost))

    def render(self, messages: list[Message], options: Mapping[str, Any]) -> str:
        """Return the prompt. options: the template's other variables.

        Raises:
            RequestError: the template refuses these messages, or exceeds its limits; the message has the reason.
        """
        return self._run_program(fit_messages(messages, self.forms, bool(options.get("tools"))), options)

    def drops_text(self, messages: list[Message]) -> bool:
        """Return whether the messages have text beside calls that the template silently leaves out."""
        return self._drops_text and any(m.get("tool_calls") and m.get("content") for m in messages)

    def unfinished(self, messages: list[Message], options: Mapping[str, Any]) -> str:
        """Return the prompt up to the end of the last message's text, for the model to continue. A mark after that text
        shows its place in the prompt (as in transformers).

        Raises:
            RequestError: as `render`. Or the last message has calls or no text. Or the template does not write the
                whole text exactly once, so its end is unknown.
        """
        if messages[-1].get("tool_calls"):
            raise RequestError(
                "continue_final_message: the last message has tool calls, behind which no text is continued",
                "continue_final_message",
            )
        *before, last = fit_messages(messages, self.forms, bool(options.get("tools")))
        name = uuid4().hex
        mark = f"<{name}>"
        text, marked = _mark_content(last.get("content"), f"{mark} ")
        if text is None:
            raise RequestError("continue_final_message: the last message has no text", "continue_final_message")
        whole, found, behind = self._run_program([*before, last | {"content": marked}], options).rpartition(mark)
        if not found or text.strip() not in whole:
            raise RequestError(
                "continue_final_message: the model's chat template does not write all of the last message's text",
                "continue_final_message",
            )
        if name in whole.lower():  # also if the template has changed the text, for example by an escape
            raise RequestError(
                "continue_final_message: the model's chat template writes the last message's text more than once",
                "continue_final_message",
            )
        return whole if behind.startswith(" ") else whole.rstrip()  # a trimming template would have trimmed this end

    def _run_program(self, messages: list[Message], options: Mapping[str, Any]) -> str:
        # transformers passes tools as OpenAI nests them. A few older templates expect the function alone.
        if self.forms.tools == "flat" and options.get("tools"):
            options = {**options, "tools": [tool.get("function", tool) for tool in options["tools"]]}

        def render_messages(given: list[Message]) -> str:
            return self.program.run({**self._special_tokens, **options, "messages": given})

        return render_with_texts(messages, self.forms.turns.text_and_calls, render_messages) or ""


class ChatTemplates:
    """All templates of a model, by name.

    Args:
        sources: see sources.template_sources; at least one.
    """

    def __init__(
        self, sources: Mapping[str, str], special_tokens: dict[str, str], limits: TemplateLimits = DEFAULT_LIMITS
    ) -> None:
        self.by_name = {
            name: ChatTemplate(source, special_tokens, f"the chat template {name!r}", limits)
            for name, source in sources.items()
        }

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Limit all renderings of a block together, as those at load.

        Raises:
            ModelLoadError: a template exceeds its limits.
        """
        for template in self.by_name.values():
            template.program.begin_load()
        yield
        for template in self.by_name.values():
            template.program.end_load()

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that any of the templates reads."""
        return frozenset().union(*(template.program.variables for template in self.by_name.values()))

    @cached_property
    def source(self) -> str:
        """The text of all templates."""
        return "\n".join(template.program.source for template in self.by_name.values())

    def pick_template(self, tools: object, documents: object) -> ChatTemplate:
        """Return the template for a conversation with these tools and documents. As in transformers, it is `tool_use`
        with tools, else `default`. With documents it is the first template that reads them; `rag` is the last one
        tried.

        Raises:
            RequestError: the model has no such template.
        """
        names = (WITH_TOOLS, DEFAULT, WITH_DOCUMENTS) if tools else (DEFAULT, WITH_DOCUMENTS)
        wanted = {"documents"} | ({"tools"} if tools else set()) if documents else set()
        found = [self.by_name[name] for name in names if name in self.by_name]
        if not documents and not (tools and WITH_TOOLS in self.by_name) and DEFAULT not in self.by_name:
            given = ", ".join(sorted(self.by_name))
            raise RequestError(f"messages: the model's chat templates ({given}) have none by default", "messages")
        chosen = next((template for template in found if wanted <= template.program.variables), None)
        if chosen is None:
            beside = " beside tools" if tools else ""
            raise RequestError(f"documents: the model's chat template takes none{beside}", "documents")
        return chosen


def _mark_content(content: Any, mark: str) -> tuple[str | None, Any]:
    """Return the text to continue, and the content with a mark after it."""
    if isinstance(content, str):
        return content, content + mark
    for i, part in reversed(list(enumerate(content or ()))):
        if isinstance(part.get("text"), str):
            return part["text"], [*content[:i], part | {"text": part["text"] + mark}, *content[i + 1 :]]
    return None, content
