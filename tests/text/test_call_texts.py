"""Text beside calls reaches the model with every template that can be made to write it.

Each template here is the smallest of its kind; docs/templates.md has the real ones.
"""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import RequestError
from tailrace.text.templates.call_texts import find_opening, render_with_texts
from tailrace.text.templates.chat_template import ChatTemplate
from tailrace.text.templates.forms import CallOpening

Message = dict[str, Any]

# Mistral: a user and the assistant take turns where neither calls nor results stand; a call is written without its text
ALTERNATES = (
    "{% for m in messages if not m.tool_calls and m.role not in ('tool', 'system') %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{% endfor %}"
)
TURNS = "{% for m in messages %}{% if m.tool_calls %}{CALLS}{% elif m.role == 'assistant' %} {{ m.content }}</s>"
TURNS += "{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
NAMED = "[CALL]{% for c in m.tool_calls %}{{ c.function.name }} {{ c.function.arguments }};{% endfor %}</s>"
IN_JSON = "[CALL] [{% for c in m.tool_calls %}{{ c.function | tojson }}, {% endfor %}]</s>"
MISTRAL = {
    "named": ALTERNATES + TURNS.replace("{CALLS}", NAMED),
    "json": ALTERNATES + TURNS.replace("{CALLS}", IN_JSON),
}
ONE = {"named": '[CALL]f {"a": 1};</s>', "json": '[CALL] [{"name": "f", "arguments": {"a": 1}}, ]</s>'}
# gpt-oss: text beside calls is a thought, and goes once an answer has come
THOUGHT = (
    "{% set answers = namespace(last=-1) %}{% for m in messages if m.role == 'assistant' and not m.tool_calls %}"
    "{% set answers.last = messages.index(m) %}{% endfor %}{% for m in messages %}[{{ m.role }}]"
    "{% if not m.tool_calls %}{{ m.content }}{% elif loop.index0 > answers.last %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or () %}<{{ c.function.name }} {{ c.function.arguments }}>{% endfor %}{% endfor %}"
)
# a DeepSeek V3: the text beside calls is written with the first calls alone
FIRST_ALONE = (
    "{% set calls = namespace(seen=false) %}{% for m in messages %}[{{ m.role }}]"
    "{% if not m.tool_calls or not calls.seen %}{{ m.content or '' }}{% endif %}"
    "{% for c in m.tool_calls or () %}<{{ c.function.name }} {{ c.function.arguments }}>{% set calls.seen = true %}"
    "{% endfor %}{% endfor %}"
)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def called(content: Any, *names: str, **fields: Any) -> Message:
    calls = [{"id": "c", "type": "function", "function": {"name": name, "arguments": {"a": 1}}} for name in names]
    return {"role": "assistant", "content": content, "tool_calls": calls, **fields}


RESULT = {"role": "tool", "tool_call_id": "c", "content": "21"}


def written(source: str, *messages: Message) -> str:
    return ChatTemplate(source, {}).render(list(messages), {"tools": None, "add_generation_prompt": True})


@pytest.mark.parametrize("kind", MISTRAL)
@pytest.mark.parametrize("text", ["So", 'a "b"\n\\ {{ x }} é \u2028', [{"type": "text", "text": "So"}]])
def test_text_comes_before_calls_where_the_template_writes_it_nowhere(kind, text):
    plain, call = (text if isinstance(text, str) else "So"), ONE[kind]
    first = (user("U"), called(text, "f"), RESULT)
    assert written(MISTRAL[kind], *first) == f"[user]U {plain}{call}[tool]21"
    assert written(MISTRAL[kind], *first, answer("A"), user("V")) == f"[user]U {plain}{call}[tool]21 A</s>[user]V"


@pytest.mark.parametrize("kind", MISTRAL)
def test_each_text_comes_before_its_own_calls(kind):
    call = ONE[kind]
    agent = (user("U"), called("So", "f"), RESULT, called("And", "f"), RESULT, called(None, "f"), RESULT)
    assert written(MISTRAL[kind], *agent) == f"[user]U So{call}[tool]21 And{call}[tool]21{call}[tool]21"
    both = written(MISTRAL["named"], user("U"), called("So", "f", "g"), RESULT, RESULT)
    assert both == '[user]U So[CALL]f {"a": 1};g {"a": 1};</s>[tool]21[tool]21'


def test_an_answer_that_joins_a_call_behind_it_is_written():
    turns = (user("U"), answer("A"), called(None, "f"), RESULT)
    assert written(MISTRAL["named"], *turns) == f"[user]U A{ONE['named']}[tool]21"


def test_keys_of_a_function_may_come_in_any_order():
    turn = called("So", "f")
    turn["tool_calls"][0]["function"] = {"arguments": {"a": 1}, "name": "f"}
    assert written(MISTRAL["json"], user("U"), turn, RESULT) == f"[user]U So{ONE['json']}[tool]21"


def test_a_template_without_a_fixed_place_before_calls_keeps_its_warning():
    source = MISTRAL["named"].replace("[CALL]", "[CALL {{ loop.index }}]")
    template = ChatTemplate(source, {})
    assert template.drops_text([user("U"), called("So", "f")])
    assert not ChatTemplate(MISTRAL["named"], {}).drops_text([user("U"), called("So", "f")])


def test_calls_that_a_template_moves_or_repeats_are_refused_beside_text():
    opening = CallOpening("", "[CALL]")
    for run in (lambda given: "nothing", lambda given: 2 * f"[CALL]{given[0]['tool_calls'][0]['function']['name']}"):
        with pytest.raises(RequestError, match="no place for the text beside a call") as error:
            render_with_texts([called("So", "f")], opening, run)
        assert error.value.param == "messages"
    assert render_with_texts([called("So", "f")], opening, lambda given: None) is None
    assert render_with_texts([called("", "f")], opening, lambda given: "nothing") == "nothing"


def test_the_opening_of_a_call_is_what_differs_from_an_answer():
    assert find_opening("[u]x[a] word</s>", "[u]x[a][CALL]name", "word", "name") == (" ", "[CALL]")
    assert find_opening("[u]x word", "[u]x[CALL]other", "word", "name") is None
    assert find_opening(None, "[CALL]name", "word", "name") is None


def test_text_that_vanishes_behind_an_answer_is_a_turn_of_its_own_from_then_on():
    call, before = '<f {"a": 1}>', (user("U"), called("So", "f"), RESULT)
    assert written(THOUGHT, *before) == f"[user]U[assistant]So{call}[tool]21"
    ended = f"[user]U[assistant]So[assistant]{call}[tool]21[assistant]A[user]V"
    assert written(THOUGHT, *before, answer("A"), user("V")) == ended
    again = written(THOUGHT, *before, answer("A"), user("V"), called("Now", "f"), RESULT)
    assert again == f"{ended}[assistant]Now{call}[tool]21"


def test_text_beside_later_calls_is_looked_for():
    call, turns = '<f {"a": 1}>', (user("U"), called("So", "f"), RESULT, called("And", "f"), RESULT)
    assert written(FIRST_ALONE, *turns) == (
        f"[user]U[assistant]So[assistant]{call}[tool]21[assistant]And[assistant]{call}[tool]21"
    )


def test_a_message_with_calls_is_not_continued():
    """Its calls would be left out of the prompt."""
    for source in (MISTRAL["named"], THOUGHT, "{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}"):
        with pytest.raises(RequestError, match="the last message has tool calls") as error:
            ChatTemplate(source, {}).unfinished([user("U"), called("So", "f")], {"tools": None})
        assert error.value.param == "continue_final_message"
