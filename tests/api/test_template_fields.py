"""What of a chat reaches the model's template: reasoning_effort, documents, refusals, parts, calls of before."""

from __future__ import annotations

import json

import pytest

from api.harness import LocalClient, front_of, make_tokenizer, saying
from api.submitted import refusal
from tailrace.api import body
from tailrace.text.reasoning_probe import EFFORTS, SWITCHES
from tailrace.text.tokenizer import Tokenizer

READS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or () %}{{ c.function.name }}("
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}){% endfor %}<|im_end|>{% endfor %}"
    "|{{ enable_thinking }}|{{ reasoning_effort }}|{{ documents }}"
)
USER = {"role": "user", "content": "a"}


@pytest.fixture
async def front(tmp_path):
    make_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(READS)
    async with front_of(LocalClient(saying(b"x")), Tokenizer.load(tmp_path)) as front:
        yield front


async def prompt_of(front, *messages, **fields) -> str:
    """The text that the model is given."""
    answer = await front.http.post("/tokenize", json={"messages": list(messages or (USER,)), **fields})
    assert answer.status_code == 200, answer.text
    return (await front.http.post("/detokenize", json={"tokens": answer.json()["tokens"]})).json()["prompt"]


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, "||"),
        ({"reasoning_effort": "high"}, "|True|high|"),
        ({"reasoning_effort": "none"}, "|False||"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, "|False|low|"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}}, "|True|low|"),
        ({"chat_template_kwargs": {"reasoning_effort": "odd"}}, "||odd|"),
        ({"enable_thinking": False}, "|False||"),
        ({"enable_thinking": True}, "|True||"),
        ({"thinking": False}, "|False||"),
        ({"thinking": {"type": "disabled"}}, "|False||"),
        ({"thinking": {"type": "enabled"}}, "|True||"),
        ({"thinking": {"type": "auto"}, "enable_thinking": True}, "|True||"),
        ({"reasoning": {"enabled": False}}, "|False||"),
        ({"reasoning": {"effort": "high", "exclude": False, "summary": "auto"}}, "|True|high|"),
        ({"reasoning": {"effort": "high", "context": "auto", "mode": "standard"}}, "|True|high|"),
        ({"reasoning": {"effort": "none"}}, "|False||"),
        ({"reasoning_effort": "high", "enable_thinking": False}, "|False|high|"),
        ({"documents": [{"title": "t"}]}, "||[{'title': 't'}]"),
    ],
)
async def test_effort_and_documents_reach_the_template(front, fields, seen):
    assert seen in await prompt_of(front, **fields)


@pytest.mark.parametrize(("name", "on", "off"), [(name, *values) for name, values in SWITCHES.items()])
async def test_every_switch_of_a_template_is_set(tmp_path, name, on, off):
    make_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(f"{{{{ messages[0].content }}}}|{{{{ {name} }}}}|")
    async with front_of(LocalClient(saying(b"x")), Tokenizer.load(tmp_path)) as front:
        for wish in ({"enable_thinking": False}, {"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}):
            assert f"|{off}|" in await prompt_of(front, **wish)
        assert f"|{on}|" in await prompt_of(front, enable_thinking=True)
        assert f"|{off}|" in await prompt_of(front, chat_template_kwargs={name: off})
        error = await refusal(front, messages=[USER], enable_thinking=True, chat_template_kwargs={name: off})
        assert error["param"] == "enable_thinking"


async def test_messages_reach_the_template_whole(front):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"k": "é"}'}}
    refused = {"role": "assistant", "content": None, "refusal": "never"}
    parts = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "but"}]}
    both = {"role": "assistant", "content": "well", "refusal": "no"}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    text = await prompt_of(front, USER, refused, parts, both, called, {"role": "developer", "content": "d"})
    for words in (
        "assistant\nnever<",
        "assistant\nno\nbut<",
        "assistant\nwell\nno<",
        "assistant\nf(k=é)<",
        "system\nd<",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "tool_calls[0].custom"),
        ({"role": "assistant", "tool_calls": [{}]}, "tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "tool_calls[0].function.name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "function_call": {"name": "f"}}, "function_call"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text"),
        ({"role": "assistant", "content": [{"type": "refusal", "text": "x"}]}, "content[0].refusal"),
        ({"role": "developer"}, "content"),
    ],
)
async def test_what_no_template_can_write_is_refused_by_its_place(front, message, place):
    error = await refusal(front, messages=[message])
    assert error["param"] == f"messages[0].{place}"
    assert error["message"].startswith(f"messages[0].{place}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
        ({"chat_template_kwargs": {"documents": []}}, "chat_template_kwargs"),
        ({"enable_thinking": "no"}, "enable_thinking"),
        ({"enable_thinking": True, "thinking": {"type": "disabled"}}, "enable_thinking"),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}}, "thinking.type"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "disabled", "budget_tokens": 3}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 3}}, "thinking.budget_tokens"),  # no format is known
        ({"thinking": {"type": "enabled", "depth": 3}}, "thinking"),
        ({"reasoning": {"max_tokens": 3}}, "reasoning.max_tokens"),
        ({"reasoning": {"max_tokens": -3}}, "reasoning.max_tokens"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"depth": 3}}, "reasoning"),
        ({"verbosity": "loud"}, "verbosity"),
        ({"documents": "x"}, "documents"),
        ({"documents": ["x"]}, "documents[0]"),
    ],
)
async def test_bad_fields_are_named(front, fields, param):
    assert (await refusal(front, messages=[USER], **fields))["param"] == param


