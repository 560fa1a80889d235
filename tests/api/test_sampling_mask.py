"""`return_sampling_mask` over HTTP: one list of ids per token id, streamed or not, in chats and completions."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from api.harness import EOS, VOCAB, LocalClient, events, front_of, saying
from tailrace.api.sampling_masks import ids_of, mask_size, written_masks
from tailrace.kernels.output import SamplingMask
from tailrace.params import SamplingParams
from tailrace.text.output import Delta, TextStream

TEXT = "Hé, wörld 🌊! STOP here".encode()
ASKED = {"return_sampling_mask": True, "return_token_ids": True, "temperature": 0.7, "seed": 5}


def unsure(ids: list[int]) -> torch.Tensor:
    """As `saying`, but with three rivals of the token to be said: the next ids."""
    logits = saying(TEXT)(ids)
    said = int(logits.argmax())
    for step in (1, 2, 3):
        logits[(said + step) % VOCAB] = 40.0 - step
    return logits


def rivals(token: int, k: int) -> list[int]:
    return sorted((token + step) % VOCAB for step in range(k))


CASES = [
    {},
    {"n": 3},
    {"max_tokens": 7},  # ends inside a character
    {"stop": "STOP"},
    {"stop": ["ld 🌊", "zz"], "include_stop_str_in_output": True},
    {"stop_token_ids": [ord("!")], "logprobs": True},
    {"stream_interval": 4},
]


@pytest.mark.few(6)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("k", [1, 3])
async def test_chat_has_a_list_per_token_streamed_or_not(tokenizer, case, k):
    async with front_of(LocalClient(unsure), tokenizer) as front:
        whole = (await front.chat(**ASKED, **case, top_k=k)).json()
        *chunks, _ = events((await front.chat(**ASKED, **case, top_k=k, stream=True)).text)
        for choice in whole["choices"]:
            assert choice["sampling_mask"] == [rivals(token, k) for token in choice["token_ids"]]
            mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
            assert [ids for c in mine for ids in c.get("sampling_mask", [])] == choice["sampling_mask"]
            for c in mine:
                assert len(c.get("sampling_mask", [])) == len(c["token_ids"])


@pytest.mark.parametrize("case", [one | ({"logprobs": 2} if "logprobs" in one else {}) for one in CASES])
async def test_completions_have_a_list_per_token_streamed_or_not(tokenizer, case):
    async with front_of(LocalClient(unsure), tokenizer) as front:
        prompt = ["a=", "bb="]
        whole = (await front.complete(prompt, **ASKED, **case, top_k=2)).json()
        *chunks, _ = events((await front.complete(prompt, **ASKED, **case, top_k=2, stream=True)).text)
        for choice in whole["choices"]:
            assert choice["sampling_mask"] == [rivals(token, 2) for token in choice["token_ids"]]
            mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
            assert [ids for c in mine for ids in c.get("sampling_mask", [])] == choice["sampling_mask"]


async def test_without_ids_the_masks_come_all_the_same(front):
    fields = {"return_sampling_mask": True, "top_k": 2, "temperature": 0.5}
    assert [len(ids) for ids in (await front.chat(**fields)).json()["choices"][0]["sampling_mask"]] == [2] * 6
    *chunks, _ = events((await front.chat(**fields, stream=True)).text)
    assert sum(len(c["choices"][0].get("sampling_mask", [])) for c in chunks) == 6
    assert "token_ids" not in chunks[1]["choices"][0]


async def test_who_does_not_ask_gets_none(front):
    for fields in ({}, {"return_sampling_mask": False}, {"return_sampling_mask": None}):
        assert "sampling_mask" not in (await front.chat(**fields)).json()["choices"][0]


async def test_best_of_and_forced_tokens_keep_theirs(front):
    fields = {"return_sampling_mask": True, "top_k": 2, "temperature": 0.5, "return_token_ids": True}
    best = (await front.complete(best_of=3, **fields)).json()["choices"][0]
    assert len(best["sampling_mask"]) == len(best["token_ids"]) == 6
    forced = (await front.complete(forced_token_ids=[*b"Hel"], **fields)).json()["choices"][0]
    assert forced["sampling_mask"][:3] == [[token] for token in b"Hel"]
    assert len(forced["sampling_mask"][3]) == 2


async def test_more_than_the_server_tells_is_null(tokenizer):
    client = LocalClient(saying(b"Hello"))
    async with front_of(client, tokenizer) as front:
        msgspec.structs.force_setattr(client.engine.limits.scheduler, "max_sampling_mask", 10)
        fields = {"return_sampling_mask": True, "temperature": 1.0, "max_tokens": 2}
        for k, expected in ((10, False), (11, True)):
            mask = (await front.chat(top_k=k, **fields)).json()["choices"][0]["sampling_mask"]
            assert [ids is None for ids in mask] == [expected] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 1.0}, "return_sampling_mask"),
        ({"temperature": 0, "top_p": 1.0}, "return_sampling_mask"),
        ({"top_k": 5, "return_sampling_mask": "yes"}, "return_sampling_mask"),
        ({"use_beam_search": True, "n": 2}, "return_sampling_mask"),
    ],
)
async def test_what_cannot_be_had_is_refused(front, fields, param):
    answer = await front.chat(**({"return_sampling_mask": True} | fields))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(("path", "body"), [("responses", {"input": "hi"}), ("messages", {"max_tokens": 4})])
async def test_other_endpoints_refuse(front, path, body):
    ask = {"messages": [{"role": "user", "content": "hi"}]} if path == "messages" else {}
    answer = await front.http.post(f"/v1/{path}", json=ask | body | {"top_k": 5, "return_sampling_mask": True})
    assert answer.status_code == 400
    assert "return_sampling_mask" in answer.text


async def test_an_echo_alone_has_no_masks(front):
    answer = await front.complete(echo=True, max_tokens=0, top_k=5, return_sampling_mask=True)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "return_sampling_mask"


def test_the_wires_bytes_and_back():
    mask = SamplingMask(torch.tensor([0, 257, 70_000, 5], dtype=torch.int32), torch.tensor([0, 3, 3, 4]))
    packed = mask.packed(limit=9)
    assert [ids_of(data) for data in packed] == [[0, 257, 70_000], None, [5]]
    assert packed[0] == np.array([0, 257, 70_000], "<i4").tobytes()
    assert mask.packed(limit=1)[0] == b""
    piece = Delta("", (1, 2, 3), survivors=tuple(packed))
    assert bytes(msgspec.json.encode(written_masks(piece))) == b"[[0,257,70000],null,[5]]"
    assert mask_size(Delta("", (1,), survivors=(bytes(4 * 800),))) == 100
    assert mask_size(Delta()) == 0


@pytest.mark.parametrize("kind", ["delta", "cumulative", "final"])
def test_masks_are_held_back_with_their_text(tokenizer, kind):
    params = SamplingParams(top_k=2, return_sampling_mask=True, stop=("lo!",), output_kind=kind)
    stream = TextStream(tokenizer, params, [EOS])
    deltas = [stream.feed([token], None, None, [bytes([token, 0, 0, 0])]) for token in b"Hel"]
    deltas.append(stream.feed([*b"p", EOS], None, None, [bytes([112, 0, 0, 0]), bytes([1, 1, 0, 0])]))
    deltas.append(stream.flush("stop"))
    for delta in deltas:
        assert delta.survivors is None or len(delta.survivors) == len(delta.token_ids)
    told = [data for delta in deltas for data in delta.survivors or ()] if kind == "delta" else deltas[-1].survivors
    assert [ids_of(data) for data in told or ()] == [[72], [101], [108], [112], [257]]
