"""How a template wants its messages: what `probe` finds out and `messages` goes by."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Message = dict[str, Any]
REASONING = ("reasoning_content", "thinking", "reasoning")  # the names of what a model thought; the first is the usual
ROLES = ("system", "developer", "user", "assistant", "tool")
# of a message's content: "text" is a string, "parts" a list of parts, "part" a list of one part
ContentForm = Literal["text", "parts", "part"]
# of the content of a message that has calls and no text: the key left out, an empty string, null
EmptyForm = Literal["missing", "empty", "null"]
# of a call's arguments: a JSON object, or its text
ArgumentForm = Literal["object", "string"]


class TemplateForms(NamedTuple):
    """What a template writes whole. A message is given as it came wherever the template writes that form; otherwise in
    the first form of these.

    Attributes:
        contents: per role the forms of content; a role is missing where none is written (or the template refuses it).
        arguments: of a call's arguments; () where calls are not written.
        empty: of the missing content of a message with calls.
        tools: how tools are written: as OpenAI nests them, flat (without "function" around them), or not at all.
        developer: the template knows the role; otherwise such a message is given as a system message.
        all_systems: each of several system messages at the start is written; otherwise they are given as one.
        late_systems: a system message behind others is not left out in silence.
        result_names: the result of a call is written with the name of its function.
        parallel: several calls of one message are all written.
        thought_and_text: a message with calls may have both; otherwise its text is given as the end of its thought.
    """

    contents: dict[str, tuple[ContentForm, ...]]
    arguments: tuple[ArgumentForm, ...]
    empty: tuple[EmptyForm, ...]
    tools: Literal["nested", "flat", "none"]
    developer: bool
    all_systems: bool
    late_systems: bool
    result_names: bool
    parallel: bool
    thought_and_text: bool
