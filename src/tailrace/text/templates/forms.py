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


class CallOpening(NamedTuple):
    """What a template writes between the start of an answer and the answer's text, or the name of its first call."""

    lead: str
    calls: str


class TurnForms(NamedTuple):
    """Which turns a template writes. The defaults are a template that writes every turn as it comes.

    Attributes:
        all_systems: each of several system messages at the start; otherwise they are given as one.
        systems: system messages "anywhere", or "first" alone; elsewhere they are given as text of the user.
        lone_system: a system message without other turns; otherwise it is given as the user's.
        users, assistants: two turns of this role in a row; otherwise they are given as one.
        calls: in the "field" tool_calls; as GLM-4's "metadata"; otherwise as "text" of the assistant.
        calls_without_tools: calls also where the request has no tools; otherwise they are then given as text.
        open_calls: calls without results in front of a turn of the user; otherwise they are given as text.
        turns_before_results: turns between a call and its results; otherwise they are given behind the results.
        empty_answers: answers without text; otherwise they are left out.
        parallel: several calls of one message; otherwise each call is given in a message of its own.
        text_and_calls: text "beside" calls; beside them until it is "answered" by an answer without calls, and in a
            message of its own from then on; always in such a "turn" before the calls; or put into the prompt before
            what the template writes of the calls.
        results: the role of tools' results; "user": they are given as text of the user.
        stray_results: a result without a call before it; otherwise it is refused.
        users_behind_results: a user's turn behind a result; otherwise it is given as the end of the result.
        thoughts: in a "field" of the message, as most templates do, or nowhere; in a "part" of its content; as marked
            "text" of its content.
    """

    all_systems: bool = True
    systems: Literal["anywhere", "first", "nowhere"] = "anywhere"
    lone_system: bool = True
    users: bool = True
    assistants: bool = True
    calls: Literal["field", "metadata", "text"] = "field"
    calls_without_tools: bool = True
    open_calls: bool = True
    turns_before_results: bool = True
    empty_answers: bool = True
    parallel: bool = True
    text_and_calls: Literal["beside", "answered", "turn"] | CallOpening = "beside"
    results: str = "tool"
    stray_results: bool = True
    users_behind_results: bool = True
    thoughts: Literal["field", "part", "text"] = "field"


class TemplateForms(NamedTuple):
    """What a template writes whole. A message is given as it came wherever the template writes that form; otherwise in
    the first form of these.

    Attributes:
        contents: per role the forms of content; a role is missing where none is written (or the template refuses it).
        arguments: of a call's arguments; () where calls are not written.
        empty: of the missing content of a message with calls.
        tools: how tools are written: as OpenAI nests them, flat (without "function" around them), or not at all.
        developer: the template knows the role; otherwise such a message is given as a system message.
        result_names: the result of a call is written with the name of its function.
        thought_and_text: a message with calls may have both; otherwise its text is given as the end of its thought.
        turns: which turns are written.
    """

    contents: dict[str, tuple[ContentForm, ...]]
    arguments: tuple[ArgumentForm, ...]
    empty: tuple[EmptyForm, ...]
    tools: Literal["nested", "flat", "none"]
    developer: bool
    result_names: bool
    thought_and_text: bool
    turns: TurnForms = TurnForms()