async def test_documents_that_no_template_reads_are_refused(tmp_path):
    async with front_of(LocalClient(saying(b"x")), make_tokenizer(tmp_path)) as front:
        error = await refusal(front, messages=[USER], documents=[{"text": "x"}])
        assert error["param"] == "documents"
        assert (await front.http.post("/tokenize", json={"messages": [USER], "documents": []})).status_code == 200


@pytest.mark.parametrize("effort", ["none", "high"])
async def test_responses_have_their_effort_in_an_object(front, effort):
    reasoning = {"effort": effort, "summary": "auto"}
    answer = await front.http.post("/v1/responses", json={"input": "a", "reasoning": reasoning, "max_output_tokens": 1})
    assert answer.status_code == 200, answer.text
    assert answer.json()["reasoning"] == reasoning
    asked = json.dumps({"input": "a", "reasoning": {"effort": "huge"}})
    error = await front.http.post("/v1/responses", content=asked, headers={"content-type": "application/json"})
    assert error.status_code == 400
    assert error.json()["error"]["param"] == "reasoning.effort"


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (r'{"a": "\ud800"}', "f(a=\ufffd)"),
        (r'{"\udc00": 1}', "f(\ufffd=1)"),
        (r'{"a": ["\ude00\ud83d"]}', "f(a=['\\ude00\\ud83d'])"),  # as Python shows such a list
        (r'{"a": "\ud83d\ude00"}', "f(a=😀)"),
    ],
)
async def test_half_of_a_surrogate_pair_in_arguments_reaches_the_model_as_the_replacement(front, arguments, seen):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    before = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert seen in await prompt_of(front, *before)
    assert (await front.http.post("/v1/chat/completions", json={"messages": before})).status_code == 200
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    assert (await front.http.post("/v1/responses", json={"input": [USER, item]})).status_code == 200


def test_no_tokenizer_is_given_half_of_a_surrogate_pair(tmp_path):
    tokenizer = make_tokenizer(tmp_path)
    for text in ("a\ud800", "é\udfff" * 3000):
        assert tokenizer.encode(text) == tokenizer.encode(text.replace("\ud800", "\ufffd").replace("\udfff", "\ufffd"))


@pytest.mark.parametrize(("name", "on", "off"), [(name, *values) for name, values in SWITCHES.items()])
@pytest.mark.parametrize(("other", "others"), SWITCHES.items())
async def test_a_known_switch_under_another_name_is_the_templates(tmp_path, name, on, off, other, others):
    make_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(f"{{{{ messages[0].content }}}}|{{{{ {name} }}}}|")
    async with front_of(LocalClient(saying(b"x")), Tokenizer.load(tmp_path)) as front:
        assert f"|{on}|" in await prompt_of(front, chat_template_kwargs={other: others[0]})
        assert f"|{off}|" in await prompt_of(front, chat_template_kwargs={other: others[1]})
        assert f"|{off}|" in await prompt_of(front, chat_template_kwargs={"thinking_effort": "none"})
        own = {other: others[0], name: off}  # the template's own name goes first
        assert f"|{off}|" in await prompt_of(front, chat_template_kwargs=own)


