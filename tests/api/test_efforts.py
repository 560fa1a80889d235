"""An effort that a template does not know becomes the nearest lower one that it knows, or is refused. No effort at all
never becomes the most."""

from __future__ import annotations

import pytest

from api.harness import VOCAB, LocalClient, front_of, make_tokenizer, saying
from api.submitted import refusal
from tailrace.config import ServerConfig
from tailrace.engine.token_bytes import TokenBytes
from tailrace.text.effort_probe import LEVELS, find_efforts, probe_efforts
from tailrace.text.tokenizer import Tokenizer

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
END = "<|im_start|>assistant\n"  # a template loses a line break at its end
MOST = (
    "{% if reasoning_effort == 'low' %}[little]{% elif reasoning_effort == 'medium' %}[some]{% else %}[most]{% endif %}"
)
TOP = "{% if reasoning_effort == 'max' %}[most]{% endif %}"
QUOTED = (
    "{% set e = reasoning_effort | default('high') %}{% if e == 'low' %}[little]{% elif e == 'max' %}[most]{% endif %}"
)
STRICT = (
    "{% set e = reasoning_effort | default('no_think') %}"
    "{% if e not in ('no_think', 'low', 'high') %}{{ raise_exception('bad effort') }}{% endif %}[{{ e }}]"
)
EITHER = STRICT.replace("'low', ", "").replace("no_think", "none")
ECHO = "[{{ reasoning_effort | default('medium') }}]"
SWITCH = "{% if enable_thinking is not defined or enable_thinking %}" + MOST + "{% else %}[off]{% endif %}"
BLIND = "{% if reasoning_effort and tools %}[x]{% endif %}"
UNKNOWN = None  # a 400


def load(folder, text: str, name: str = "reasoning_effort") -> Tokenizer:
    make_tokenizer(folder, TURNS + text.replace("reasoning_effort", name) + END + "{{ '' }}")
    return Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("template", "prompts"),
    [
        (MOST, {"minimal": UNKNOWN, "low": "[little]", "medium": "[some]", "high": "[some]", "max": "[some]"}),
        (TOP, {"minimal": "", "low": "", "medium": "", "high": "", "xhigh": "", "max": "[most]"}),
        (
            QUOTED,
            {"minimal": UNKNOWN, "low": "[little]", "medium": "[little]", "high": "", "xhigh": "", "max": "[most]"},
        ),
        (STRICT, {"minimal": UNKNOWN, "low": "[low]", "medium": "[low]", "high": "[high]", "xhigh": "[high]"}),
        (STRICT, {"none": "[no_think]"}),
        (EITHER, {"none": "[none]", "low": UNKNOWN, "medium": UNKNOWN, "high": "[high]", "max": "[high]"}),
        (ECHO, {"minimal": "[minimal]", "xhigh": "[xhigh]", "none": "[none]"}),
        (SWITCH, {"none": "[off]", "low": "[little]", "high": "[some]"}),
        (BLIND, dict.fromkeys(("none", *LEVELS), "")),
    ],
)
@pytest.mark.parametrize("name", ["reasoning_effort", "thinking_effort"])
async def test_an_effort_becomes_the_nearest_lower_one(tmp_path, template, prompts, name):
    async with front_of(LocalClient(saying(b"x")), load(tmp_path, template, name)) as front:
        for effort, expected in prompts.items():
            for field, fields in (
                ("reasoning_effort", {"reasoning_effort": effort}),
                ("reasoning.effort", {"reasoning": {"effort": effort}}),
            ):
                asked = {"messages": [{"role": "user", "content": "a"}], **fields}
                if expected is UNKNOWN:
                    error = await refusal(front, **asked)
                    assert error["param"] == field
                    known = ", ".join(find_efforts(front.service.tokenizer)[name].names)
                    assert f"{field} must be one of {known} for this model" in error["message"]
                    continue
                tokens = (await front.http.post("/tokenize", json=asked)).json()["tokens"]
                prompt = (await front.http.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
                assert prompt.endswith(f"<|im_end|>\n{expected}{END}"), (effort, prompt)


async def test_what_a_request_writes_into_the_templates_variables_stays(tmp_path):
    async with front_of(LocalClient(saying(b"x")), load(tmp_path, MOST)) as front:
        asked = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"reasoning_effort": "max"}}
        tokens = (await front.http.post("/tokenize", json=asked)).json()["tokens"]
        assert "[most]" in (await front.http.post("/detokenize", json={"tokens": tokens})).json()["prompt"]


@pytest.mark.parametrize(
    "fields",
    [{"reasoning_effort": "none"}, {"reasoning": {"effort": "none"}}, {"enable_thinking": False}, {"think": False}],
    ids=str,
)
async def test_no_effort_is_never_the_most(tmp_path, fields):
    """The template has no word for it, and would think most. So the thought is closed at once, or the field refused."""
    tokenizer = load(tmp_path, MOST)
    client = LocalClient(saying(b"<think>abcdef</think>"))
    client.token_bytes = TokenBytes.of(tokenizer, VOCAB)
    async with front_of(client, tokenizer, ServerConfig(reasoning_parser="think")) as front:
        answer = (await front.chat(**fields)).json()["choices"][0]["message"]
        assert not answer.get("reasoning_content")
        assert (await front.chat()).json()["choices"][0]["message"]["reasoning_content"] == "abcdef"
    client = LocalClient(saying(b"Hi"))
    async with front_of(client, tokenizer, ServerConfig(reasoning_parser="none")) as front:
        answer = await front.chat(**fields)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] in ("reasoning_effort", "reasoning.effort", "enable_thinking", "think")
        assert "its efforts are low, medium" in error["message"]


async def test_messages_call_the_effort_by_its_name(tmp_path):
    async with front_of(LocalClient(saying(b"x")), load(tmp_path, EITHER)) as front:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "output_config": {"effort": "low"}}
        answer = await front.http.post("/v1/messages", json=body)
        assert answer.status_code == 400
        assert "output_config.effort must be one of none, high for this model" in answer.json()["error"]["message"]


def test_templates_that_need_no_translation(tmp_path):
    for template in (ECHO, BLIND, ""):
        assert probe_efforts(load(tmp_path, template)) == {}
