"""Why tokens came, over HTTP: a record for every token of an answer, streamed or not, and the same ones afterwards."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pytest
import torch

from api.harness import CONTEXT, VOCAB, Front, LocalClient, events, front_of, saying
from tailrace.api import sampling
from tailrace.api.replay import ExplainedOutput
from tailrace.api.stored import ENTRY_BYTES
from tailrace.api.user import make_user_id
from tailrace.config import ServerConfig
from tailrace.explain.sentences import Sentences
from tailrace.params import SamplingParams
from tailrace.wire.messages import Submit

HI = [{"role": "user", "content": "hi"}]
THINKING = ServerConfig(reasoning_parser="think", tool_parser="hermes")
TOOL = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALL = b'<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
FIELDS = {"explain": {"top": 2}, "temperature": 0.8, "ignore_eos": True, "max_tokens": 12, "return_token_ids": True}


def babble(ids: list[int]) -> torch.Tensor:
    """Letters and the special tokens, by all that was said."""
    rng = random.Random(repr(ids))
    row = torch.tensor([rng.gauss(0.0, 2.0) for _ in range(VOCAB)])
    row[:32] = row[127:256] = -20.0
    return row


@pytest.fixture
async def babbling(tokenizer):
    async with front_of(LocalClient(babble), tokenizer) as front:
        yield front


async def post(front: Front, path: str, **body) -> dict:
    answer = await front.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streamed(front: Front, path: str, **body) -> list[dict]:
    answer = await front.http.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    return [event for event in events(answer.text) if event != "[DONE]"]


def records_of(chunks: list[dict], index: int = 0) -> list[dict]:
    """All of one choice, and each chunk's are beside the ids of its tokens."""
    found: list[dict] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            records = choice.get("explanations", [])
            if choice["index"] == index:
                assert [record["token_id"] for record in records] == choice.get("token_ids", [])
                found += records
    return found


PATHS = {"chat": ("/v1/chat/completions", {"messages": HI}), "completion": ("/v1/completions", {"prompt": "x="})}


@pytest.mark.parametrize("kind", PATHS)
async def test_every_token_has_one_record_streamed_or_not(babbling, kind):
    path, asks = PATHS[kind]
    body = asks | FIELDS | {"n": 2, "seed": 5}
    whole, chunks = await post(babbling, path, **body), await streamed(babbling, path, **body)
    for index, choice in enumerate(whole["choices"]):
        records = choice["explanations"]
        assert [record["token_id"] for record in records] == choice["token_ids"]
        assert [record["index"] for record in records] == list(range(12))
        assert records == records_of(chunks, index)
        for record in records:
            assert set(record["sentences"]) == set(Sentences.__struct_fields__)
            assert len(record["tokens"]) == len(record["ids"]) == len(record["sentences"]["why_not"])
            assert record["sentences"]["why_not"][record["ids"].index(record["token_id"])] == ""
        text = b"".join(bytes(record["bytes"]) for record in records).decode()
        assert text == (choice["text"] if kind == "completion" else choice["message"]["content"])
        assert records[-1]["ended"] == "length"
    keys = {choice["explanations"][0]["key"] for choice in whole["choices"]}
    assert len(keys) == 2
    assert f"{5:016x}" in keys


async def test_who_does_not_ask_gets_none(babbling):
    for explain in (None, False):
        whole = await post(babbling, "/v1/completions", prompt="x=", max_tokens=3, explain=explain)
        assert "explanations" not in whole["choices"][0]
    whole = await post(babbling, "/v1/completions", prompt="x=", max_tokens=3, explain=True)
    assert all(len(record["ids"]) >= 10 for record in whole["choices"][0]["explanations"])


