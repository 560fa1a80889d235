"""Beam search: the algorithm against transformers' own on a small random model and against exhaustive search; and over
HTTP."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import msgspec
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from api.harness import EOS, MARK, START, VOCAB, LocalClient, events, front_of
from field_examples import company, example
from tailrace.api.beam_search import BeamSearch
from tailrace.config import ServerConfig
from tailrace.params import FIELDS

COMPLETE = "/v1/completions"


def small_model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=1,
        initializer_range=0.6,
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("early", "penalty", "width"),
    [
        pytest.param(early, penalty, width, marks=[] if (i + j + k) % 3 == 2 else pytest.mark.long)
        for i, early in enumerate((False, True, "never"))
        for j, penalty in enumerate((1.0, 0.0, 2.0, -1.0))
        for k, width in enumerate((1, 2, 4))
        if width > 1 or early is False  # transformers calls one beam greedy search
    ],
)
def test_the_beams_are_those_of_transformers(early, penalty, width):
    """In `make test` every two of the three choices together."""
    model = small_model()
    for prompt in ([5, 6, 7], [9, 3], [11, 12, 13, 14]):
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=10,
            do_sample=False,
            length_penalty=penalty,
            early_stopping=early,
        )
        search = BeamSearch(width, 10, frozenset([2]), penalty, early)
        with torch.no_grad():
            while not search.done:
                rows = [
                    model(torch.tensor([[*prompt, *beam.tokens]])).logits[0, -1].log_softmax(-1)
                    for beam in search.running
                ]
                tops = [row.topk(min(search.candidates, 23)) for row in rows]
                search.step([list(zip(t.indices.tolist(), t.values.tolist(), strict=True)) for t in tops])
        ours = [list(beam.tokens) for beam in search.select_best(width)]
        said = [row[len(prompt) :].tolist() for row in expected]
        theirs = [row[: row.index(2) + 1] if 2 in row else row[:10] for row in said]  # what follows EOS is padding
        assert ours == theirs


def letters(ids: list[int]) -> torch.Tensor:
    """Seven letters, by the last one said."""
    logits = torch.full((VOCAB,), -30.0)
    logits[97:104] = torch.sin(torch.arange(7) * (1.0 + ids[-1] % 5)) * 2
    return logits


@pytest.fixture
async def front(tokenizer):
    async with front_of(LocalClient(letters), tokenizer) as made:
        yield made


async def test_a_wide_beam_finds_the_best_of_all(front):
    fields = {"prompt": "x=", "max_tokens": 3, "use_beam_search": True, "n": 2, "best_of": 49}
    answer = (await front.http.post(COMPLETE, json=fields)).json()

    def logprob(word: tuple[int, ...]) -> float:
        said, total = [*b"x="], 0.0
        for token in word:
            total += float(letters(said).double().log_softmax(0)[token])
            said.append(token)
        return total

    best = sorted(itertools.product(range(97, 104), repeat=3), key=logprob, reverse=True)[:2]
    assert [c["text"] for c in answer["choices"]] == [bytes(word).decode() for word in best]
    assert [c["finish_reason"] for c in answer["choices"]] == ["length"] * 2
    assert answer["usage"]["completion_tokens"] == 6
    assert math.isfinite(logprob(best[0]))
    await front.until(front.client.idle)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"seed": 1}, "seed"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 65}, "best_of"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"do_sample": True}, "do_sample"),
    ],
)
async def test_what_a_beam_search_does_not_take(front, fields, param):
    answer = await front.http.post(COMPLETE, json={"prompt": "x=", "use_beam_search": True} | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_its_knobs_alone_are_refused(front):
    answer = await front.http.post(COMPLETE, json={"prompt": "x=", "length_penalty": 2.0})
    assert answer.json()["error"]["param"] == "length_penalty"
    for value in (True, "never"):  # True is 1.0, which was taken for the default of the other one
        answer = await front.http.post(COMPLETE, json={"prompt": "x=", "early_stopping": value})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "early_stopping"


def test_eos_finishes_a_beam_only_among_the_first():
    search = BeamSearch(2, 5, frozenset([EOS]))
    search.step([[(7, -0.1), (8, -0.2), (EOS, -3.0)]])
    assert not search.finished
    assert [beam.tokens for beam in search.running] == [(7,), (8,)]


def wordy(ids: list[int]) -> torch.Tensor:
    """Two ways to go, then one of two letters, then the end: four answers, of which "bc" is the likeliest though "a"
    begins likelier."""
    said = ids[len(ids) - ids[::-1].index(START) + len(MARK) :] if START in ids else ids[ids.index(ord("=")) + 1 :]
    chances = {(): {"a": 0.6, "b": 0.4}, (ord("a"),): {"c": 0.5, "d": 0.5}, (ord("b"),): {"c": 0.9, "d": 0.1}}
    logits = torch.full((VOCAB,), -math.inf)
    for letter, chance in chances.get(tuple(said), {}).items():
        logits[ord(letter)] = math.log(chance)
    if len(said) == 2:
        logits[EOS] = 0.0
    return logits


@pytest.mark.parametrize("chat", [True, False])
async def test_beams_are_streamed_at_their_end_and_fold_to_the_answer(tokenizer, chat):
    async with front_of(LocalClient(wordy), tokenizer) as front:
        ask = front.chat if chat else front.complete
        fields = {"use_beam_search": True, "n": 2, "best_of": 3, "return_token_ids": True, "max_tokens": 9}
        whole = (await ask(**fields)).json()
        texts = [c["message"]["content"] if chat else c["text"] for c in whole["choices"]]
        assert texts[0] == "bc"  # 0.36, where greedy says "ac" or "ad", 0.3
        assert texts[1] in ("ac", "ad")
        assert [c["finish_reason"] for c in whole["choices"]] == ["stop", "stop"]
        assert [c["token_ids"] for c in whole["choices"]] == [[*text.encode(), EOS] for text in texts]
        assert whole["usage"]["completion_tokens"] == 6
        streamed = await ask(**fields, stream=True, stream_options={"include_usage": True})
        *chunks, done = events(streamed.text)
        assert done == "[DONE]"
        assert chunks.pop()["usage"] == whole["usage"]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk" if chat else "text_completion"}
        for index, text in enumerate(texts):
            mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
            if chat:
                assert mine[0]["delta"] == {"role": "assistant", "content": ""}
                assert "".join(c["delta"].get("content", "") for c in mine) == text
            else:
                assert "".join(c["text"] for c in mine) == text
            assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["stop"]
            assert [id for c in mine for id in c["token_ids"]] == [*text.encode(), EOS]
        await front.until(front.client.idle)


async def test_beams_are_as_wide_as_n_unless_best_of_says_more(tokenizer):
    """Without a second beam nobody finds that "b" leads on to better."""
    async with front_of(LocalClient(wordy), tokenizer) as front:
        for fields, best in (({}, "ac"), ({"n": 2}, "bc"), ({"best_of": 2}, "bc")):
            answer = (await front.chat(use_beam_search=True, **fields)).json()
            assert answer["choices"][0]["message"]["content"] == best
            assert len(answer["choices"]) == fields.get("n", 1)


@pytest.mark.parametrize(("penalty", "best"), [(0.0, "a"), (3.0, "bcde")])
async def test_the_length_penalty_favours_long_answers(tokenizer, penalty, best):
    def script(ids: list[int]) -> torch.Tensor:
        said = ids[len(ids) - ids[::-1].index(START) + len(MARK) :]
        logits = torch.full((VOCAB,), -math.inf)
        if not said:
            logits[[ord("a"), ord("b")]] = torch.tensor([0.5, 0.5]).log()
        elif said[0] == ord("a"):
            logits[EOS] = 0.0
        else:
            logits[b"bcde"[len(said)] if len(said) < 4 else EOS] = math.log(0.9)
            logits[ord("z")] = math.log(0.1)
        return logits

    async with front_of(LocalClient(script), tokenizer) as front:
        answer = await front.chat(use_beam_search=True, best_of=3, max_tokens=6, length_penalty=penalty)
        assert answer.json()["choices"][0]["message"]["content"] == best


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_and_calls_of_beams_come_as_of_any_chat(tokenizer, stream):
    """Both answers are one token apart; each is told by its channels."""
    said = [b'<think>hm</think>so<tool_call>{"name": "f", "arguments": {"x": %d}}</tool_call>' % x for x in (1, 2)]

    def script(ids: list[int]) -> torch.Tensor:
        now = bytes(ids[len(ids) - ids[::-1].index(START) + len(MARK) :])
        logits = torch.full((VOCAB,), -math.inf)
        for place, answer in enumerate(said):
            if answer.startswith(now):
                logits[answer[len(now)] if len(answer) > len(now) else EOS] = -float(place)
        return logits

    config = ServerConfig(reasoning_parser="think", tool_parser="hermes")
    async with front_of(LocalClient(script), tokenizer, config) as front:
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        fields = {"use_beam_search": True, "n": 2, "tools": tools, "max_tokens": 120}
        answer = await front.chat(**fields, stream=stream)
        if stream:
            chunks = [event["choices"][0] for event in events(answer.text)[:-1]]
            for index in (0, 1):
                mine = [chunk for chunk in chunks if chunk["index"] == index]
                calls = [call for c in mine for call in c["delta"].get("tool_calls", ())]
                assert "".join(c["delta"].get("reasoning_content", "") for c in mine) == "hm"
                assert "".join(c["delta"].get("content", "") for c in mine) == "so"
                assert calls[0]["function"]["name"] == "f"
                assert json.loads("".join(c["function"]["arguments"] for c in calls)) == {"x": index + 1}
                assert mine[-1]["finish_reason"] == "tool_calls"
            return
        for index, choice in enumerate(answer.json()["choices"]):
            message = choice["message"]
            [call] = message["tool_calls"]
            assert (message["reasoning_content"], message["content"]) == ("hm", "so")
            assert json.loads(call["function"]["arguments"]) == {"x": index + 1}
            assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"stop": "a"}, "stop"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"n": 65}, "n"),
        ({"length_penalty": -10.5}, "length_penalty"),
        ({"early_stopping": "often"}, "early_stopping"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"report_entropy": True}, "report_entropy"),
        ({"do_sample": True, "temperature": 0.7}, "do_sample"),
        ({"use_beam_search": False, "best_of": 2}, "best_of"),
        ({"length_penalty": 2.0, "use_beam_search": None}, "length_penalty"),
        ({"use_beam_search": None, "early_stopping": True}, "early_stopping"),
    ],
)
async def test_what_a_chats_beam_search_does_not_take(front, fields, param):
    answer = await front.chat(**{"use_beam_search": True} | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_tools_go_with_beams_where_no_grammar_is_needed(tokenizer):
    plain = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    strict = {"type": "function", "function": {**plain["function"], "strict": True}}
    other = {"type": "function", "function": {"name": "g"}}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    async with front_of(LocalClient(letters), tokenizer, ServerConfig(tool_parser="hermes")) as front:
        asked = {"use_beam_search": True, "n": 2, "max_tokens": 3}
        for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": "none", "parallel_tool_calls": False}):
            answer = await front.chat(**asked, tools=[plain], **fields)
            assert answer.status_code == 200, answer.text
        for tools, fields in (
            ([plain], {"tool_choice": "required"}),
            ([plain], {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
            ([plain], {"parallel_tool_calls": False}),
            ([plain, other], {"tool_choice": allowed}),
            ([strict], {}),
        ):
            error = (await front.chat(**asked, tools=tools, **fields)).json()["error"]
            assert (error["param"], error["message"]) == (
                "tools",
                "tools: a forced call, strict tools, a choice among tools and one call at most can't be had with "
                "use_beam_search",
            )


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_ends_the_search_with_what_is_there(tokenizer, own, stream):
    client = LocalClient(letters, tick_s=0.01)
    config = ServerConfig() if own else ServerConfig(max_request_s=0.2)
    async with front_of(client, tokenizer, config) as front:
        fields = {"deadline_s": 0.2} if own else {}
        answer = await front.complete(use_beam_search=True, n=2, max_tokens=250, stream=stream, **fields)
        assert answer.status_code == 200
        if stream:
            said = [event["choices"][0] for event in events(answer.text)[:-1]]
            ends = [choice for choice in said if choice["finish_reason"]]
            assert all("".join(c["text"] for c in said if c["index"] == i) for i in (0, 1))
        else:
            ends = answer.json()["choices"]
            length = answer.json()["usage"]["completion_tokens"]
            assert 0 < length < 500
            assert sum(len(choice["text"]) for choice in ends) == length
        assert [(c["index"], c["finish_reason"], c["stop_reason"]) for c in ends] == [
            (0, "abort", "deadline"),
            (1, "abort", "deadline"),
        ]
        await front.until(client.idle)


async def test_cut_before_the_first_token_there_is_nothing_to_say(tokenizer):
    client = LocalClient(letters)
    async with front_of(client, tokenizer) as front:
        client.hold = True
        answer = (await front.complete(use_beam_search=True, n=2, deadline_s=0.05)).json()
        assert [(c["text"], c["finish_reason"]) for c in answer["choices"]] == [("", "abort")]
        assert answer["usage"]["completion_tokens"] == 0
        client.hold = False
        await front.until(client.idle)


def test_finished_beams_and_those_cut_compete():
    """Σ logprob / length decides, whether or not a beam had ended."""
    search = BeamSearch(2, 9, frozenset([EOS]))
    search.step([[(EOS, -1.0), (7, -0.2), (8, -3.0)]])
    search.cut()
    assert [(beam.tokens, beam.reason) for beam in search.select_best(2)] == [((7,), "abort"), ((EOS,), "stop")]
    assert search.done


@pytest.mark.parametrize(
    "field", ["stop_regex", "include_stop_str_in_output", "return_sampling_params", "repetition_detection"]
)
async def test_beams_refuse_what_they_would_ignore(front, field):
    value = {"stop_regex": "a", "repetition_detection": {"max_pattern_size": 1, "min_count": 2}}.get(field, True)
    answer = await front.complete(use_beam_search=True, best_of=2, max_tokens=3, **{field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def over_http(name: str) -> str:
    return FIELDS[name].http_name or name


# what the values are over HTTP where they are of another type there
SENT = {
    "bad_words": ["no"],
    "dry_sequence_breakers": ["a"],
    "explain": True,
    "logprobs": 0,
    "negative_prompt": "no",
    "prediction": {"type": "content", "content": "abc"},
    "sequence_bias": [["a", 1.0]],
    "grammar": None,  # refused later, by the field that it came in: test_what_a_chats_beam_search_does_not_take
    "logit_bias": {"97": 5.0},
    "stop_outside": None,  # of chats, and nothing without a stop string
    "thinking": None,  # of chats
}
TAKEN = {"n": 2, "max_tokens": 3, "logit_bias": {"97": 5.0}, "allowed_token_ids": [97, 98]}
TAKEN |= {"skip_special_tokens": False, "normalize_logits": True}


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.http])
async def test_every_field_works_with_beams_or_is_refused(front, name):
    """ "Works": the field is in TAKEN, whose effects other tests show. A neutral value is always accepted."""
    value = SENT.get(name, msgspec.to_builtins(example(FIELDS[name])))
    if value is None:
        return
    fields = {of: SENT.get(of, msgspec.to_builtins(v)) for of, v in company(name).items()} | {name: value}
    plain: dict[str, Any] = {"prompt": "abcdef", "use_beam_search": True, "max_tokens": 2, "temperature": None}
    answer = await front.complete(**plain | fields)
    if name in TAKEN:
        assert answer.status_code == 200, answer.text
    else:
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] in {over_http(of) for of in fields}
        assert "can't be had with use_beam_search" in error["message"]
    if FIELDS[name].http != "converted" or name == "guidance_scale":
        neutral = msgspec.to_builtins(FIELDS[name].default)
        answer = await front.complete(**plain | {name: neutral})
        assert answer.status_code == 200, answer.text


def test_what_beams_take_is_what_is_declared():
    declared = {name for name, field in FIELDS.items() if field.beams}
    assert declared == TAKEN.keys() | {"stop_outside", "grammar"}  # a grammar is refused later, by its own name


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"do_sample": False},
        {"top_k": -1, "top_p": 1.0, "min_p": 0},
        {"seed": -1},
        {"dry_multiplier": 0, "dry_base": 2.0, "dry_sequence_breakers": ["a"]},
        {"repetition_penalty": 1.0, "penalty_last_n": 64},
        {"guidance_scale": 1, "negative_prompt": "no"},
        {"cfg_scale": 1, "negative_prompt": "no"},
        {"echo": False, "logprobs": None, "return_sampling_params": False, "stop": [], "logit_bias": {}},
    ],
)
async def test_beams_accept_neutral_values(front, fields):
    plain = await front.complete(use_beam_search=True, n=2, max_tokens=3)
    answer = await front.complete(use_beam_search=True, n=2, max_tokens=3, **fields)
    assert answer.status_code == 200, answer.text
    assert [c["text"] for c in answer.json()["choices"]] == [c["text"] for c in plain.json()["choices"]]


async def test_the_models_defaults_do_not_disturb_beams(tokenizer):
    async with front_of(LocalClient(letters), tokenizer) as front:
        plain = await front.complete(use_beam_search=True, n=2, max_tokens=3)
        front.service.defaults = {"mirostat": 2, "temperature": 0.6, "xtc_probability": 0.5}
        answer = await front.complete(use_beam_search=True, n=2, max_tokens=3)
        assert [c["text"] for c in answer.json()["choices"]] == [c["text"] for c in plain.json()["choices"]]


@pytest.mark.parametrize(
    ("fields", "field", "least"),
    [({"n": 65, "best_of": 70}, "n", 1), ({"n": 65, "best_of": 64}, "n", 1), ({"n": 64, "best_of": 65}, "best_of", 64)],
)
async def test_the_range_of_beams_is_one(front, fields, field, least):
    error = (await front.complete(use_beam_search=True, **fields)).json()["error"]
    assert error["param"] == field
    assert error["message"].startswith(f"{field} must be an integer in [{least}, 64] with use_beam_search")


@pytest.mark.parametrize("fields", [{"length_penalty": 2.0}, {"early_stopping": True}])
async def test_a_search_that_is_turned_off_silences_its_fields(front, fields):
    """As a switch of any method does; without use_beam_search they are a mistake."""
    assert (await front.complete(use_beam_search=False, max_tokens=2, **fields)).status_code == 200
    assert (await front.complete(max_tokens=2, **fields)).status_code == 400