@pytest.mark.parametrize("name", EFFORTS)
@pytest.mark.parametrize("other", EFFORTS)
async def test_an_effort_under_another_name_is_the_templates(tmp_path, name, other):
    make_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(f"{{{{ messages[0].content }}}}|{{{{ {name} }}}}|")
    async with front_of(LocalClient(saying(b"x")), Tokenizer.load(tmp_path)) as front:
        assert "|high|" in await prompt_of(front, chat_template_kwargs={other: "high"})


@pytest.mark.parametrize(
    ("effort", "on"),
    [
        ({"reasoning_effort": "none"}, {"enable_thinking": True}),
        ({"reasoning": {"effort": "none"}}, {"thinking": {"type": "enabled"}}),
        ({"reasoning_effort": "none"}, {"reasoning": {"enabled": True}}),
    ],
)
async def test_no_effort_and_thinking_contradict(front, effort, on):
    """None never means most. A template's own variable, which is the last word, may say otherwise."""
    error = await refusal(front, messages=[USER], **effort, **on)
    assert error["param"] in ("reasoning_effort", "reasoning.effort")
    assert error["message"].startswith(f'{error["param"]} ("none") and ')
    assert "|True|" in await prompt_of(front, **effort, chat_template_kwargs={"enable_thinking": True})


async def test_two_names_of_a_switch_that_the_template_does_not_read_agree(front):
    error = await refusal(front, messages=[USER], chat_template_kwargs={"thinking": True, "thinking_mode": "disabled"})
    assert error["param"] == "chat_template_kwargs.thinking"
    assert "differ" in error["message"]


@pytest.mark.parametrize(
    ("kwargs", "names"),
    [
        ({}, None),
        ({"enable_thinking": False, "documents_": 1}, "documents_"),
        ({"thinking": False}, None),
        ({"reasoning_strength": "high", "thinking_mode": "odd"}, None),
        ({"custom": 1, "another": None}, "custom, another"),
        ({'"\r\nx: y"': 1, "é": 1}, "some names"),
        ({"x" * 1000: 1, "a": 1}, "a"),
    ],
)
async def test_a_variable_that_the_template_does_not_read_has_a_warning(front, kwargs, names):
    warning = f'299 tailrace "chat_template_kwargs: the model\'s chat template does not read {names}"'
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = await front.http.post(path, json={"messages": [USER], "chat_template_kwargs": kwargs})
        assert answer.status_code == 200, answer.text
        assert answer.headers.get_list("warning") == ([] if names is None else [warning])
    answer = await front.http.post("/v1/responses", json={"input": "a", "chat_template_kwargs": kwargs})
    assert answer.headers.get_list("warning") == ([] if names is None else [warning])


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"enable_thinking": True}, "enable_thinking"),
        ({"thinking": {"type": "enabled"}}, "enable_thinking"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning_effort": "none"}, None),
        ({"enable_thinking": False}, None),
        ({"verbosity": "low"}, "verbosity"),
    ],
)
async def test_a_wish_that_the_template_has_no_variable_for_is_logged(tmp_path, monkeypatch, caplog, fields, name):
    """Except thinking that is turned off: then a thought is closed."""
    monkeypatch.setattr(body, "_logged", set())
    make_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    async with front_of(LocalClient(saying(b"x")), Tokenizer.load(tmp_path)) as front:
        for _ in range(2):
            await prompt_of(front, **fields)
    said = [record.getMessage() for record in caplog.records if "does not ask" in record.getMessage()]
    named = f"unknown request field '{name} (the chat template does not ask for it)' is ignored"
    assert said == ([] if name is None else [named])


async def test_a_switch_of_a_template_without_one(tmp_path):
    """Off asks for nothing; on can't be had."""
    make_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    async with front_of(LocalClient(saying(b"x")), Tokenizer.load(tmp_path)) as front:
        for value, warnings in ((False, 0), (True, 1)):
            fields = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": value}}
            answer = await front.http.post("/v1/chat/completions", json=fields)
            assert len(answer.headers.get_list("warning")) == warnings