async def test_held_tokens_keep_their_records_and_a_stop_cuts_them(tokenizer):
    """As the logprobs have it."""
    async with front_of(LocalClient(saying(b"one two three")), tokenizer) as front:
        body = {"prompt": "x=", "stop": [" th"], "logprobs": 0, "explain": {"top": 1}, "temperature": 0}
        whole = await post(front, "/v1/completions", **body)
        [choice] = whole["choices"]
        assert choice["text"] == "one two"
        assert [record["token"] for record in choice["explanations"]] == list("one two")
        assert choice["logprobs"]["tokens"] == list("one two")
        assert records_of([{"choices": [choice | {"token_ids": [*b"one two"]}]}]) == choice["explanations"]
        [kept] = (await post(front, "/v1/completions", **body | {"include_stop_str_in_output": True}))["choices"]
        assert "".join(record["token"] for record in kept["explanations"]) == "one two th"
        echoed = await post(front, "/v1/completions", **body | {"echo": True, "logprobs": None})
        assert len(echoed["choices"][0]["explanations"]) == 7


@pytest.mark.parametrize("answer", [b"<think>ab</think>cd", b"x" + CALL], ids=["thoughts", "calls"])
async def test_thoughts_calls_and_markers_have_records(tokenizer, answer):
    async with front_of(LocalClient(saying(answer)), tokenizer, THINKING) as front:
        body = {"messages": HI, "tools": TOOL, "temperature": 0, "seed": 1, "explain": {"top": 1}}
        body["return_token_ids"] = True
        chunks = await streamed(front, "/v1/chat/completions", **body)
        records = records_of(chunks)
        assert bytes(record["token_id"] for record in records[:-1]) == answer
        assert [record["ended"] for record in records if "ended" in record] == ["stop"]
        [choice] = (await post(front, "/v1/chat/completions", **body))["choices"]
        assert choice["explanations"] == records


async def test_responses_have_them_on_text_and_thoughts(tokenizer):
    async with front_of(LocalClient(saying(b"<think>ab</think>cd")), tokenizer, THINKING) as front:
        body = {"input": "hi", "explain": {"top": 1}, "temperature": 0}
        whole = await post(front, "/v1/responses", **body)
        texts = {item["content"][0]["type"]: item["content"][0] for item in whole["output"]}
        assert [r["token"] for r in texts["reasoning_text"]["explanations"]] == ["a", "b"]
        assert [r["token"] for r in texts["output_text"]["explanations"]] == ["c", "d"]
        assert texts["output_text"].get("logprobs") is None
        answer = await front.http.post("/v1/responses", json=body | {"stream": True})
        found = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        deltas = [r["token"] for event in found if event["type"].endswith(".delta") for r in event["explanations"]]
        assert deltas == ["a", "b", "c", "d"]


