"""`timings_per_token`: how long an answer took, in llama.cpp's shape."""

from __future__ import annotations

import pytest

from api.harness import LocalClient, events, front_of, saying
from tailrace.api.request_record import RequestOrigin, RequestRecord
from tailrace.api.schema.common import PromptTokensDetails, Timings, Usage
from tailrace.params import SamplingParams

NAMES = set(Timings.__struct_fields__)
PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi="},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("usage", [False, True])
async def test_the_last_chunk_has_them(tokenizer, path, usage):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer) as front:
        asked = PATHS[path] | {"max_tokens": 20, "timings_per_token": True}
        whole = (await front.http.post(path, json=asked)).json()
        options = {"stream_options": {"include_usage": True}} if usage else {}
        streamed = await front.http.post(path, json=asked | {"stream": True} | options)
    *before, last, done = events(streamed.text)
    assert done == "[DONE]"
    assert not any("timings" in chunk for chunk in before)
    assert (last["choices"], "usage" in last) == ([], usage)
    for answer in (whole, last):
        timings = answer["timings"]
        assert set(timings) == NAMES
        assert timings["prompt_n"] + timings["cache_n"] == whole["usage"]["prompt_tokens"]
        assert timings["predicted_n"] == whole["usage"]["completion_tokens"]
        assert timings["prompt_ms"] > 0
        assert timings["predicted_ms"] >= 0


@pytest.mark.parametrize("path", PATHS)
async def test_nobody_has_them_unasked(tokenizer, path):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer) as front:
        for stream in (False, True):
            asked = PATHS[path] | {"max_tokens": 20, "stream": stream, "timings_per_token": False}
            assert "timings" not in (await front.http.post(path, json=asked)).text


def test_they_are_computed_from_the_usage_and_the_first_token(monkeypatch: pytest.MonkeyPatch):
    record = RequestRecord("m", RequestOrigin(), "id", SamplingParams(), lambda *_: None)
    record.count_drafts([4, 4, 3, 1])
    monkeypatch.setattr(RequestRecord, "age_s", 3.0)
    usage = Usage(30, 8, 38, PromptTokensDetails(10))
    nothing = Usage(30, 0, 30, PromptTokensDetails(30))
    assert record.measure_timings(nothing) == Timings(30, 0, 3000.0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 7, 0)
    record.first_token_s = 1.0
    assert record.measure_timings(usage) == Timings(10, 20, 1000.0, 50.0, 20.0, 8, 2000.0, 250.0, 4.0, 7, 5)
