"""Turns that a template leaves out or refuses come to it in turns that it writes, and those that it writes stay as they
came.

Each template here is the smallest of its kind; docs/templates.md has the real ones.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tailrace.errors import RequestError
from tailrace.text.templates.chat_template import ChatTemplate
from tailrace.text.templates.forms import TurnForms

Message = dict[str, Any]

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
FIRST_ONLY = "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}"
SKIPS = "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('be first') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
LATE = {"leaves out": FIRST_ONLY + SKIPS, "refuses": REFUSES}
NO_SYSTEM = {
    "leaves out": SKIPS,
    "refuses": "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}",
}
# Gemma, Mistral and Llama 2: a user and the assistant take turns
ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
# Qwen 3.5
WANTS_USER = (
    "{% if not (messages | selectattr('role', 'equalto', 'user') | list) %}{{ raise_exception('no query') }}{% endif %}"
)


def said(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def called(*names: str, content: Any = None, **fields: Any) -> Message:
    calls = [
        {"id": f"id-{name}", "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}} for name in names
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls, **fields}


def result(name: str, content: Any = "21") -> Message:
    return {"role": "tool", "tool_call_id": f"id-{name}", "content": content}


def written(source: str, *messages: Message) -> str:
    return ChatTemplate(source, {}).render(list(messages), {"tools": None, "add_generation_prompt": True})


SYSTEM, ASK, ANSWER, NEWS, MORE = (
    said("system", "S"),
    said("user", "U"),
    said("assistant", "A"),
    said("system", "L"),
    said("user", "V"),
)


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("content", ["L", [{"type": "text", "text": "L"}]], ids=["text", "parts"])
def test_a_late_system_message_is_text_of_the_user_where_the_template_writes_none(late, role, content):
    news, source = said(role, content), LATE[late]
    assert written(source, SYSTEM, ASK, news) == "[system]S[user]U\n\nL"  # as Claude Code begins
    assert written(source, SYSTEM, ASK, news, ANSWER, MORE) == "[system]S[user]U\n\nL[assistant]A[user]V"
    assert written(source, SYSTEM, ASK, ANSWER, news, MORE) == "[system]S[user]U[assistant]A[user]L\n\nV"
    assert written(source, SYSTEM, ASK, ANSWER, news) == "[system]S[user]U[assistant]A[user]L"
    assert written(source, ASK, news) == "[user]U\n\nL"


@pytest.mark.parametrize("late", LATE)
def test_a_longer_conversation_begins_with_the_same_prompt(late):
    turns = [SYSTEM, ASK, NEWS, ANSWER, MORE, NEWS, ANSWER, NEWS, MORE]
    before = ""
    for end in range(2, len(turns) + 1):
        if turns[end - 1]["role"] == "assistant" or end == len(turns):
            now = written(LATE[late], *turns[: end - (end < len(turns))])
            assert now.startswith(before)
            before = now


@pytest.mark.parametrize("source", [PLAIN, PLAIN + "{{ '#' if 'developer' in messages }}"])
def test_a_late_system_message_stays_where_the_template_writes_it(source):
    assert written(source, SYSTEM, ASK, NEWS, ANSWER).endswith("[user]U[system]L[assistant]A")
    assert ChatTemplate(source, {}).forms.turns.systems == "anywhere"


@pytest.mark.parametrize("none", NO_SYSTEM)
def test_every_system_message_is_text_of_the_user_where_the_template_knows_none(none):
    source = NO_SYSTEM[none]
    assert written(source, SYSTEM, NEWS, ASK, ANSWER, NEWS, MORE) == "[user]S\n\nL\n\nU[assistant]A[user]L\n\nV"
    assert written(source, SYSTEM) == "[user]S"
    assert written(source, said("system", ""), ASK) == "[user]U"


def test_system_messages_alone_end_with_one_of_the_user_where_the_template_wants_a_user():
    assert written(WANTS_USER + PLAIN, SYSTEM) == "[user]S"
    assert written(WANTS_USER + PLAIN, SYSTEM, NEWS) == "[system]S[user]L"
    assert written(PLAIN, SYSTEM) == "[system]S"


def test_turns_in_a_row_are_one_where_the_template_refuses_them():
    parts = [{"type": "text", "text": "V"}]
    assert written(ALTERNATE, ASK, said("user", parts), ANSWER, said("assistant", "B"), MORE) == (
        "[user]U\n\nV[assistant]A\n\nB[user]V"
    )
    assert written(ALTERNATE, SYSTEM, ASK) == "[user]S\n\nU"
    assert written(PLAIN, ASK, MORE) == "[user]U[user]V"


def test_an_order_that_cannot_be_repaired_is_refused_in_the_templates_words():
    with pytest.raises(RequestError, match="refuses them: alternate"):
        written(ALTERNATE, ANSWER, ASK)


CALLS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or () %}"
    "<{{ c.function.name }} {{ c.function.arguments }}>{% endfor %}{% endfor %}"
)
ONE_CALL = CALLS.replace("(m.tool_calls or ())", "m.tool_calls").replace(
    "m.tool_calls or ()", "(m.tool_calls or ())[:1]"
)


def test_calls_and_results_are_text_where_the_template_writes_none():
    """Nothing of them vanishes."""
    only = "{% for m in messages if m.role in ('user', 'assistant') %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    turns = [ASK, called("f", "g", content="So"), result("f"), result("g", [{"type": "text", "text": "22"}])]
    text = written(only, *turns, said("assistant", "done"))
    f, g = (f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": 1}}}}\n</tool_call>' for name in "fg")
    results = "<tool_response>\n21\n</tool_response>\n<tool_response>\n22\n</tool_response>"
    assert text == f"[user]U[assistant]So\n{f}\n{g}[user]{results}[assistant]done"
    cut = called("f")
    cut["tool_calls"][0]["function"]["arguments"] = '{"a": "'
    assert json.dumps('{"a": "') in written(only, ASK, cut)
    assert written(ALTERNATE, ASK, called("f"), result("f"), MORE).endswith("</tool_response>\n\nV")


def test_results_have_the_role_under_which_the_template_looks_for_them():
    """GLM-4-0414: a call is an answer with the function's name as metadata, its result an observation."""
    glm = (
        "{% for m in messages %}{% if m.role == 'observation' %}[observation]{{ m.content }}{% elif m.role == 'user' %}"
        "[user]{{ m.content }}{% elif m.role == 'assistant' %}[assistant]{{ m.metadata or '' }}\n{{ m.content }}"
        "{% endif %}{% endfor %}"
    )
    assert written(glm, ASK, called("f", "g", content="So"), result("f"), result("g"), MORE) == (
        '[user]U[assistant]\nSo[assistant]f\n{"a": 1}[assistant]g\n{"a": 1}[observation]21[observation]21[user]V'
    )
    assert ChatTemplate(CALLS, {}).forms.turns == TurnForms()


