"""How a template wants its messages is found by trying, and messages come to it so: with nothing lost, nothing doubled.

Each template here is the smallest of its kind; docs/templates.md has the real ones.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.errors import RequestError
from tailrace.text.templates.chat_template import ChatTemplate, ChatTemplates

CALLS = (  # HERE: where the arguments go
    "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "<{{ c.function.name }} HERE>{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
# how a template writes arguments → the forms in which it is given them
ARGUMENTS = {
    "{{ c.function.arguments | tojson }}": ("object",),
    "{{ c.function.arguments }}": ("string",),
    "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}": (
        "object",
        "string",
    ),
    # both are written, but differently: an object as the model writes it
    "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
    "{% for k, v in c.function.arguments.items() %}{{ k }}:{{ v }};{% endfor %}{% endif %}": ("object",),
    "{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}{% endfor %}": ("object",),
    "{{ (c.function | tojson) }}": ("object",),
    "{{ '' + c.function.arguments }}": ("string",),
    "": (),
}
GIVEN = {"city": "Zürich", "n": 2}


def written(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source, {}).render(list(messages), {"tools": None, **options})


def call(arguments: Any, **fields: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}], **fields}


@pytest.mark.parametrize("how", ARGUMENTS)
def test_arguments_come_as_the_template_writes_them(how):
    template, wanted = ChatTemplate(CALLS.replace("HERE", how), {}), ARGUMENTS[how]
    assert template.forms.arguments == wanted
    texts = set()
    for arguments in (GIVEN, json.dumps(GIVEN, ensure_ascii=False)):
        given = call(arguments)
        texts.add(template.render([given], {"tools": None}))
        assert given["tool_calls"][0]["function"]["arguments"] == arguments  # the caller's message stays
    assert len(texts) == 1
    if wanted:
        text = texts.pop()
        assert "city" in text
        assert "Zürich" in text
        assert "\\" not in text
        assert "'" not in text


def test_the_text_of_arguments_stays_where_the_template_writes_texts():
    """It is what the model wrote: the prompt begins as the last one did, spaces and all."""
    either = CALLS.replace("HERE", list(ARGUMENTS)[2])
    assert '{"city":"Zürich"}' in written(either, call('{"city":"Zürich"}'))


@pytest.mark.parametrize("arguments", ['{"a": "', "[1]", "3", '"x"', '{"a": ' + "[" * 100_000], ids=range(5))
def test_arguments_that_are_no_object_stand_in_one_where_the_template_wants_an_object(arguments):
    """A call that max_tokens cut must not end the conversation."""
    wants_items, takes_all, takes_text = (CALLS.replace("HERE", list(ARGUMENTS)[i]) for i in (4, 0, 1))
    assert f"<INVALID_JSON>{arguments}" in written(wants_items, call(arguments))
    assert json.dumps({"INVALID_JSON": arguments}) in written(takes_all, call(arguments))
    assert f"<f {arguments}>" in written(takes_text, call(arguments))


@pytest.mark.parametrize("arguments", [None, "", {}, "{}", "null"])
@pytest.mark.parametrize("how", [0, 1, 2])
def test_no_arguments_are_an_empty_object(how, arguments):
    assert "<f {}>" in written(CALLS.replace("HERE", list(ARGUMENTS)[how]), call(arguments))


# what a template does with a message that has calls and no text → the forms of content it takes there
EMPTY = {
    "{{ m.content }}": ("missing", "empty", "null"),
    "{{ m['content'] + '' }}": ("empty",),
    "{% if m['content'] is none %}{% else %}{{ raise_exception('text') }}{% endif %}": ("null",),
    "{% if m.content is defined %}{{ raise_exception('text') }}{% endif %}": ("missing",),
}


@pytest.mark.parametrize("how", EMPTY)
@pytest.mark.parametrize("given", [{}, {"content": ""}, {"content": None}])
def test_the_content_beside_calls_is_one_that_the_template_takes(how, given):
    source = "{% for m in messages %}{% if m.tool_calls %}" + how + "{{ m.tool_calls | tojson }}{% endif %}{% endfor %}"
    template = ChatTemplate(source, {})
    assert template.forms.empty == EMPTY[how]
    assert '"f"' in template.render([call({}, **given)], {"tools": None})


CONTENTS = {
    "{{ m.content }}": ("text",),
    "{% for p in m.content %}{{ p.text }}{% endfor %}": ("parts", "part"),
    "{{ m.content[0].text }}": ("part",),
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}"
    "{% endif %}": (
        "text",
        "parts",
        "part",
    ),
    "{{ m.content | tojson }}": ("text",),
}


@pytest.mark.parametrize("how", CONTENTS)
def test_content_comes_as_the_template_writes_it(how):
    template = ChatTemplate("{% for m in messages %}" + how + "{% endfor %}", {})
    assert set(template.forms.contents.values()) == {CONTENTS[how]}
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    for role in ("system", "user", "assistant", "tool"):
        assert "one" in template.render([{"role": role, "content": "one"}], {"tools": None})
        text = template.render([{"role": role, "content": parts}], {"tools": None})
        assert text.index("one") < text.index("two")
        assert "type" not in text


def test_each_role_has_a_form_of_its_own():
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    parts = [{"type": "text", "text": "a"}]
    assert written(source, {"role": "system", "content": parts}, {"role": "user", "content": "b"}) == "ab"


PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
KNOWS = "{% for m in messages %}{{ '#' if m.role == 'developer' else '' }}[{{ m.role }}]{{ m.content }}{% endfor %}"


def test_a_developer_is_a_system_where_the_template_knows_none():
    message = {"role": "developer", "content": "x"}
    assert written(PLAIN, message) == "[system]x"
    assert written(KNOWS, message) == "#[developer]x"


FIRST_ONLY = "{% if messages[0].role == 'system' %}<{{ messages[0].content }}>{% endif %}"
USERS = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"


def test_several_system_messages_are_one_where_the_template_would_leave_one_out():
    systems = ({"role": "system", "content": "a"}, {"role": "developer", "content": [{"type": "text", "text": "b"}]})
    assert written(FIRST_ONLY + USERS, *systems, {"role": "user", "content": "c"}) == "<a\n\nb>c"
    assert written(PLAIN, *systems) == "[system]a[system]b"


def test_results_have_the_names_of_their_functions_where_the_template_writes_them():
    named = CALLS.replace("HERE", "{{ c.function.arguments | tojson }}") + "{{ messages[-1].name }}"
    result = {"role": "tool", "tool_call_id": "c", "content": "r"}
    assert written(named, call({}), result).endswith("]rf")
    assert written(named, call({}), result | {"name": "g"}).endswith("]rg")
    assert written(named, call({}), result | {"tool_call_id": "d"}).endswith("]r")


def test_thoughts_have_each_of_their_names():
    for read in ("reasoning_content", "reasoning", "thinking"):
        for given in ("reasoning_content", "reasoning", "thinking"):
            source = "{{ messages[0]." + read + " }}"
            assert written(source, {"role": "assistant", "content": "", given: "hm"}) == "hm"


def test_text_beside_a_call_ends_the_thought_where_the_template_takes_one_of_them():
    """As gpt-oss's does."""
    both = (
        "{% for m in messages %}{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}"
        "{% endif %}[{{ m.thinking }}|{{ m.content }}]{{ m.tool_calls[0].function.name }}"
        "{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{% endfor %}"
    )
    for content in ("So", [{"type": "text", "text": "So"}]):
        given = call({}, content=content, reasoning_content="hm")
        assert written(both, given) == "[hm\n\nSo|]f{}"
        assert (given["content"], given["reasoning_content"]) == (content, "hm")
    assert written(both, call({}, content="So")) == "[|So]f{}"
    assert written(both, call({}, content="", reasoning_content="hm")) == "[hm|]f{}"
    assert written(both.replace("raise_exception('both')", "''"), given | {"content": "So"}) == "[hm|So]f{}"


