"""Chat messages → prompt text, by the model's own Jinja template, in a sandbox."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import uuid4

from tailrace.errors import RequestError
from tailrace.extras import needs


class TemplateRaisedError(Exception):
    """A template's own refusal."""


def _raise(message: str) -> None:
    raise TemplateRaisedError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


class ChatTemplate:
    """A compiled template, in the environment that templates written for transformers expect.

    Raises:
        MissingExtraError: Jinja is not installed.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        with needs("text"):
            from jinja2.ext import loopcontrols
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.source = source
        self._template = environment.from_string(source)
        self._special_tokens = special_tokens

    def unfinished(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        """The prompt up to the end of the last message's text, for the model to continue. A mark after that text shows
        where the template puts it (as transformers does it).

        Raises:
            RequestError: as `render`, or the template does not write all of the last message's text.
        """
        mark = f"<{uuid4().hex}>"
        content = messages[-1]["content"]
        last = messages[-1] | {"content": f"{content}{mark} "}
        whole = self.render([*messages[:-1], last], options)
        text, found, behind = whole.rpartition(mark)
        if not found or content.strip() not in text:
            raise RequestError(
                "continue_final_message: the model's chat template does not write all of the last message's text",
                "continue_final_message",
            )
        return text if behind.startswith(" ") else text.rstrip()  # a template that trims would have trimmed this end

    def render(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        """The prompt.

        Raises:
            RequestError: the template refuses these messages; the message says why.
        """
        try:
            return self._template.render({**self._special_tokens, **options, "messages": messages})
        # the template is the model's code: any error of it means that it refuses these messages
        except Exception as error:
            raise RequestError(f"messages: the model's chat template refuses them: {error}", "messages") from error
