"""Detection of the turns that a template writes: it renders small conversations, whose words must be in the output.

Each question has values, the first of which leaves the turns unchanged. The answer is the first value with which the
template writes all words of all its conversations. Without such a value the turns stay unchanged. Then the client gets
the template's own refusal, and a report of words that the template leaves out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tailrace.errors import RequestError
from tailrace.text.templates.call_texts import find_opening, render_with_texts
from tailrace.text.templates.forms import REASONING, CallOpening, Message, TemplateForms, TurnForms
from tailrace.text.templates.messages import fit_messages
from tailrace.text.templates.probe import (
    ASKED,
    CALLED,
    FIRST,
    OTHER,
    RESULT,
    SECOND,
    TOOLS,
    USER,
    VALUE,
    call_message,
    result_message,
    writes_call,
)

# roles of a tool's result in templates that do not know "tool"
RESULT_ROLES = ("observation", "function", "ipython", "tool_response", "tool_result")
THIRD, LATE, THOUGHT = "qzthird", "qzlate", "qzthought"
TEXT_BESIDE_CALLS = "text beside tool calls"
TOOL = [TOOLS["nested"]]
PRINTED_THOUGHT = re.compile(r"""thinking\\?['"]\s*:""")

Attempt = Callable[[list[Message], "list[Message] | None"], "str | None"]


class Question(NamedTuple):
    """A field of TurnForms, its values, and the conversations with the words that must be written.

    - lost: what the template leaves out if no value helps.
    - tools: conversations with calls also have tools.
    """

    field: str
    values: Iterable[Any]
    conversations: tuple[tuple[list[Message], tuple[str, ...]], ...]
    lost: str
    check: Callable[[str], bool] = bool
    tools: bool = True


def probe_turns(forms: TemplateForms, attempt: Attempt, constants: frozenset[str]) -> tuple[TurnForms, list[str]]:
    """Return the turns that the template writes, and the parts that it silently leaves out with every value.

    Args:
        forms: the template's known forms.
        attempt: renders messages with tools; None if the template fails.
        constants: the string constants of the template.
    """
    turns, lost = TurnForms(), []

    def render_fitted(messages: list[Message], turns: TurnForms, tools: bool = True) -> str | None:
        fitted = fit_messages(messages, forms._replace(turns=turns), tools)
        with_tools = any("tool_calls" in message for message in messages)
        ways = ((TOOL, None) if with_tools else (None, TOOL)) if tools else (None,)

        def run_attempts(given: list[Message]) -> str | None:
            return next((text for way in ways if (text := attempt(given, way)) is not None), None)

        try:
            return render_with_texts(fitted, turns.text_and_calls, run_attempts)
        except RequestError:
            return None

    def is_answered(question: Question, turns: TurnForms) -> bool:
        for messages, words in question.conversations:
            text = render_fitted(messages, turns, question.tools)
            if text is None or not all(word in text for word in words) or not question.check(text):
                return False
        return True

    def is_taken(question: Question, turns: TurnForms) -> bool:
        taken = all(
            render_fitted(messages, turns, question.tools) is not None for messages, _ in question.conversations
        )
        return taken and bool(forms.contents)  # a template that writes no message is no chat template

    for question in iter_questions(forms, attempt, constants):
        tried = (turns._replace(**{question.field: value}) for value in question.values)
        found = next((candidate for candidate in tried if is_answered(question, candidate)), None)
        if found is None and question.lost and is_taken(question, turns):
            lost.append(question.lost)
        turns = found or turns
    stray = render_fitted([USER, make_message("assistant", FIRST), result_message("c1")], turns)
    return turns._replace(stray_results=stray is None or RESULT in stray), lost


def iter_questions(forms: TemplateForms, attempt: Attempt, constants: frozenset[str]) -> Iterator[Question]:
    """Yield the questions in order: later ones depend on earlier answers."""
    form, empty = (forms.arguments or ("object",))[0], (forms.empty or ("empty",))[0]
    call, result = call_message(form, empty), result_message("c1")
    other = call_message(form, empty, OTHER, "c2", THIRD)
    both = call | {"tool_calls": call["tool_calls"] + other["tool_calls"]}
    answer, second = make_message("assistant", THIRD), make_message("user", SECOND)
    either = (True, False)
    results = ("tool", *(role for role in RESULT_ROLES if role in constants), "user")
    undeclared = call_message(form, empty, OTHER)  # no list of tools has its name
    if not forms.arguments:
        yield Question("calls", ("metadata", "text"), (([USER, undeclared], (OTHER, VALUE)),), "tool calls")
    yield Question("results", results, (([USER, call, result], (RESULT,)),), "results of tools")
    if forms.arguments:
        several = [USER, both, result, result_message("c2")]
        yield Question("calls_without_tools", either, (([USER, call, result], ()),), "", writes_call, tools=False)
        yield Question("parallel", either, ((several, (VALUE, THIRD)),), "all but one of parallel calls")
        told, told_again = (
            [USER, call | {"content": FIRST}, result],
            [other | {"content": SECOND}, result_message("c2")],
        )
        places = (
            (told, (FIRST, CALLED)),
            ([*told, *told_again], (FIRST, SECOND)),
            ([*told, answer, second], (FIRST, SECOND)),
        )
        openings = find_openings(attempt, call, result)
        ways = itertools.chain(("beside", "answered", "turn"), openings)
        yield Question("text_and_calls", ways, places, TEXT_BESIDE_CALLS, writes_call)
    thought = [USER, call | {REASONING[0]: THOUGHT}, result]
    ways = ("field", "part", *(("text",) if any("</think>" in text for text in constants) else ()))
    alone = [USER, answer | {REASONING[0]: THOUGHT}]
    yield Question("thoughts", ways, ((thought, (THOUGHT,)), (alone, (THOUGHT,))), "", writes_thought)
    yield from order_questions(forms, call, result)


def order_questions(forms: TemplateForms, call: Message, result: Message) -> Iterator[Question]:
    """Yield the questions about turns after other turns. call, result: in the template's forms."""
    answer, user, second = make_message("assistant", THIRD), make_message("user", FIRST), make_message("user", SECOND)
    system, late = make_message("system", FIRST), make_message("developer" if forms.developer else "system", LATE)
    either = (True, False)
    yield Question("users", either, (([user, second], (FIRST, SECOND)),), "one of two user messages in a row")
    answers = [USER, make_message("assistant", FIRST), answer, second]
    yield Question("assistants", either, ((answers, (FIRST, THIRD, SECOND)),), "one of two answers in a row")
    yield Question("empty_answers", either, (([USER, make_message("assistant", ""), second], (ASKED, SECOND)),), "")
    behind = [USER, call, result, second]
    yield Question("users_behind_results", either, ((behind, (RESULT, SECOND)),), "a user message behind a result")
    unanswered = [USER, call, second, answer, user]
    yield Question("open_calls", either, ((unanswered, (VALUE, SECOND)),), "")
    places = ([USER, answer, late, second], [USER, late], [USER, late, answer, second], [USER, late, second])
    spoken = (*(([system, *place], (FIRST, LATE)) for place in places), ([system, USER, call, result], (FIRST,)))
    yield Question("systems", ("anywhere", "first", "nowhere"), spoken, "system messages")
    yield Question("all_systems", either, (([system, late, USER], (FIRST, LATE)),), "one of two system messages")
    yield Question("lone_system", either, (([system], (FIRST,)),), "a system message without others")
    inside = ([USER, call, second, result], (SECOND, RESULT)), ([USER, call, late, result], (LATE, RESULT))
    yield Question("turns_before_results", either, inside, "a turn between a call and its result")


def find_openings(attempt: Attempt, call: Message, result: Message) -> Iterator[CallOpening]:
    """Yield the template's output before a call, if it can be found. call, result: in the template's forms."""
    answer, calls = (attempt([USER, *rest], TOOL) for rest in ([make_message("assistant", FIRST)], [call, result]))
    found = find_opening(answer, calls, FIRST, CALLED)
    yield from () if found is None else (found,)


def writes_thought(text: str) -> bool:
    """Return False if the probe's thought came out as Python prints a part, or after the end of another thought."""
    return PRINTED_THOUGHT.search(text) is None and "</think><think>" not in "".join(text.split())


def make_message(role: str, text: str) -> Message:
    """Return a message."""
    return {"role": role, "content": text}
