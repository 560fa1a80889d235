"""A model's chat templates: messages → the text of the prompt."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from uuid import uuid4

from tailrace.errors import ModelLoadError, RequestError
from tailrace.text.templates.environment import TemplateProgram, reason
from tailrace.text.templates.forms import Message
from tailrace.text.templates.limits import TemplateLimitError
from tailrace.text.templates.messages import fit_messages
from tailrace.text.templates.probe import probe
from tailrace.text.templates.sources import DEFAULT, WITH_DOCUMENTS, WITH_TOOLS

log = logging.getLogger(__name__)


class ChatTemplate:
    """One template, and how it wants its messages.

    Attributes:
        program: the compiled template. forms: see `probe`.
    Raises:
        ModelLoadError: it can't be read, or does too much. where: names it in the message.
        MissingExtraError: Jinja is not installed.
    """

    def __init__(self, source: str, special_tokens: dict[str, str], where: str = "the chat template") -> None:
        self.program = TemplateProgram(source, where)
        try:
            self.forms = probe(self.program, special_tokens)
        except TemplateLimitError as error:
            raise ModelLoadError(f"{where} can't be used: {reason(error)}") from error
        self._special_tokens = special_tokens

    def render(self, messages: list[Message], options: Mapping[str, Any]) -> str:
        """The prompt. options: the template's other variables.

        Raises:
            RequestError: the template refuses these messages; the message says why.
        """
        return self._run(fit_messages(messages, self.forms), options)

    def unfinished(self, messages: list[Message], options: Mapping[str, Any]) -> str:
        """The prompt up to the end of the last message's text, for the model to continue. A mark after that text shows
        where the template puts it (as transformers does it).

        Raises:
            RequestError: as `render`, or the last message has no text, or the template does not write all of it, or
                writes it more than once: then it has no one end.
        """
        *before, last = fit_messages(messages, self.forms)
        name = uuid4().hex
        mark = f"<{name}>"
        text, marked = _marked(last.get("content"), f"{mark} ")
        if text is None:
            raise RequestError("continue_final_message: the last message has no text", "continue_final_message")
        whole, found, behind = self._run([*before, last | {"content": marked}], options).rpartition(mark)
        if not found or text.strip() not in whole:
            raise RequestError(
                "continue_final_message: the model's chat template does not write all of the last message's text",
                "continue_final_message",
            )
        if name in whole.lower():  # also where the template has changed the text, as an escape does
            raise RequestError(
                "continue_final_message: the model's chat template writes the last message's text more than once",
                "continue_final_message",
            )
        return whole if behind.startswith(" ") else whole.rstrip()  # a template that trims would have trimmed this end

    def _run(self, messages: list[Message], options: Mapping[str, Any]) -> str:
        # transformers' templates see their tools as OpenAI nests them; a few older ones want the function alone
        if self.forms.tools == "flat" and options.get("tools"):
            options = {**options, "tools": [tool.get("function", tool) for tool in options["tools"]]}
        try:
            return self.program.run({**self._special_tokens, **options, "messages": messages})
        # the template is the model's code: any error of it means that it refuses these messages
        except Exception as error:
            said = f"messages: the model's chat template refuses them: {reason(error)}{_hint(messages, self.forms)}"
            raise RequestError(said, "messages") from error


class ChatTemplates:
    """All templates of a model, by name.

    Args:
        sources: see sources.template_sources; at least one.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: dict[str, str]) -> None:
        self.by_name = {
            name: ChatTemplate(source, special_tokens, f"the chat template {name!r}")
            for name, source in sources.items()
        }

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that any of the templates reads."""
        return frozenset().union(*(template.program.variables for template in self.by_name.values()))

    @cached_property
    def source(self) -> str:
        """The text of all templates."""
        return "\n".join(template.program.source for template in self.by_name.values())

    def pick(self, tools: object, documents: object) -> ChatTemplate:
        """The template for a conversation with these tools and documents: `tool_use` where there are tools, else
        `default`, as in transformers; where there are documents, the first that reads them, `rag` being the last.

        Raises:
            RequestError: there is none.
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


def _marked(content: Any, mark: str) -> tuple[str | None, Any]:
    """The text that is continued, and the content with a mark behind it."""
    if isinstance(content, str):
        return content, content + mark
    for i, part in reversed(list(enumerate(content or ()))):
        if isinstance(part.get("text"), str):
            return part["text"], [*content[:i], part | {"text": part["text"] + mark}, *content[i + 1 :]]
    return None, content


def _hint(messages: list[Message], forms: Any) -> str:
    """Where arguments are no JSON object and the template wants one: probably the cause."""
    if "string" in forms.arguments or not forms.arguments:
        return ""
    for i, message in enumerate(messages):
        for j, call in enumerate(message.get("tool_calls") or ()):
            if isinstance((call.get("function") or {}).get("arguments"), str):
                return f" (messages[{i}].tool_calls[{j}].function.arguments is no JSON object)"
    return ""