@pytest.mark.parametrize("one", ["(m.tool_calls or ())[:1]", "raise"])
def test_parallel_calls_are_messages_of_their_own_where_the_template_writes_one(one):
    """Llama 3.1 refuses several calls, gpt-oss writes the first."""
    refuses = "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    source = ONE_CALL if one != "raise" else CALLS.replace("[{{ m.role }}]", refuses + "[{{ m.role }}]")
    turns = [
        ASK,
        called("f", "g", reasoning_content="hm"),
        result("g", "of g"),
        result("f", "of f"),
        result("h", "of h"),
    ]
    assert written(source, *turns) == (
        '[user]U[assistant]<f {"a": 1}>[tool]of f[assistant]<g {"a": 1}>[tool]of g[tool]of h'
    )
    assert written(CALLS, *turns).count("[assistant]") == 1


def test_text_beside_calls_is_a_message_of_its_own_where_the_template_leaves_one_out():
    """Llama 3.1 and the Hermes template of vLLM leave out the text, DeepSeek R1's distilled models the calls."""
    call = "{% for c in m.tool_calls %}<{{ c.function.name }} {{ c.function.arguments }}>{% endfor %}"
    no_text = (
        "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}"
        + call
        + "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    no_call = (
        "{% for m in messages %}[{{ m.role }}]{% if m.content %}{{ m.content }}{% elif m.tool_calls %}"
        + call
        + "{% endif %}{% endfor %}"
    )
    for source in (no_text, no_call):
        text = written(source, ASK, called("f", content="So"), result("f"))
        assert text == '[user]U[assistant]So[assistant]<f {"a": 1}>[tool]21'
    assert written(CALLS, ASK, called("f", content="So")) == '[user]U[assistant]So<f {"a": 1}>'