def test_a_list_of_no_calls_is_none():
    source = "{% if messages[0].tool_calls is defined %}calls{% endif %}"
    assert written(source, {"role": "assistant", "content": "", "tool_calls": []}) == ""


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def test_tools_come_as_the_template_reads_them():
    for source in (
        "{% for t in tools %}{{ t.function.name }}{% endfor %}",
        "{% for t in tools %}{{ t.name }}{% endfor %}",
    ):
        assert written(source, {"role": "user", "content": ""}, tools=[TOOL]) == "f"


def test_the_template_for_tools_is_taken_where_there_are_tools():
    sources = {"default": "plain", "tool_use": "tools", "rag": "{{ documents }}"}
    templates = ChatTemplates(sources, {})
    assert templates.pick_template(None, None).program.source == "plain"
    assert templates.pick_template([TOOL], None).program.source == "tools"
    assert templates.pick_template(None, [{}]).program.source == "{{ documents }}"
    with pytest.raises(RequestError, match="documents: the model's chat template takes none beside tools"):
        templates.pick_template([TOOL], [{}])
    with pytest.raises(RequestError, match=r"documents: the model's chat template takes none$"):
        ChatTemplates({"default": "plain"}, {}).pick_template(None, [{}])
    with pytest.raises(RequestError, match=r"the model's chat templates \(tool_use\) have none by default"):
        ChatTemplates({"tool_use": "tools"}, {}).pick_template(None, None)


LINES = "{% for m in messages %}{{ m.content }}{% endfor %}"
NAMES = "{% for t in tools %}{{ t.function.name }}{% endfor %}"
FLAT = "{% for t in tools %}{{ t.name }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "with_system", "without_system"),
    [
        (LINES, False, False),
        (LINES + NAMES, True, True),
        (LINES + FLAT, True, True),
        (LINES + "{{ tools | tojson }}", True, True),
        (LINES + "{% if tools %}You have tools.{% endif %}", False, False),
        ("{% if messages[0].role == 'system' %}" + NAMES + "{% endif %}" + LINES, True, False),
        (LINES + "{% if messages[0].role != 'system' %}" + NAMES + "{% endif %}", False, True),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + LINES, True, True),
    ],
)
def test_whether_a_template_writes_tools_is_found_out(source, with_system, without_system):
    template = ChatTemplate(source, {})
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    assert template.tools.covers([system, user]) == with_system
    assert template.tools.covers([system | {"role": "developer"}, user]) == with_system
    assert template.tools.covers([user]) == without_system


@pytest.mark.parametrize("source", ["{% include '/etc/passwd' %}", "{{ raise_exception('no') }}", "plain"])
def test_a_template_that_writes_no_message_is_logged(source: str, caplog: pytest.LogCaptureFixture):
    ChatTemplate(source, {})
    assert [line for line in caplog.messages if "writes none of the messages that were tried" in line]


def test_a_template_that_writes_messages_is_not_logged(caplog: pytest.LogCaptureFixture):
    ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    assert not [line for line in caplog.messages if "writes none" in line]
