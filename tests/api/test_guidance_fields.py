"""guidance_scale, negative_prompt and speculation → SamplingParams."""

from __future__ import annotations

from typing import Any

import pytest

from api.harness import CONTEXT, EOS, START, LocalClient, front_of, saying
from api.submitted import asked, refusal
from tailrace.request.options import Speculation

CHATS = ("chat", "responses")


@pytest.fixture
async def front(tokenizer):
    async with front_of(LocalClient(saying(b"x")), tokenizer) as front:
        yield front


@pytest.mark.parametrize("kind", ["chat", "text", "responses"])
async def test_the_scale_has_two_names_and_a_default_prompt(front, kind):
    for fields in ({"guidance_scale": 1.5}, {"cfg_scale": 1.5}, {"cfg_scale": 1.5, "guidance_scale": 1.5}):
        params, _ = await asked(front, kind, **fields)
        assert (params.guidance_scale, params.negative_prompt, params.guided) == (1.5, (), True)
    assert (await asked(front, kind))[0].guidance_scale == 1.0


async def test_of_a_completion_it_is_text_or_ids(front):
    assert (await asked(front, "text", guidance_scale=2, negative_prompt="no"))[0].negative_prompt == tuple(b"no")
    assert (await asked(front, "text", guidance_scale=2, negative_prompt=[START, 5]))[0].negative_prompt == (START, 5)


def turns(*contents: tuple[str, str], tail: str = "") -> tuple[int, ...]:
    ids: list[int] = []
    for role, content in contents:
        ids += [START, *f"{role}\n{content}".encode(), EOS, *b"\n"]
    return (*ids, *tail.encode(), START, *b"assistant\n")


async def test_empty_it_is_what_any_text_begins_with(front, monkeypatch):
    monkeypatch.setattr(front.service.tokenizer, "bos_id", START)
    for kind, given in (("text", ""), ("text", []), ("chat", []), ("responses", [])):
        params, _ = await asked(front, kind, guidance_scale=2, negative_prompt=given)
        assert params.negative_prompt == (START,), kind


@pytest.mark.parametrize("kind", CHATS)
async def test_of_a_chat_it_goes_through_the_same_template(front, kind):
    fields: dict[str, Any] = {"guidance_scale": 2, "chat_template_kwargs": {"shout": True}}
    got = (await asked(front, kind, negative_prompt="dull", **fields))[0].negative_prompt
    assert got == turns(("user", "dull"), tail="LOUD\n")
    messages = [{"role": "system", "content": "Be dull."}, {"role": "user", "content": "hi"}]
    got = (await asked(front, kind, negative_prompt=messages, **fields))[0].negative_prompt
    assert got == turns(("system", "Be dull."), ("user", "hi"), tail="LOUD\n")


async def test_the_longer_of_both_prompts_must_fit(front):
    long = "n" * (CONTEXT - 10)
    params, _ = await asked(front, "text", guidance_scale=2, negative_prompt=long)
    assert params.max_tokens == 10
    error = await refusal(front, "text", guidance_scale=2, negative_prompt=long, max_tokens=11)
    assert (error["param"], "[1, 10]" in error["message"]) == ("max_tokens", True)
    for kind in ("chat", "text", "responses"):
        error = await refusal(front, kind, guidance_scale=2, negative_prompt="n" * CONTEXT)
        assert (error["param"], error["code"]) == ("negative_prompt", "context_length_exceeded")


@pytest.mark.parametrize("given", [{}, {"max_drafts": 0}, {"max_drafts": 32, "rule": "typical"}, {"rule": "block"}])
@pytest.mark.parametrize("kind", ["chat", "text", "responses"])
async def test_speculation(front, kind, given):
    assert (await asked(front, kind, speculation=given))[0].speculation == Speculation(**given)
    assert (await asked(front, kind))[0].speculation is None


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"guidance_scale": -1}, "guidance_scale", "[0, 100]"),
    ({"guidance_scale": "x"}, "guidance_scale", "`float | null`"),
    ({"guidance_scale": 2, "cfg_scale": 3}, "cfg_scale", "guidance_scale"),
    ({"cfg_scale": -1}, "cfg_scale", "cfg_scale must be a number in [0, 100]"),
    ({"negative_prompt": "x"}, "negative_prompt", "no effect without guidance_scale"),
    ({"guidance_scale": 2, "negative_prompt": []}, "negative_prompt", "at least one"),
    ({"guidance_scale": 2, "negative_prompt": 5}, "negative_prompt", "got `int`"),
    ({"speculation": {"max_drafts": 33}}, "speculation", "[0, 32]"),
    ({"speculation": {"max_drafts": -1}}, "speculation", "[0, 32]"),
    ({"speculation": {"rule": "best"}}, "speculation.rule", '"best"'),
    ({"speculation": {"drafts": 1}}, "speculation", "`drafts`"),
    ({"speculation": 5}, "speculation", "`object | null`"),
]


@pytest.mark.parametrize("kind", ["chat", "text", "responses"])
@pytest.mark.parametrize(("fields", "param", "words"), BAD)
async def test_a_bad_value_is_a_400_that_names_the_field(front, kind, fields, param, words):
    error = await refusal(front, kind, **fields)
    assert error["param"] == param
    assert param in error["message"]
    assert words in error["message"]


async def test_a_completions_prompt_must_say_something_and_a_chats_be_a_conversation(front):
    assert (await refusal(front, "text", guidance_scale=2, negative_prompt=""))["param"] == "negative_prompt"
    error = await refusal(front, "chat", guidance_scale=2, negative_prompt=[{"role": "user"}])
    assert error["param"] == "negative_prompt[0].content"
    error = await refusal(front, "chat", guidance_scale=2, negative_prompt=[{"role": "function", "content": "x"}])
    assert (error["param"], "no functions here" in error["message"]) == ("negative_prompt", True)


@pytest.mark.parametrize("fields", [{"guidance_scale": 2}, {"cfg_scale": 2}, {"speculation": {"max_drafts": 2}}])
async def test_not_with_a_beam_search(front, fields):
    assert (await refusal(front, "text", use_beam_search=True, **fields))["param"] == next(iter(fields))


OFF = [
    {"guidance_scale": 1.0, "negative_prompt": "x"},
    {"cfg_scale": 1, "negative_prompt": "x"},
    {"guidance_scale": 1.0, "negative_prompt": ""},
    {"negative_prompt": ""},
]


@pytest.mark.parametrize("kind", ["chat", "text", "responses"])
@pytest.mark.parametrize("fields", OFF)
async def test_a_negative_prompt_beside_guidance_that_is_off_asks_for_nothing(front, kind, fields):
    """User interfaces send their whole panel."""
    params, _ = await asked(front, kind, **fields)
    assert (params.guidance_scale, params.negative_prompt) == (1.0, ())
