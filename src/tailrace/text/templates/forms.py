"""The forms of messages that a template takes: `probe` finds them, and `messages` applies them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Message = dict[str, Any]
REASONING = (
    "reasoning_content",
    "thinking",
    "reasoning",
)  # names of a model's thoughts; the first is usual
ROLES = ("system", "developer", "user", "assistant", "tool")
# forms of a message's content: "text" is a string, "parts" a list of parts, "part" a list of one part
ContentForm = Literal["text", "parts", "part"]
# forms of the content of a message that has calls and no text: the key left out, an empty string, null
EmptyForm = Literal["missing", "empty", "null"]
# forms of a call's arguments: a JSON object, or its text
ArgumentForm = Literal["object", "string"]


class CallOpening(NamedTuple):
    """The output of a template between the start of an answer and the answer's text, or the name of its first call."""

    lead: str
    calls: str


class TurnForms(NamedTuple):
    """Which turns a template writes. By default a template writes every turn unchanged. A turn that it does not write
    is changed as described here.

    - all_systems: it writes several system messages at the start. Otherwise they are joined.
    - systems: it writes system messages "anywhere", only the "first", or "nowhere". Other system messages become text
      of the user.
    - lone_system: it writes a system message without other turns. Otherwise that message becomes the user's.
    - users, assistants: it writes two turns of this role in a row. Otherwise they are joined.
    - calls: it writes calls of the "field" tool_calls, or of GLM-4's "metadata". Otherwise they become "text" of the
      assistant.
    - calls_without_tools: it writes calls if the request has no tools. Otherwise they become text in this case.
    - open_calls: it writes calls without results before a turn of the user. Otherwise they become text.
    - turns_before_results: it writes turns between a call and its results. Otherwise they move after the results.
    - empty_answers: it writes answers without text. Otherwise they are left out.
    - parallel: it writes several calls of one message. Otherwise each call becomes a message of its own.
    - text_and_calls: it writes text "beside" calls. With "answered" it does so until an answer without calls. After
      that answer, and always with "turn", the text becomes a message before the calls. With a CallOpening the text is
      inserted into the prompt before the calls.
    - results: the role of tools' results. With "user" they become text of the user.
    - stray_results: it writes a result without a call before it. Otherwise the result is refused.
    - users_behind_results: it writes a user's turn after a result. Otherwise the turn becomes the end of the result.
    - thoughts: it reads thoughts from a "field" of the message, as most templates do, or not at all. With "part" it
      reads them from a part of the content. With "text" they become marked text of the content.
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
    """The forms of messages that a template writes completely. A message stays unchanged if the template writes its
    form. Otherwise it gets the first form listed here.

    Attributes:
        contents: per role the forms of content. A role is missing if the template leaves it out or refuses it.
        arguments: the forms of a call's arguments. () if the template writes no calls.
        empty: the forms of the missing content of a message with calls.
        tools: the form of tools: as OpenAI nests them, flat (without "function" around them), or not written.
        developer: it knows this role. Otherwise such a message becomes a system message.
        result_names: it writes a call's result with the name of its function.
        thought_and_text: a message with calls may have both. Otherwise its text becomes the end of its thought.
        turns: the turns that it writes.
    """

    contents: dict[str, tuple[ContentForm, ...]]
    arguments: tuple[ArgumentForm, ...]
    empty: tuple[EmptyForm, ...]
    tools: Literal["nested", "flat", "none"]
    developer: bool
    result_names: bool
    thought_and_text: bool
    turns: TurnForms = TurnForms()
