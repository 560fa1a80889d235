"""POST /tokenize and /detokenize: what a completion's prompt would be, and back."""

from __future__ import annotations

import pytest
import tokenizers

from api.harness import START, VOCAB, LocalClient, endless, front_of, make_tokenizer, saying
from tailrace.config import ServerConfig


async def post(front, path: str, **fields):
    return await front.http.post(path, json=fields)


async def test_a_prompt_and_back(front):
    answer = (await post(front, "/tokenize", prompt="Grüße", return_token_strs=True)).json()
    assert bytes(answer["tokens"]) == "Grüße".encode()
    assert (answer["count"], answer["max_model_len"]) == (7, 256)
    assert len(answer["token_strs"]) == 7
    back = (await post(front, "/detokenize", tokens=answer["tokens"])).json()
    assert back == {"prompt": "Grüße"}


@pytest.mark.parametrize("asked", [{"prompt": "Grüße"}, {"messages": [{"role": "user", "content": "Grüße"}]}])
async def test_offsets_are_of_the_prompts_text(front, asked):
    answer = (await post(front, "/tokenize", **asked, return_token_offsets=True)).json()
    assert len(answer["token_offsets"]) == answer["count"]
    text = (await post(front, "/detokenize", tokens=answer["tokens"])).json()["prompt"]
    begin = text.index("Grüße")
    covered = [(start, end) for start, end in answer["token_offsets"] if begin <= start < begin + 5]
    assert covered == [(begin + i, begin + i + 1) for i in (0, 1, 2, 2, 3, 3, 4)]
    assert "token_offsets" not in (await post(front, "/tokenize", **asked)).json()


async def test_messages_are_what_a_chat_would_begin_with(front):
    messages = [{"role": "user", "content": "hi"}]
    answer = (await post(front, "/tokenize", messages=messages)).json()
    chat = (await front.chat(messages=messages, return_token_ids=True)).json()
    assert answer["tokens"] == chat["prompt_token_ids"]
    assert answer["tokens"][0] == START
    assert answer["token_strs"] is None
    closed = (await post(front, "/tokenize", messages=messages, add_generation_prompt=False)).json()
    assert closed["count"] < answer["count"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/detokenize", {"tokens": [VOCAB]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_bad_input_names_the_field(front, path, fields, param):
    answer = await post(front, path, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_another_model_is_not_found(front):
    assert (await post(front, "/tokenize", prompt="a", model="other")).status_code == 404


async def test_a_body_that_is_too_large_to_be_spelt_is_refused(tokenizer):
    async with front_of(LocalClient(saying(b"x")), tokenizer, ServerConfig(max_tokenize_kib=1)) as front:
        for body, field in (
            ({"prompt": "a" * 2000}, "prompt"),
            ({"messages": [{"role": "user", "content": "a" * 2000}]}, "messages"),
        ):
            answer = await front.http.post("/tokenize", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


@pytest.fixture
async def beginning(tmp_path):
    """A tokenizer that puts <|im_start|> before every text."""
    tokenizer = make_tokenizer(tmp_path)
    special = [("<|im_start|>", START)]
    processor = tokenizers.processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=special)
    tokenizer.backend.post_processor = processor
    async with front_of(LocalClient(endless), tokenizer) as made:
        yield made


async def test_special_tokens_are_added_as_asked(beginning):
    """To a completion's prompt by default; to a chat's, whose template writes its own, only if asked."""
    for given, wanted in ((None, 1), (True, 1), (False, 0)):
        fields = {} if given is None else {"add_special_tokens": given}
        answer = (await beginning.complete("x=", max_tokens=1, return_token_ids=True, **fields)).json()
        ids = answer["choices"][0]["prompt_token_ids"]
        assert ids == [START] * wanted + [*b"x="]
        assert (await post(beginning, "/tokenize", prompt="x=", **fields)).json()["tokens"] == ids
    plain = (await beginning.chat(max_tokens=1, return_token_ids=True)).json()["prompt_token_ids"]
    for given, wanted in ((None, 0), (True, 1), (False, 0)):
        fields = {} if given is None else {"add_special_tokens": given}
        ids = (await beginning.chat(max_tokens=1, return_token_ids=True, **fields)).json()["prompt_token_ids"]
        assert ids == [START] * wanted + plain
        messages = [{"role": "user", "content": "hi"}]
        assert (await post(beginning, "/tokenize", messages=messages, **fields)).json()["tokens"] == ids