def test_a_user_behind_a_result_is_the_end_of_the_result_where_the_template_refuses_it():
    """Mistral. Claude Code sends text behind its results."""
    mistral = (
        "{% for m in messages %}{% if m.role == 'user' and not loop.first and loop.previtem.role == 'tool' %}"
        "{{ raise_exception('alternate') }}{% endif %}" + CALLS.removeprefix("{% for m in messages %}")
    )
    assert written(mistral, ASK, called("f"), result("f"), MORE).endswith("[tool]21\n\nV")
    assert written(CALLS, ASK, called("f"), result("f"), MORE).endswith("[tool]21[user]V")


def test_a_result_without_a_call_is_refused_where_the_template_leaves_it_out():
    """Gemma 4 writes results with their calls."""
    gemma = (
        "{% for m in messages if m.role != 'tool' %}[{{ m.role }}]{{ m.content or '' }}{% if m.tool_calls %}"
        "<{{ m.tool_calls[0].function.name }} {{ m.tool_calls[0].function.arguments }}>"
        "{% for r in messages if r.role == 'tool' %}{{ r.content }}{% endfor %}{% endif %}{% endfor %}"
    )
    with pytest.raises(
        RequestError, match=r"messages\[1\]: the model's chat template leaves out a tool's result"
    ) as error:
        written(gemma, ASK, result("f"))
    assert error.value.param == "messages[1]"
    assert written(gemma, ASK, called("f"), result("f")) == '[user]U[assistant]<f {"a": 1}>21'
    assert written(CALLS, ASK, result("f")) == "[user]U[tool]21"


def test_a_thought_is_where_the_template_looks_for_it():
    part = (
        "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content or () %}{{ '<t>' + p.thinking + '</t>' if p.type == 'thinking' else p.text }}"
        "{% endfor %}"
        "{% endif %}" + CALLS.partition("{{ m.content or '' }}")[2]
    )
    for thought in ("reasoning_content", "reasoning", "thinking"):
        turn = called("f", content="So", **{thought: "hm"})
        assert written(part, ASK, turn, result("f")) == '[user]U[assistant]<t>hm</t>So<f {"a": 1}>[tool]21'
    keeps = "{# </think> #}{% set closing = '</think>' %}" + CALLS
    assert written(keeps, ASK, called("f", content="So", thinking="hm"), result("f")) == (
        '[user]U[assistant]<think>\nhm\n</think>\n\nSo<f {"a": 1}>[tool]21'
    )
    assert "hm" not in written(CALLS, ASK, called("f", thinking="hm"), result("f"))


def test_what_is_left_out_whatever_is_done_is_logged(caplog):
    """A template that leaves out text beside calls, takes no answer in front of them, and numbers its calls."""
    source = (
        "{% for m in messages if not m.tool_calls and m.role != 'tool' %}"
        + ALTERNATE.removeprefix("{% for m in messages %}")
        + "{% for m in messages if m.tool_calls %}{% for c in m.tool_calls %}<{{ messages.index(m) }} "
        "{{ c.function.name }} {{ c.function.arguments }}>{% endfor %}{% endfor %}"
        "{% for m in messages if m.role == 'tool' %}{{ m.content }}{% endfor %}"
    )
    with caplog.at_level(logging.WARNING):
        ChatTemplate(source, {})
    assert "the chat template leaves out in silence: text beside tool calls" in caplog.text
    caplog.clear()
    ChatTemplate(CALLS, {})
    assert not caplog.text
    ChatTemplate("no message at all", {})
    assert "leaves out" not in caplog.text


