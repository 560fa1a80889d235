"""Calls of some functions as a grammar: nothing else, or other text besides. Dispatches on the format; knows no request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailrace.errors import ParameterError
from tailrace.text.tool_parsers.script import Script, up_to, without

if TYPE_CHECKING:
    from tailrace.text.tool_parsers import Format


def forced(format: Format, script: Script) -> str:
    """Calls and nothing else.

    Raises:
        ParameterError: a schema that can't be enforced in this format.
    """
    written = format.script(script)
    opening = f"{script.mark(written.opening)} " if written.opening else ""
    script.rule("start", f"{opening}{written.rest}")
    return script.source()


def optional(format: Format, script: Script, content: Mapping[str, Any] | None = None) -> str:
    """Text, and behind it calls perhaps; or, where `content` is a schema, either JSON that fits it or calls.

    Raises:
        ParameterError: see `forced`; or nothing tells calls of this format from other JSON.
    """
    written = format.script(script)
    if content is not None:
        if not written.opening:
            raise ParameterError(
                "tools: this model's calls can't be told from JSON, so they can't be had together", "tools"
            )
        script.rule("start", f"{script.mark(written.opening)} {written.rest} | {script.json(content)}")
        return script.source()
    text = script.rule("SAID", without(*(opening for opening, _ in format.markers)))
    if not written.opening:
        text = script.rule("OTHER", f"{text} & ~/{written.alike}/")
        script.rule("start", f"{text} | {written.rest}")
    elif script.token(written.opening) is not None:
        script.rule("start", f"{text} | {text} {script.mark(written.opening)} {written.rest}")
    else:
        others = [opening for opening, _ in format.markers if opening != written.opening]
        script.rule("start", f"{text} | {script.rule('BEFORE', up_to(written.opening, *others))} {written.rest}")
    return script.source()
