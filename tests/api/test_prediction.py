"""`prediction`, OpenAI's predicted outputs: the field, its refusals, and what `usage` says."""

from __future__ import annotations

from typing import Any

import pytest

from api.harness import LocalClient, events, front_of, saying
from api.submitted import PATHS, asked, post, refusal
from tailrace.api import token_fields
from tailrace.drafting.adaptive import DraftLengthController
from tailrace.request.options import MAX_DRAFTS

TEXT = b"one two three four five six seven eight"
KINDS = ["chat", "text"]


def predicted(content: Any) -> dict[str, Any]:
    return {"type": "content", "content": content}


@pytest.fixture
async def front(tokenizer):
    async with front_of(LocalClient(saying(TEXT)), tokenizer) as front:
        front.client.engine.speculator.lengths = DraftLengthController(MAX_DRAFTS, adaptive=False)
        yield front


@pytest.mark.parametrize("kind", KINDS)
async def test_it_reaches_the_engine_as_token_ids(front, kind):
    assert (await asked(front, kind, prediction=predicted("abc")))[0].prediction == tuple(b"abc")
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    assert (await asked(front, kind, prediction=predicted(parts)))[0].prediction == tuple(b"abc")
    for nothing in (None, predicted(""), predicted([])):
        assert (await asked(front, kind, prediction=nothing))[0].prediction == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ("abc", "prediction", "object"),
        ({"type": "text", "content": "a"}, "prediction.type", "text"),
        ({"type": "content"}, "prediction", "content"),
        ({"type": "content", "content": 5}, "prediction.content", "int"),
        ({"type": "content", "content": [{"type": "image", "text": "a"}]}, "prediction.content[0].type", "image"),
        ({"type": "content", "content": "a", "more": 1}, "prediction", "more"),
        (
            predicted("a" * (token_fields.MAX_PREDICTED_CHARS + 1)),
            "prediction",
            "at most 524288 characters, got 524289",
        ),
        (predicted("a" * 65_537), "prediction.content", "at most 65536 tokens, got 65537"),
    ],
)
async def test_what_is_refused(front, kind, given, param, words):
    error = await refusal(front, kind, prediction=given)
    assert error["param"].startswith("prediction"), error
    assert words in error["message"], error


async def test_beside_fields_that_leave_it_nothing_to_do(front):
    error = await refusal(front, "text", prediction=predicted("a"), use_beam_search=True, n=2)
    assert error["param"] == "prediction"
    error = await refusal(front, "text", prediction=predicted("a"), max_tokens=0, echo=True)
    assert error["param"] == "prediction"


def details(usage: dict[str, Any]) -> tuple[int, int]:
    told = usage["completion_tokens_details"]
    return told["accepted_prediction_tokens"], told["rejected_prediction_tokens"]


@pytest.mark.parametrize("kind", KINDS)
async def test_usage_says_what_of_it_came(front, kind):
    """12 characters came as predicted, 6 did not come; also in the last chunk of a stream, and of each choice."""
    prediction = predicted(TEXT[:6].decode() + "ABCDEF" + TEXT[6:12].decode())
    plain = (await post(front, kind, max_tokens=60)).json()
    steps = front.client.engine.counters.steps
    whole = (await post(front, kind, max_tokens=60, prediction=prediction)).json()
    assert front.client.engine.counters.steps - steps < steps
    assert details(whole["usage"]) == (12, 6)
    assert "completion_tokens_details" not in plain["usage"]
    key = "message" if kind == "chat" else "text"
    assert whole["choices"][0][key] == plain["choices"][0][key]
    asked = {"stream": True, "stream_options": {"include_usage": True}, "timings_per_token": True}
    *_, last, done = events((await post(front, kind, max_tokens=60, prediction=prediction, **asked)).text)
    assert done == "[DONE]"
    assert details(last["usage"]) == (12, 6)
    assert 0 < last["timings"]["draft_n_accepted"] <= last["timings"]["draft_n"]
    several = (await post(front, kind, max_tokens=60, prediction=prediction, n=3)).json()
    assert details(several["usage"]) == (36, 18)


async def test_a_stop_that_the_front_end_finds_cuts_the_count(front):
    answer = (await post(front, "text", max_tokens=60, prediction=predicted(TEXT.decode()), stop="three")).json()
    accepted, rejected = details(answer["usage"])
    assert accepted <= answer["usage"]["completion_tokens"]
    assert accepted + rejected == len(TEXT)


async def test_it_combines_with_what_openai_refuses(front):
    """n, logprobs, penalties and tools."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    fields = {"n": 2, "logprobs": True, "presence_penalty": 0.5, "max_completion_tokens": 50, "tools": [tool]}
    plain = (await post(front, "chat", seed=1, **fields)).json()
    told = (await post(front, "chat", seed=1, prediction=predicted(TEXT.decode()), **fields)).json()
    assert [choice["message"] for choice in told["choices"]] == [choice["message"] for choice in plain["choices"]]
    assert [choice["logprobs"] for choice in told["choices"]] == [choice["logprobs"] for choice in plain["choices"]]
    assert details(told["usage"])[0] == 2 * len(TEXT)


async def test_other_endpoints_have_no_such_field(front):
    for path, body in ((PATHS["responses"]), ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]})):
        told = await front.http.post(path, json=body | {"max_tokens": 9, "prediction": predicted("x")})
        assert "accepted_prediction_tokens" not in told.text