def test_a_system_message_that_stands_only_beside_a_question_begins_the_first_turn_of_the_user():
    """Mistral writes it with the last message if that is the user's, so a turn that ends with a result has none."""
    source = (
        "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{% if loop.last and m.role == 'user' and "
        "messages[0].role == 'system' %}{{ messages[0].content }}{{ '\n\n' }}{% endif %}"
        + CALLS.removeprefix("{% for m in messages %}[{{ m.role }}]")
    )
    assert written(source, SYSTEM, ASK, called("f"), result("f")) == '[user]S\n\nU[assistant]<f {"a": 1}>[tool]21'
    assert written(source, SYSTEM, ASK) == "[user]S\n\nU"


def test_a_late_system_message_between_two_of_the_user_is_asked_for():
    """Cohere 2 takes a late one in front of an answer alone."""
    refuses = (
        "{% if m.role == 'user' and not loop.first and loop.previtem.role == 'system' and loop.index0 > 1 and "
        "messages[loop.index0 - 2].role == 'user' %}{{ raise_exception('alternate') }}{% endif %}"
    )
    source = PLAIN.replace("[{{", refuses + "[{{")
    assert written(source, SYSTEM, ASK, NEWS, MORE) == "[system]S[user]U\n\nL[user]V"


@pytest.mark.parametrize("late", [MORE, NEWS], ids=["user", "system"])
def test_a_turn_between_a_call_and_its_result_goes_behind_the_result_where_the_template_loses_one(late):
    """Gemma 4 looks for results directly behind their calls."""
    source = (
        "{% for m in messages %}{% if m.role != 'tool' or loop.previtem.role in ('tool', 'assistant') %}"
        + CALLS.removeprefix("{% for m in messages %}").removesuffix("{% endfor %}")
        + "{% endif %}{% endfor %}"
    )
    turns = written(source, ASK, called("f", "g"), result("f", "of f"), late, result("g", "of g"), ANSWER)
    assert turns.endswith(f"[tool]of f[tool]of g[{late['role']}]{late['content']}[assistant]A")
    assert written(CALLS, ASK, called("f"), late, result("f")).endswith(f"{late['content']}[tool]21")


def test_calls_are_text_in_a_request_without_tools_where_the_template_then_leaves_their_arguments_out():
    """Hunyuan A13B."""
    arguments = "{{ c.function.arguments if tools else '' }}"
    source = CALLS.replace("{{ c.function.name }} {{ c.function.arguments }}", "{{ c.function.name }} " + arguments)
    template, turns = ChatTemplate(source, {}), [ASK, called("f"), result("f")]
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert template.render(turns, {"tools": None}) == f"[user]U[assistant]{call}[tool]21"
    assert template.render(turns, {"tools": [{}]}) == '[user]U[assistant]<f {"a": 1}>[tool]21'


def test_a_call_without_a_result_is_text_where_the_template_refuses_what_follows():
    """Mistral. Clients send a question behind a call that max_tokens has cut."""
    refuses = (
        "{% if m.role == 'user' and not loop.first and loop.previtem.tool_calls %}{{ raise_exception('no result') }}"
        "{% endif %}"
    )
    source = CALLS.replace("[{{ m.role }}]", refuses + "[{{ m.role }}]")
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert written(source, ASK, called("f"), MORE, ANSWER) == f"[user]U[assistant]{call}[user]V[assistant]A"
    assert written(source, ASK, called("f"), result("f"), MORE).count("<tool_call>") == 0
    assert written(source, ASK, called("f"), ANSWER).count("<tool_call>") == 0
    assert written(source, ASK, called("f")) == '[user]U[assistant]<f {"a": 1}>'
    assert written(CALLS, ASK, called("f"), MORE) == '[user]U[assistant]<f {"a": 1}>[user]V'


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_answer_is_left_out_where_the_template_refuses_it(empty):
    """Ministral 3."""
    refuses = "{% if not m.content and not m.tool_calls %}{{ raise_exception('empty') }}{% endif %}"
    source = CALLS.replace("[{{ m.role }}]", refuses + "[{{ m.role }}]")
    assert written(source, ASK, said("assistant", empty), MORE) == "[user]U[user]V"
    assert written(CALLS, ASK, said("assistant", ""), MORE) == "[user]U[assistant][user]V"