REFUSED = {
    "top 0": ({"explain": {"top": 0}}, "explain"),
    "top 101": ({"explain": {"top": 101}}, "explain"),
    "foreign ids": ({"explain": {"ids": [VOCAB]}}, "explain"),
    "too many ids": ({"explain": {"ids": [1] * 101}}, "explain"),
    "no number": ({"explain": 5}, "explain"),
    "another field": ({"explain": {"tops": 5}}, "explain"),
    "too many records": ({"explain": {"top": 100}, "n": 128, "max_tokens": 80}, "explain"),
    "beams": ({"explain": True, "use_beam_search": True, "best_of": 2}, "explain"),
    "no output": ({"explain": True, "echo": True, "max_tokens": 0}, "explain"),
    "forced beyond the room": ({"forced_token_ids": [65] * 9, "max_tokens": 8}, "forced_token_ids"),
    "forced foreign ids": ({"forced_token_ids": [VOCAB]}, "forced_token_ids"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused(babbling, name):
    fields, param = REFUSED[name]
    answer = await babbling.http.post("/v1/completions", json={"prompt": "x="} | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)


async def test_messages_do_not_take_it(babbling):
    body = {"messages": HI, "max_tokens": 5, "explain": True}
    answer = await babbling.http.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert "explain" in answer.json()["error"]["message"]


async def test_too_many_records_are_refused_where_they_would_be_gathered(babbling, monkeypatch):
    """Streams of chats and completions hold none of them."""
    monkeypatch.setattr(sampling, "MAX_SHOWN_TOKENS", 12 * 7)
    body = {"seed": 5} | FIELDS
    [choice] = (await post(babbling, "/v1/completions", prompt="x=", **body))["choices"]
    output = {"prompt": "x=", "output_token_ids": choice["token_ids"]}
    await post(babbling, "/v1/explain", **body | output)
    monkeypatch.setattr(sampling, "MAX_SHOWN_TOKENS", 12 * 7 - 1)
    text, chat = {"prompt": "x="}, {"messages": HI}
    of_response = {"input": "hi", "explain": {"top": 2}, "max_output_tokens": 12}
    for path, asks, param in (
        ("/v1/completions", text | body, "explain"),
        ("/v1/chat/completions", chat | body, "explain"),
        ("/v1/responses", of_response, "explain"),
        ("/v1/responses", of_response | {"stream": True}, "explain"),
        ("/v1/explain", body | output, "positions"),
    ):
        answer = await babbling.http.post(path, json=asks)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), path
    assert len(records_of(await streamed(babbling, "/v1/completions", **text | body))) == 12
    await post(babbling, "/v1/explain", **body | output, positions=[*range(11)])


# ---- forced tokens, and branches


async def test_forced_tokens_begin_the_output(babbling):
    body = {"prompt": "x=", "seed": 5} | FIELDS
    [before] = (await post(babbling, "/v1/completions", **body))["choices"]
    [branch] = (await post(babbling, "/v1/completions", **body, forced_token_ids=[*before["token_ids"][:4], 90]))[
        "choices"
    ]
    assert branch["token_ids"][:5] == [*before["token_ids"][:4], 90]
    assert [record["origin"] for record in branch["explanations"]] == ["forced"] * 5 + ["drawn"] * 7
    assert branch["explanations"][4]["draw"]["winner"] == before["token_ids"][4], "what would have come"
    [same] = (await post(babbling, "/v1/completions", **body, forced_token_ids=before["token_ids"][:4]))["choices"]
    assert same["token_ids"] == before["token_ids"], "noise goes on behind them"


async def test_an_end_among_forced_tokens_ends_the_output(babbling):
    body = {"prompt": "x=", "seed": 5, "forced_token_ids": [65, 257, 66], "explain": {"top": 1}}
    whole = await post(babbling, "/v1/completions", **body)
    [choice] = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("A", "stop")
    assert [record["token_id"] for record in choice["explanations"]] == [65, 257]
    assert whole["usage"]["completion_tokens"] == 2


# ---- afterwards


@pytest.mark.parametrize("kind", PATHS)
async def test_an_answer_is_explained_afterwards(babbling, kind):
    path, asks = PATHS[kind]
    for body in (asks | FIELDS | {"seed": 5, "n": 2, "presence_penalty": 0.5}, asks | FIELDS):
        for index, choice in enumerate((await post(babbling, path, **body))["choices"]):
            records = choice["explanations"]
            output = {"output_token_ids": choice["token_ids"], "choice": index}
            output |= {} if "seed" in body else {"key": records[0]["key"]}
            found = await post(babbling, "/v1/explain", **body | output)
            assert found["explanations"] == records
            assert (found["consistent"], found["first_difference"]) == (True, None)
            assert found["verdict"] == "All 12 tokens are what these parameters draw."
            assert found["prompt_token_ids"][-1] in (ord("="), ord("\n"))
            assert found["usage"]["completion_tokens"] == 0
            some = await post(babbling, "/v1/explain", **body | output | {"positions": [7, 2]})
            assert some["explanations"] == [records[2], records[7]]


async def test_what_is_reported_of_drawn_tokens_is_not_asked_of_the_engine(babbling, monkeypatch):
    """Nothing is drawn."""
    sent, real = [], babbling.client.send
    monkeypatch.setattr(babbling.client, "send", lambda message: (sent.append(message), real(message))[1])
    reports = {"logprobs": 0, "prompt_logprobs": 2, "return_sampling_mask": True, "logprob_token_ids": [65]}
    body = {"prompt": "x=", "seed": 1, "top_k": 9, "output_token_ids": [65], "explain": True} | reports
    await post(babbling, "/v1/explain", **body)
    [params] = [message.params for message in sent if isinstance(message, Submit)]
    plain = SamplingParams(seed=1, top_k=9)
    for name in (*reports, "explain", "report_entropy"):
        assert getattr(params, name) == getattr(plain, name), name


@pytest.mark.parametrize(
    ("cause", "status", "code"),
    [("deadline", 400, "cut_short"), ("cancelled", 400, "cut_short"), ("a whim", 500, "engine_error")],
)
async def test_an_explanation_that_is_cut_says_whose_fault_it_is(babbling, monkeypatch, cause, status, code):
    async def cut(self):
        yield 0, SimpleNamespace(finish_reason="abort", stop_reason=cause)

    monkeypatch.setattr(ExplainedOutput, "deltas", cut)
    body = {"prompt": "x=", "seed": 1, "output_token_ids": [65] * 8}
    answer = await babbling.http.post("/v1/explain", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert answer.json()["error"]["message"].endswith(cause)


async def test_a_stored_response_is_explained_by_its_id(babbling):
    whole = await post(babbling, "/v1/responses", input="hi", explain={"top": 2}, max_output_tokens=9, ignore_eos=True)
    found = await post(babbling, "/v1/explain", response_id=whole["id"], explain={"top": 2})
    records = [record for item in whole["output"] for record in item["content"][0]["explanations"]]
    records, found["explanations"] = ([r for r in some if r["bytes"]] for some in (records, found["explanations"]))
    assert records == found["explanations"], "all that have text"
    assert found["consistent"]
    assert (await babbling.http.delete(f"/v1/responses/{whole['id']}")).status_code == 200
    gone = await babbling.http.post("/v1/explain", json={"response_id": whole["id"]})
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "response_id")


async def test_a_stored_response_holds_no_records(babbling):
    """Neither its body nor the events of its stream: else a few of them would drop everybody else's."""
    body = {"input": "hi", "seed": 5, "max_output_tokens": 9, "ignore_eos": True, "explain": {"top": 2}}
    sizes = {}
    for explained in (body, body | {"explain": None}):
        answer = await babbling.http.post("/v1/responses", json=explained | {"stream": True})
        live = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        asks = explained["explain"] is not None
        assert [bool(event.get("explanations")) for event in live if event["type"].endswith("_text.done")] == [asks]
        id = live[0]["response"]["id"]
        again = await babbling.http.get(f"/v1/responses/{id}")
        kept = await babbling.http.get(f"/v1/responses/{id}?stream=true")
        assert "explanations" not in again.text + kept.text
        assert again.json()["output"][0]["content"][0]["text"]
        assert kept.text.count("\ndata: ") == len(live)
        share = babbling.app.state.front.responses.share_of(make_user_id("address", "127.0.0.1"))
        stored = share.find(id)
        assert stored is not None
        sizes[asks] = stored.size - ENTRY_BYTES
        found = await post(babbling, "/v1/explain", response_id=id)
        assert len(found["explanations"]) == 9
    assert sizes[True] < 2 * sizes[False], "its deltas are cut at tokens"


async def test_a_changed_token_is_named(babbling):
    body = {"prompt": "x=", "seed": 5} | FIELDS
    [choice] = (await post(babbling, "/v1/completions", **body))["choices"]
    output = list(choice["token_ids"])
    output[6] = ord("A") if output[6] != ord("A") else ord("B")
    found = await post(babbling, "/v1/explain", **body, output_token_ids=output)
    assert (found["consistent"], found["first_difference"]) == (False, 6)
    assert found["verdict"].startswith(f"Token 6, “{chr(output[6])}”, can't have come: “")
    other = await post(babbling, "/v1/explain", **body | {"seed": 6}, output_token_ids=choice["token_ids"])
    assert not other["consistent"]


async def test_what_if(babbling):
    body = {"prompt": "x=", "seed": 5} | FIELDS
    [choice] = (await post(babbling, "/v1/completions", **body))["choices"]
    output = {"output_token_ids": choice["token_ids"], "what_if": {"top_k": 1, "logit_bias": {"65": 100}}}
    found = await post(babbling, "/v1/explain", **body, **output)
    assert found["consistent"], "it speaks of the request as it was"
    for record, before in zip(found["explanations"], choice["explanations"], strict=True):
        assert record["token_id"] == before["token_id"]
        assert record["model"]["entropy"] == before["model"]["entropy"]
        assert record["draw"]["winner"] == ord("A")
        assert [step["method"] for step in record["edits"]] == ["logit_bias"]


OUTPUT = {"prompt": "x=", "output_token_ids": [65, 66], "seed": 1}
BAD = {
    "nothing": ({}, "messages"),
    "two requests": (OUTPUT | {"messages": HI}, "messages"),
    "no output": ({"prompt": "x=", "seed": 1}, "output_token_ids"),
    "empty output": (OUTPUT | {"output_token_ids": []}, "output_token_ids"),
    "foreign output": (OUTPUT | {"output_token_ids": [VOCAB]}, "output_token_ids"),
    "too long": (OUTPUT | {"output_token_ids": [65] * CONTEXT}, "output_token_ids"),
    "beyond the output": (OUTPUT | {"positions": [2]}, "positions"),
    "negative": (OUTPUT | {"positions": [-1]}, "positions"),
    "no positions": (OUTPUT | {"positions": []}, "positions"),
    "another choice": (OUTPUT | {"choice": 1}, "choice"),
    "no key": ({"prompt": "x=", "output_token_ids": [65]}, "key"),
    "a bad key": (OUTPUT | {"key": "0x12"}, "key"),
    "beams": (OUTPUT | {"use_beam_search": True}, "use_beam_search"),
    "best of": (OUTPUT | {"best_of": 3}, "best_of"),
    "bans": (OUTPUT | {"banned_strings": ["A"]}, "banned_strings"),
    "a key that the seed does not make": (OUTPUT | {"seed": 1, "key": "0" * 16}, "key"),
    "top": (OUTPUT | {"explain": {"top": 0}}, "explain"),
    "ids that no message can hold": (OUTPUT | {"explain": {"ids": [2**64]}}, "explain.ids"),
    "arguments that no message can hold": (OUTPUT | {"processors": {"x": {"y": [2**64]}}}, "processors"),
    "what if: another field": (OUTPUT | {"what_if": {"n": 2}}, "what_if.n"),
    "what if: a range": (OUTPUT | {"what_if": {"top_p": 2}}, "what_if.top_p"),
    "what if: a type": (OUTPUT | {"what_if": {"top_p": "much"}}, "what_if.top_p"),
    "what if: ids beyond the vocabulary": (
        OUTPUT | {"what_if": {"allowed_token_ids": [10**6]}},
        "what_if.allowed_token_ids",
    ),
    "what if: of another type": (OUTPUT | {"what_if": 3}, "what_if"),
    "what if: a bias": (OUTPUT | {"what_if": {"logit_bias": {"70": -1e9}}}, "what_if.logit_bias"),
    "an output for a response": ({"response_id": "resp_1", "output_token_ids": [65]}, "output_token_ids"),
    **{
        f"{name} for a response": ({"response_id": "resp_1", name: value}, name)
        for name, value in [
            *(("temperature", 0.5), ("top_p", 0.5), ("seed", 1), ("model", "x"), ("stream", False), ("tools", [])),
            *(("max_output_tokens", 5), ("instructions", "hi"), ("priority", 1), ("choice", 0), ("key", "0" * 16)),
        ]
    },
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_is_named(babbling, name):
    body, param = BAD[name]
    answer = await babbling.http.post("/v1/explain", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].partition("[")[0] == param
    await babbling.until(babbling.client.idle)


async def test_a_response_that_is_gone(babbling):
    answer = await babbling.http.post("/v1/explain", json={"response_id": "resp_1", "seed": None, "user": "me"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "response_id")
