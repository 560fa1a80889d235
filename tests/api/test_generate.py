"""POST /generate in SGLang's shapes: what /v1/completions answers, by other names."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from api.harness import CONTEXT, VOCAB, LocalClient, events, front_of
from api.harness import random_row as row
from tailrace.api.routes import generate as endpoint
from tailrace.api.schema.completions import CompletionRequest
from tailrace.api.schema.generate import RENAMED, SAMPLING

PROMPT = "The price = 4 €"
IDS = list(PROMPT.encode())


@pytest.fixture
async def front(tokenizer):
    async with front_of(LocalClient(row), tokenizer) as front:
        yield front


async def generate(front, sampling: dict | None = None, **fields):
    params = {"max_new_tokens": 4, "sampling_seed": 5, **(sampling or {})}
    answer = await front.http.post("/generate", json={"sampling_params": params, **fields})
    assert answer.status_code == 200, answer.text
    return answer


async def complete(front, **fields):
    asked = {"max_tokens": 4, "seed": 5, "temperature": 1, "return_token_ids": True, **fields}
    return (await front.complete(PROMPT, **asked)).json()["choices"]


async def test_an_output_is_that_of_a_completion(front):
    [choice] = await complete(front, logprobs=2)
    found = (await generate(front, text=PROMPT, rid="mine", return_logprob=True, top_logprobs_num=2)).json()
    meta = found["meta_info"]
    assert (found["text"], found["output_ids"]) == (choice["text"], choice["token_ids"])
    assert (meta["id"], meta["finish_reason"]) == ("mine", {"type": "length", "length": 4})
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (len(IDS), 4, 16)
    assert [logprob for logprob, _, _ in meta["output_token_logprobs"]] == choice["logprobs"]["token_logprobs"]
    assert [id for _, id, _ in meta["output_token_logprobs"]] == choice["token_ids"]
    assert all(text is None for _, _, text in meta["output_token_logprobs"])
    tops = [list(top.values()) for top in choice["logprobs"]["top_logprobs"]]
    assert [[logprob for logprob, _, _ in top] for top in meta["output_top_logprobs"]] == [top[:2] for top in tops]
    assert meta["input_token_logprobs"] == []
    ids = (await generate(front, input_ids=IDS)).json()
    assert (ids["output_ids"], "output_token_logprobs" in ids["meta_info"]) == (found["output_ids"], False)


@pytest.mark.parametrize("first", [0, 5, len(IDS) - 2, len(IDS) - 1, len(IDS)])
async def test_a_prompts_logprobs_begin_where_they_are_asked_for(front, first):
    asked = {"return_logprob": True, "logprob_start_len": first, "top_logprobs_num": 1, "return_text_in_logprobs": True}
    meta = (await generate(front, input_ids=IDS, **asked)).json()["meta_info"]
    triples = meta["input_token_logprobs"]
    assert [id for _, id, _ in triples] == IDS[first:]
    assert [logprob is None for logprob, _, _ in triples] == [True, *[False] * (len(IDS) - first - 1)][: len(triples)]
    for i, (logprob, id, text) in enumerate(triples[1:], first + 1):
        assert logprob == pytest.approx(float(row(IDS[:i]).double().log_softmax(0)[id]), abs=1e-5)
        assert text == chr(id) if id < 128 else text.startswith("\\x")
    assert [len(top or ()) for top in meta["input_top_logprobs"]] == [0, *[1] * (len(triples) - 1)][: len(triples)]


async def test_a_seed_has_two_names(front):
    async def ids(**sampling: Any) -> list[int]:
        asked = {"sampling_params": {"max_new_tokens": 8, **sampling}, "text": PROMPT}
        answer = await front.http.post("/generate", json=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()["output_ids"]

    drawn = await ids(sampling_seed=5)
    assert drawn == await ids(seed=5) == await ids(seed=5, sampling_seed=5) == await ids(seed=-1, sampling_seed=5)
    assert drawn == await ids(seed=None, sampling_seed=5) != await ids(seed=6)
    assert await ids(seed=-1) != await ids(seed=-1)


async def test_a_stream_has_all_that_has_come_so_far(front):
    asked = {"text": PROMPT, "return_logprob": True, "logprob_start_len": 3}
    whole = (await generate(front, **asked)).json()
    *chunks, last = events((await generate(front, stream=True, **asked)).text)
    assert last == "[DONE]"
    assert len(chunks) > 1
    for chunk in chunks:
        meta = chunk["meta_info"]
        assert whole["text"].startswith(chunk["text"])
        assert len(meta["output_token_logprobs"]) == len(chunk["output_ids"]) == meta["completion_tokens"]
        assert meta["input_token_logprobs"] == whole["meta_info"]["input_token_logprobs"]
    assert [chunk["meta_info"]["finish_reason"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    chunks[-1]["meta_info"]["id"] = whole["meta_info"]["id"]
    chunks[-1]["meta_info"]["cached_tokens"] = whole["meta_info"]["cached_tokens"]
    assert chunks[-1] == whole


async def test_several_outputs_are_a_list(front):
    found = (await generate(front, {"n": 2}, text=[PROMPT, "other"], rid="r")).json()
    assert [one["meta_info"]["id"] for one in found] == ["r_0", "r_1", "r_2", "r_3"]
    assert [one["meta_info"]["prompt_tokens"] for one in found] == [len(IDS), len(IDS), 5, 5]
    [alone] = (await generate(front, text=[PROMPT])).json()
    assert alone["text"] == found[0]["text"] != found[1]["text"]
    *chunks, _ = events((await generate(front, {"n": 2}, text=PROMPT, stream=True)).text)
    assert {chunk["index"] for chunk in chunks} == {0, 1}


async def test_masks_and_the_logprobs_over_them(front):
    top_k = {"top_k": 3, "temperature": 0.8}
    meta = (await generate(front, top_k, text=PROMPT, return_sampling_mask=True)).json()["meta_info"]
    said = list(IDS)
    masks, logprobs = meta["output_token_sampling_mask"], meta["output_token_sampling_logprobs"]
    [choice] = await complete(front, **top_k)
    for mask, logprob, id in zip(masks, logprobs, choice["token_ids"], strict=True):
        kept = row(said).double() / 0.8
        assert mask == sorted(kept.topk(3).indices.tolist())
        assert logprob == pytest.approx(float(kept[mask].log_softmax(0)[mask.index(id)]), abs=1e-5)
        said.append(id)


async def test_ends(front):
    text = (await complete(front, max_tokens=20))[0]["text"]
    stop = text[6:9]
    cut = (await generate(front, {"stop": stop, "max_new_tokens": 20, "no_stop_trim": True}, text=PROMPT)).json()
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert cut["text"] == text[: text.index(stop) + len(stop)]
    token = (await complete(front))[0]["token_ids"][1]
    ended = (await generate(front, {"stop_token_ids": [token]}, text=PROMPT)).json()
    assert ended["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}


@pytest.mark.parametrize("stream", [False, True])
async def test_no_token_at_all(front, stream):
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "stream": stream}
    answer = await generate(front, {"max_new_tokens": 0, "n": 2}, text=PROMPT, **asked)
    found = events(answer.text)[:-1] if stream else answer.json()
    one = (await generate(front, {"max_new_tokens": 1}, text=PROMPT, **asked | {"stream": False})).json()["meta_info"]
    assert len(found) == 2
    for output in found:
        meta = output["meta_info"]
        assert (output["text"], output["output_ids"], meta["completion_tokens"]) == ("", [], 0)
        assert meta["finish_reason"] == {"type": "length", "length": 0}
        assert meta["output_token_logprobs"] == meta["output_top_logprobs"] == []
        assert meta["input_token_logprobs"] == one["input_token_logprobs"]
        assert meta["input_top_logprobs"] == one["input_top_logprobs"]
    masks = {"text": "a", "return_sampling_mask": True, "sampling_params": {"max_new_tokens": 0}}
    refused = await front.http.post("/generate", json=masks)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "return_sampling_mask can't be had with max_new_tokens 0"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("cause", ["deadline", "cancelled"])
async def test_cut_before_the_prompt_was_read(front, stream, cause):
    front.client.hold = True
    asked = {"text": PROMPT, "rid": "mine", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    limit: dict[str, Any] = {"deadline_s": 0.02} if cause == "deadline" else {}
    running = asyncio.ensure_future(generate(front, stream=stream, **asked, **limit))
    if cause == "cancelled":
        await front.until(lambda: bool(front.service.open_requests))
        assert (await front.http.delete("/v1/requests/mine")).status_code == 200
    answer = await running
    front.client.hold = False
    found = events(answer.text)[-2] if stream else answer.json()
    meta = found["meta_info"]
    assert (found["output_ids"], meta["finish_reason"]) == ([], {"type": "abort", "message": cause})
    assert [meta[f"{side}_{what}_logprobs"] for side in ("input", "output") for what in ("token", "top")] == [[]] * 4


async def test_what_has_been_sent_is_not_written_again(front, monkeypatch):
    written = []
    fake = lambda entry, top: written.append(top) or [(1, entry.logprob)] * top  # noqa: E731
    monkeypatch.setattr(endpoint, "iter_top_tokens", fake)
    front.client.patient = True
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "stream": True}
    *chunks, _ = events((await generate(front, {"max_new_tokens": 30}, text=PROMPT, **asked)).text)
    assert len(chunks) > 15  # those that have only a part of a character have no event
    assert len(chunks[-1]["meta_info"]["output_top_logprobs"]) == 30
    assert written == [2] * (len(IDS) - 1 + 30)


async def test_an_event_of_much_waits_for_more(front, monkeypatch):
    monkeypatch.setattr(endpoint, "FREE_BYTES", 0)
    monkeypatch.setattr(endpoint, "OLD_BYTES", 4)
    front.client.patient = True
    asked = {"text": PROMPT, "return_logprob": True, "top_logprobs_num": 2}
    whole = (await generate(front, {"max_new_tokens": 200}, **asked)).json()
    *chunks, _ = events((await generate(front, {"max_new_tokens": 200}, stream=True, **asked)).text)
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 1
    assert 10 < len(counts) < 40  # each but the last grows by a quarter
    tops = [chunk["meta_info"]["output_top_logprobs"] for chunk in chunks]
    sizes = [len(json.dumps(top)) for top in tops]
    for before, after in itertools.pairwise(sizes[:-1]):
        assert before <= 4.5 * (after - before)
    for key in ("id", "cached_tokens"):
        chunks[-1]["meta_info"][key] = whole["meta_info"][key]
    assert chunks[-1] == whole
    prompt = {**asked, "logprob_start_len": 0, "stream": True}  # what is old also has the prompt's
    *after_all, _ = events((await generate(front, {"max_new_tokens": 200}, **prompt)).text)
    assert after_all[1]["meta_info"]["completion_tokens"] > 3 >= counts[1]


async def test_prompts_that_can_have_no_logprobs_together(front):
    async def message(first: int, *lengths: int) -> str | None:
        asked = {"return_logprob": True, "logprob_start_len": first, "input_ids": [IDS[:n] for n in lengths]}
        answer = await front.http.post("/generate", json={"sampling_params": {"max_new_tokens": 1}, **asked})
        return None if answer.status_code == 200 else answer.json()["error"]["message"]

    for lengths in [(8, 5), (5, 8), (8, 7), (7, 8), (8, 8), (1, 8)]:
        refused = [await message(first, *lengths) for first in range(10)]
        for first, text in enumerate(refused):
            if text is not None:
                most = int(text.split("… ")[1].split(",")[0])
                assert text == f"logprob_start_len must be in -1 … {most}, got {first}"
                assert refused[: most + 1] == [None] * (most + 1)
                assert first > most
    assert await message(5, 8, 5) == "logprob_start_len must be in -1 … 3, got 5"
    assert await message(7, 8, 7) is None


async def test_without_a_limit_the_context_may_end_it(front):
    prompt = {"input_ids": (IDS * CONTEXT)[: CONTEXT - 50]}
    for sampling in ({"sampling_params": {}}, {}, {"sampling_params": {"temperature": 0.5}}):
        meta = (await front.http.post("/generate", json={**prompt, **sampling})).json()["meta_info"]
        assert (meta["completion_tokens"], meta["finish_reason"]) == (50, {"type": "length", "length": 50})
    assert (await generate(front, {"max_new_tokens": None}, **prompt)).json()["meta_info"]["completion_tokens"] == 50
    named = await front.http.post("/generate", json={**prompt, "sampling_params": {"max_new_tokens": 128}})
    problem = named.json()["error"]
    assert (named.status_code, problem["param"]) == (400, "sampling_params.max_new_tokens")
    assert problem["message"].startswith("sampling_params.max_new_tokens must be an integer in [1, 50], got 128")
    short = (await front.http.post("/generate", json={"text": PROMPT})).json()["meta_info"]
    assert short["completion_tokens"] == 128


async def test_priority_and_deadline_stand_beside_the_sampling_parameters(front, monkeypatch):
    sent = []
    monkeypatch.setattr(
        front.client, "send", lambda message, send=front.client.send: sent.append(message) or send(message)
    )
    await generate(front, text=PROMPT, priority=-3, deadline_s=60)
    assert sent[0].owner.rank == -3
    front.client.patient = True
    asked = {"text": PROMPT, "stream": True}
    *every, _ = events((await generate(front, {"max_new_tokens": 60}, **asked)).text)
    *some, _ = events((await generate(front, {"max_new_tokens": 60, "stream_interval": 20}, **asked)).text)
    assert len(some) <= 5 < 30 < len(every)


def test_each_field_of_completions_is_a_sampling_parameter_or_not():
    fields = set(CompletionRequest.__struct_fields__)
    assert SAMPLING | set(RENAMED.values()) <= fields
    assert fields - SAMPLING - set(RENAMED.values()) == {
        *("model", "prompt", "stream", "request_id", "priority", "deadline_s", "return_sampling_mask"),  # at the top
        "cache_salt",
        *("logprobs", "prompt_logprobs", "prompt_logprob_start"),  # at the top, by other names
        *("stream_options", "echo", "best_of", "explain", "return_token_ids", "return_sampling_params"),
        *("timings_per_token", "return_progress", "resumable"),
        "return_tokens_as_token_ids",
        *("prompt_logprob_token_ids", "logprob_token_ids", "report_entropy", "negative_prompt"),
        *("use_beam_search", "length_penalty", "early_stopping"),
    }


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"sampling_seed": -(1 << 70)}, "sampling_seed"),
        ({"sampling_seed": "x"}, "sampling_seed: expected"),
        ({"min_new_tokens": 9, "max_new_tokens": 4}, "min_new_tokens must be at most max_new_tokens (4), got 9"),
        ({"max_new_tokens": -1}, "max_new_tokens must be"),
        ({"max_new_tokens": 0, "regex": "a"}, "regex has no effect with max_new_tokens 0"),
        ({"max_new_tokens": 0, "min_new_tokens": 1}, "min_new_tokens can't be had with max_new_tokens 0"),
        ({"max_new_tokens": "4"}, "max_new_tokens: expected"),
        ({"no_stop_trim": 3}, "no_stop_trim: expected"),
        ({"temperature": -1}, "temperature must be"),
        ({"top_p": "much"}, "top_p: expected"),
        ({"n": 1000}, "n must be at most"),  # the engine says so
        ({"logit_bias": {"9999": 1}}, "logit_bias"),
        ({"prompt_logprobs_temperature": 2}, "prompt_logprobs_temperature has no effect without logprob_start_len"),
        ({"json_schema": "{"}, "json_schema"),
        ({"seed": 3, "sampling_seed": 4}, "sampling_seed (4) and seed (3) are two names of one field"),
        ({"seed": "x"}, "seed: expected"),
        ({"typ_p": 0.5, "typical_p": 0.4}, "typ_p (0.5) and typical_p (0.4) are two names of one field"),
        ({"priority": 3}, "priority: not supported"),
        ({"deadline_s": 3}, "deadline_s: not supported"),
        ({"report_entropy": True}, "report_entropy: not supported"),
        ({"length_penalty": 2}, "length_penalty: not supported"),
        ({"stream_interval": 0}, "stream_interval: expected"),
    ],
)
async def test_an_error_names_the_sampling_parameter_as_it_was_given(front, sampling, message):
    answer = await front.http.post("/generate", json={"text": "a", "sampling_params": sampling})
    problem = answer.json()["error"]
    assert answer.status_code == 400
    assert problem["message"].startswith(f"sampling_params.{message}")
    assert problem["param"].split(".")[:2] == ["sampling_params", message.split()[0].strip(":")]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": []}, "text"),
        ({"text": ["a", ""]}, "text"),
        ({"input_ids": [VOCAB]}, "input_ids"),  # the engine says so
        ({"input_ids": [1] * CONTEXT}, "input_ids"),
        ({"text": "a" * CONTEXT}, "text"),
        (
            {"text": ["a" * 250] * 200, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 20},
            "logprob_start_len",
        ),
        ({"input_ids": [[1], []]}, "input_ids"),
        ({"input_ids": [1, [2]]}, "input_ids"),
        ({"text": "a", "sampling_params": {"beam_width": 4}}, "sampling_params.beam_width"),
        ({"text": "a", "sampling_params": {"max_tokens": 4}}, "sampling_params.max_tokens"),
        ({"text": "a", "sampling_params": [{}]}, "sampling_params"),
        ({"text": "abc", "return_logprob": True, "logprob_start_len": 4}, "logprob_start_len"),
        ({"text": "abc", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        ({"text": ["abc", "abcdef"], "return_logprob": True, "logprob_start_len": 3}, "logprob_start_len"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
        ({"text": "a", "top_logprobs_num": -5}, "top_logprobs_num"),
        ({"text": "a", "logprob_start_len": 99}, "logprob_start_len"),
        ({"text": "a", "priority": "high"}, "priority"),
        ({"text": "a", "deadline_s": 0}, "deadline_s"),
        ({"text": "a", "token_ids_logprob": [3]}, "token_ids_logprob"),
        ({"text": "a", "image_data": "a.png"}, "image_data"),
    ],
)
async def test_bad_input_names_the_field(front, fields, param):
    answer = await front.http.post("/generate", json=fields)
    assert answer.status_code == 400
    problem = answer.json()["error"]
    assert problem["param"] == param
    assert problem["message"].startswith(param)
