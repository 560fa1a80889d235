"""Every way to be refused: the status, OpenAI's shape, and the field that is named."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import tracemalloc
import zlib

import msgspec
import pytest

from api.harness import CONTEXT, LocalClient, events, front_of, saying
from tailrace.api import error_handlers, json_place
from tailrace.api.openapi import GENERATING_PATHS, OPERATIONS
from tailrace.config import ServerConfig
from tailrace.errors import BY_CODE, MAX_CHARS, EngineError, ModelLoadError, RequestError, format_json
from tailrace.wire.messages import Failed

JSON = {"content-type": "application/json"}
CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
CHATTED = '"messages": [{"role": "user", "content": "a"}]'
OUTPUT = '{"request_id": "a", "choices": [{"index": 0, "finish_reason": "length", "token_ids": [97]}]}'
# valid bodies, without the braces
BODIES = {
    CHAT: '"messages": [{"role": "user", "content": "a"}], "max_tokens": 2',
    COMPLETE: '"prompt": "x=", "max_tokens": 2',
    "/v1/responses": '"input": "a", "max_output_tokens": 2',
    "/v1/messages": '"messages": [{"role": "user", "content": "a"}], "max_tokens": 2',
    "/v1/messages/count_tokens": '"messages": [{"role": "user", "content": "a"}]',
    "/generate": '"text": "x="',
    "/v1/responses/input_tokens": '"input": "a"',
    "/v1/chat/completions/render": '"messages": [{"role": "user", "content": "a"}]',
    "/v1/messages/render": '"messages": [{"role": "user", "content": "a"}], "max_tokens": 2',
    "/v1/responses/render": '"input": "a", "max_output_tokens": 2',
    "/v1/completions/render": '"prompt": "x="',
    "/inference/v1/generate": '"token_ids": [97, 61], "sampling_params": {"max_tokens": 2}',
    "/v1/chat/completions/derender": f'"generate_response": {OUTPUT}, "chat_request": {{{CHATTED}}}',
    "/v1/completions/derender": f'"generate_responses": [{OUTPUT}], "completion_request": {{"prompt": "x="}}',
    "/tokenize": '"prompt": "a"',
    "/detokenize": '"tokens": [97]',
}
# tests/api/test_token_io.py has the bad values of /inference/v1/generate
GENERATING = [path for path in BODIES if path in GENERATING_PATHS - {"/inference/v1/generate"}]
USER = {"messages": [{"role": "user", "content": "hi"}]}


def problem(answer, status: int, code: str | None = None) -> dict:
    """The error of an answer, whose shape is checked."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    assert body["error"]["type"] == kind
    if code is not None:
        assert body["error"]["code"] == code
    return body["error"]


# field and value → words that must be in the message
BAD_SAMPLING = [
    ({"temperature": -1}, "temperature", "[0, 1000000]"),
    ({"top_p": 1.5}, "top_p", "[0, 1]"),
    ({"min_p": -0.1}, "min_p", "[0, 1]"),
    ({"top_k": -2}, "top_k", "[-1,"),
    ({"repetition_penalty": 0}, "repetition_penalty", "[0.000001, 1000000]"),
    ({"presence_penalty": 100.5}, "presence_penalty", "[-100, 100]"),
    ({"frequency_penalty": -100.5}, "frequency_penalty", "[-100, 100]"),
    ({"n": 0}, "n", "[1,"),
    ({"n": 1000}, "n", "at most 32"),
    ({"seed": 2**63}, "seed", "seed"),
    ({"max_tokens": 0}, "max_tokens", "[1,"),
    ({"max_tokens": 10_000}, "max_tokens", f"{CONTEXT}"),
    ({"max_tokens": 5, "min_tokens": 6}, "min_tokens", "at most max_tokens (5)"),
    ({"min_tokens": -1}, "min_tokens", "[0,"),
    ({"stop": ""}, "stop", "non-empty"),
    ({"stop": ["a", ""]}, "stop", "non-empty"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "-100 and 100"),
    ({"logit_bias": {"a" * 100: 1}}, "logit_bias", "at most 64 tokens"),
    ({"logit_bias": {f"a{i}": 1 for i in range(600)}}, "logit_bias", "at most 1024 entries of text, got 1200"),
    ({"banned_regex": "."}, "banned_regex", "nothing could be written"),
    ({"banned_regex": [r"x+", r"[\s\S]"]}, "banned_regex", "nothing could be written"),
    ({"banned_regex": ["[a-z]", "..", "[^a-z]"]}, "banned_regex", "nothing could be written"),
    ({"banned_regex": [r"\w", "a?[^0-9A-Za-z_]", "é", r"[\u0080-\U0010ffff]"]}, "banned_regex", "nothing could be"),
    ({"guided_json": '{"a":' * 9000 + "1" + "}" * 9000}, "guided_json", "nested too deeply"),
    ({"guided_json": '{"a": "\\ud800"}'}, "guided_json", "the escape at byte 7 is half of a surrogate pair"),
    ({"logit_bias": {"": 1}}, "logit_bias", "1 to 1000 characters"),
    ({"logit_bias": {"1.5": 1}}, "logit_bias", '"1.5" is not a token id'),
    ({"preset": "no such"}, "preset", "one of greedy, precise"),
    ({"xtc_threshold": 0.2}, "xtc_threshold", "no effect without xtc_probability"),
    ({"xtc_probability": 0.5, "xtc_threshold": 0.6}, "xtc_threshold", "(0, 0.5]"),
    ({"mirostat": 3}, "mirostat", "[0, 2]"),
    ({"mirostat": 2, "top_k": 4}, "top_k", "which replaces it"),
    ({"typical_p": 1.5}, "typical_p", "[0, 1]"),
    ({"dry_multiplier": -1}, "dry_multiplier", "[0, 1000000]"),
    ({"dry_multiplier": 1, "dry_sequence_breakers": [""]}, "dry_sequence_breakers", "1 to 1000 characters"),
    ({"sampler_order": ["top_q"]}, "sampler_order", 'got "top_q"'),
    ({"processors": {"nobody": {}}}, "processors", 'there is no "nobody"'),
    ({"watermark": {"kind": "kgw", "key": 1, "gamma": 2}}, "watermark", "(0, 1)"),
    ({"banned_strings": [""]}, "banned_strings", "non-empty"),
    ({"banned_regex": "a*"}, "banned_regex", "empty text"),
    ({"banned_regex": ["^a"]}, "banned_regex", "not supported"),
    ({"banned_regex": "a", "mirostat": 2}, "banned_regex", "taken back"),
    ({"banned_regex": ["a"] * 17}, "banned_regex", "at most 16"),
    ({"forced_token_ids": [258]}, "forced_token_ids", "0 … 257"),
    ({"top_k": 10**400}, "top_k", "[-1, 2147483647]"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "not a token id"),
    ({"logit_bias": {"99999999999999999999": 1}}, "logit_bias", "not a token id"),
    ({"logit_bias": {"5": 1, "05": 1}}, "logit_bias", "twice"),
    ({"logit_bias": {"258": 1}}, "logit_bias", "0 … 257"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "empty"),
    ({"allowed_token_ids": [258]}, "allowed_token_ids", "0 … 257"),
    ({"stop_token_ids": [258]}, "stop_token_ids", "0 … 257"),
    ({"bad_words": [""]}, "bad_words", "1 to 1000"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "not supported"),
]

# written as they are, because Python can't: numbers that no double can be
ENDLESS = [
    ('"temperature": 1e400', "temperature", "a number in [0, 1000000], got 1e400"),
    ('"temperature": -1e400', "temperature", "got -1e400"),
    (f'"top_p": {"9" * 500}', "top_p", "a number in [0, 1]"),
    ('"seed": 1e400', "seed", "an integer in [-9223372036854775808, 9223372036854775807], got 1e400"),
    ('"max_tokens": 1e400', "max_tokens", "an integer in [1, 2147483647], got 1e400"),
    ('"cfg_scale": 1e400', "cfg_scale", "[0, 100]"),
    ('"odd": {"7": 1e400}, "logit_bias": {"5": 1, "7": 1e400}', "logit_bias.7", "a number in [-100, 100], got 1e400"),
    ('"banned": "1e999", "sequence_bias": [["a", 1], ["b", -1e400]]', "sequence_bias[1][1]", "in [-10000, 10000]"),
    ('"priority": 1e400', "priority", "numbers must be in [-1.79"),
    ('"guided_json": {"temperature": 1e400}', "guided_json.temperature", "numbers must be in [-1.79"),
]

BAD_TYPES = [
    ({"temperature": "hot"}, "temperature", "expected `float | null`, got `str`"),
    ({"max_tokens": 1.5}, "max_tokens", "expected `int | null`, got `float`"),
    ({"n": True}, "n", "got `bool`"),
    ({"stop": 5}, "stop", "expected `str | array | null`, got `int`"),
    ({"stop": [5]}, "stop[0]", "got `int`"),
    ({"logit_bias": {"5": "x"}}, "logit_bias[...]", "got `str`"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", ">= 0"),
    ({"stop_token_ids": [10**30]}, "stop_token_ids[0]", "<= 2147483647"),
    ({"priority": 10**30}, "priority", ""),
    ({"logprobs_mode": "odd"}, "logprobs_mode", '"odd"'),
    ({"request_id": "a b"}, "request_id", ""),
    ({"request_id": "a\n"}, "request_id", ""),
    ({"stream_options": []}, "stream_options", "object"),
]


@pytest.mark.few(50)
@pytest.mark.parametrize("path", [CHAT, COMPLETE])
@pytest.mark.parametrize(("fields", "param", "words"), [*BAD_SAMPLING, *BAD_TYPES])
async def test_a_bad_value_is_a_400_that_names_the_field(front, path, fields, param, words):
    body = (USER if path == CHAT else {"prompt": "x="}) | fields
    for stream in (False, True):
        error = problem(await front.http.post(path, json=body | {"stream": stream}), 400)
        assert error["param"] == param
        assert param in error["message"]
        assert words in error["message"]


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(("field", "param", "words"), ENDLESS)
async def test_a_number_that_no_double_can_be(front, path, field, param, words):
    if path == "/v1/responses":
        field, param = (
            field.replace("max_tokens", "max_output_tokens"),
            param.replace("max_tokens", "max_output_tokens"),
        )
    begin = {CHAT: '"messages": []', COMPLETE: '"prompt": "x="', "/v1/responses": '"input": "a"'}.get(
        path, '"text": "a"'
    )
    body = f"{{{begin}, {field}}}"
    if path == "/v1/messages" and "max_tokens" not in field:
        body = f'{{"messages": [], "max_tokens": 3, {field}}}'
    if path == "/generate" and param != "priority":
        body, param = f'{{{begin}, "sampling_params": {{{field}}}}}', f"sampling_params.{param}"
        if '"odd"' in field:
            param = "sampling_params.odd.7"  # unknown fields are refused in there
            words = "numbers must be in"
    answer = await front.http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert param in error["message"]
    assert words in error["message"]
    assert error.get("param", param) == param


REFUSED_FIELDS = {
    "/v1/messages/count_tokens": "reasoning",
    "/tokenize": "chat_template",
    "/inference/v1/generate": "features",
}
WITHOUT_REFUSED = {"/detokenize", "/v1/chat/completions/derender", "/v1/completions/derender"}


def test_every_endpoint_with_a_body_has_one_here():
    """Except the endpoints whose body names something that must exist (a stored response, a running one, an adapter),
    and those of test_conversations.py and test_compact.py."""
    others = {
        "/v1/conversations",
        "/v1/conversations/{id}",
        "/v1/conversations/{id}/items",
        "/v1/responses/compact",
        "/v1/explain",
        "/v1/chat/completions/control",
        "/v1/chat/completions/{id}/control",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    }
    assert {*BODIES} | others == {path for (_, path), operation in OPERATIONS.items() if operation.takes}


@pytest.mark.parametrize("path", sorted(BODIES.keys() - WITHOUT_REFUSED))
@pytest.mark.parametrize("value", ["1e400", "[1, -1e400]", '1e400, "nobody_knows": 1'])
async def test_an_endless_number_in_a_field_that_is_refused(front, path, value):
    name = REFUSED_FIELDS.get(path, "return_hidden_states")
    answer = await front.http.post(path, content=f'{{{BODIES[path]}, "{name}": {value}}}', headers=JSON)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith(f"{name}: not supported; leave it out (or ")
    assert error.get("param", name) == name


@pytest.mark.parametrize("path", BODIES)
async def test_one_rule_for_the_json_of_all_endpoints(front, path):
    async def post(body: str) -> tuple[int, str]:
        answer = await front.http.post(path, content=body, headers=JSON)
        found = answer.json()  # a list of rendered prompts
        return answer.status_code, "" if isinstance(found, list) else (found.get("error") or {}).get("message", "")

    begin = "the body is not valid JSON: "
    assert await post("") == await post("{") == (400, f"{begin}it ends too early")
    assert await post('{"a": 1,}') == (400, f"{begin}trailing comma in object (byte 8)")
    assert await post(f'{{{BODIES[path]}, "odd": NaN}}') == (
        400,
        "odd: JSON has no NaN; give a number, or leave the field out",
    )
    assert await post(f'{{{BODIES[path]}, "odd": [1e400]}}') == (200, "")
    limit = "numbers must be in [-1.7976931348623157e+308, 1.7976931348623157e+308], got 1e400"
    assert await post(f'{{{BODIES[path]}, "model": 1e400}}') == (400, f"model: {limit}")
    assert await post("1e400") == (400, f"the body: {limit}")


KEY = "k" * 90_000


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    "body",
    [
        f'{{"{KEY}": NaN}}',
        f'{{"logit_bias": {{"{KEY}": 1e400}}}}',
        f'{{"sampling_params": {{"{KEY}": 1}}, "text": "a"}}',
        f'{{"preset": "{KEY}", "prompt": "a", "input": "a", "max_tokens": 1, "messages": [{{"role": "user"}}]}}',
        f'{{"model": "{KEY}", "prompt": "a", "input": "a", "max_tokens": 1, "messages": [], "text": "a"}}',
        f'{{"messages": [{{"role": "{KEY}", "content": "a"}}], "max_tokens": 1, "input": [{{"type": "{KEY}"}}]}}',
        f'{{"processors": {{"{KEY}": {{}}}}, "sampler_order": ["{KEY}"], "prompt": "a", "input": "a"}}',
    ],
    ids=range(7),
)
async def test_an_error_is_bounded_whatever_the_client_sent(front, path, body):
    answer = await front.http.post(path, content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert len(answer.content) < 4 * MAX_CHARS


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "at least one"),
        ({"messages": "hi"}, "messages", "expected `array`"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", '"king"'),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "got `int`"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
            "image_url",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "missing"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages", "no functions here"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "[0, 20]"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "[0, 20]"),
        ({"logprobs": 3}, "logprobs", "got `int`"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", "two names"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "[1,"),
        ({"max_completion_tokens": 9999}, "max_completion_tokens", "9999"),
        ({"functions": [{}]}, "functions", "not supported"),
        ({"modalities": ["audio"]}, "modalities", "not supported"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "not supported"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", '"chat_template"'),
        ({"continue_final_message": True}, "continue_final_message", "assistant"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "add_generation"),
    ],
)
async def test_chat_refusals(front, fields, param, words):
    error = problem(await front.http.post(CHAT, json=USER | fields), 400)
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": ""}, "prompt", "at least one token"),
        ({"prompt": None}, "prompt", "null"),
        ({"prompt": 5}, "prompt", "got `int`"),
        ({"prompt": ["a", 1]}, "prompt", "list of strings"),
        ({"prompt": [[1, -1]]}, "prompt[0][1]", ">= 0"),
        ({"prompt": [258]}, "prompt", "258"),
        ({"prompt": ["a="] * 1025}, "prompt", "at most 1024"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"logprobs": 21}, "logprobs", "[0, 20]"),
        ({"logprobs": True}, "logprobs", "got `bool`"),
    ],
)
async def test_completion_refusals(front, fields, param, words):
    error = problem(await front.http.post(COMPLETE, json={"prompt": "x="} | fields), 400)
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETE])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"n": 1}}',
        b'{"model": "\xff"}',
        rb'{"model": "\ud800"}',
        b"[" * 100_000,
        b"[]",
        b'"x"',
        b"null",
    ],
)
async def test_what_is_no_json_object(front, path, raw):
    error = problem(await front.http.post(path, content=raw, headers=JSON), 400)
    assert "body" in error["message"]


async def test_missing_messages_and_prompt(front):
    assert problem(await front.http.post(CHAT, json={}), 400)["param"] == "messages"
    assert problem(await front.http.post(COMPLETE, json={}), 400)["param"] == "prompt"


async def test_content_types(front):
    raw = json.dumps(USER).encode()
    for kind, status in {
        "application/json; charset=utf-8": 200,
        "application/x-www-form-urlencoded": 415,  # curl -d: what any page may send
        "application/vnd.api+json": 200,
        "application/json;charset=UTF-8": 200,
        "application/json; charset=utf-16": 415,
        "text/html": 415,
        "text/plain": 415,
        "application/jsonp": 415,
        "": 415,
        "multipart/form-data; boundary=x": 415,
    }.items():
        answer = await front.http.post(CHAT, content=raw, headers={"content-type": kind} if kind else {})
        assert answer.status_code == status, kind
        if status == 415:
            message = problem(answer, 415, "unsupported_media_type")["message"]
            assert "utf-8" in message or "-H 'content-type: application/json'" in message


async def test_a_body_too_large_declared_and_undeclared(front):
    async def parts():
        for _ in range(17):
            yield b" " * (1 << 20)

    declared = await front.http.post(CHAT, headers=JSON, content=b" " * ((ServerConfig().max_body_mib << 20) + 1))
    problem(declared, 413, "request_too_large")
    undeclared = await front.http.post(CHAT, headers=JSON, content=parts())
    assert str(ServerConfig().max_body_mib << 20) in problem(undeclared, 413, "request_too_large")["message"]


PACKED = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}


@pytest.mark.parametrize("coding", PACKED)
async def test_a_packed_body(front, coding):
    raw = json.dumps(USER).encode()
    headers = JSON | {"content-encoding": coding.upper()}
    answer = await front.http.post(CHAT, content=PACKED[coding](raw), headers=headers)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello"
    if coding != "identity":
        whole = PACKED[coding](raw)
        for broken in (raw, whole[:-3], whole + b"x", whole + whole, b""):
            assert coding in problem(await front.http.post(CHAT, content=broken, headers=headers), 400)["message"]


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress", "gzip;q=1"])
async def test_a_packing_that_is_not_known(front, coding):
    answer = await front.http.post(CHAT, content=b"x", headers=JSON | {"content-encoding": coding})
    assert coding in problem(answer, 415, "unsupported_media_type")["message"]
    assert answer.headers["accept-encoding"] == "gzip, deflate, identity"


async def test_a_small_body_that_is_huge_once_unpacked(front):
    """1 GiB of blanks in 1 MiB: refused when the limit is reached, by then unpacked to no more than that."""
    packer = zlib.compressobj(9, wbits=31)
    first, other = (packer.compress(b" " * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    bomb = first + other * 1023  # after a full flush all is as before, so the packed bytes may be repeated
    assert len(bomb) < 2 << 20
    tracemalloc.start()
    answer = await front.http.post(CHAT, content=bomb, headers=JSON | {"content-encoding": "gzip"})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    problem(answer, 413, "request_too_large")
    assert peak < 24 << 20


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("top_k", "[-1, 2147483647]"),
        ("seed", "[-9223372036854775808, 9223372036854775807]"),
        ("temperature", "[0, 1000000]"),
        ("repetition_penalty", "[0.000001, 1000000]"),
        ("n", "[1, 1024]"),
        ("dry_allowed_length", "[1, 2147483647]"),
    ],
)
async def test_ranges_are_said_in_digits(front, field, said):
    answer = await front.http.post(CHAT, json=USER | {field: -(10**7) if field != "seed" else 2**63})
    message = problem(answer, 400)["message"]
    assert said in message, message


async def test_prompt_longer_than_the_context(front):
    for answer, param in (
        (await front.chat(content="x" * 300), "messages"),
        (await front.complete("x=" * 150), "prompt"),
        (await front.complete(["x=", "x=" * 150], stream=True), "prompt"),
    ):
        error = problem(answer, 400, "context_length_exceeded")
        assert error["param"] == param
        assert str(CONTEXT) in error["message"]


async def test_an_unknown_model_is_a_404(front):
    for answer in (
        await front.chat(model="other"),
        await front.complete(model="other"),
        await front.http.get("/v1/models/other"),
    ):
        assert '"other"' in problem(answer, 404, "model_not_found")["message"]


async def test_unknown_paths_and_methods(front):
    assert "/v1/nothing" in problem(await front.http.get("/v1/nothing"), 404, "not_found")["message"]
    assert len(problem(await front.http.get("/" + "x" * 5000), 404, "not_found")["message"]) < 300
    wrong = await front.http.get(CHAT)
    assert "GET" in problem(wrong, 405, "method_not_allowed")["message"]
    assert wrong.headers["allow"] == "POST"
    problem(await front.http.delete("/health"), 405)


@pytest.mark.parametrize(
    ("path", "body", "field", "values"),
    [
        ("/v1/chat/completions/x/control", {"action": "stop"}, "action", ["reasoning_end", "answer_end"]),
        (CHAT, USER | {"reasoning_effort": "odd"}, "reasoning_effort", ["none", "minimal", "high"]),
        (CHAT, USER | {"thinking": {"type": "odd"}}, "thinking.type", ["enabled", "disabled"]),
        (CHAT, USER | {"logprobs_mode": "odd"}, "logprobs_mode", ["raw", "processed"]),
        ("/v1/responses", {"input": "x", "truncation": "odd"}, "truncation", ["auto", "disabled"]),
    ],
)
async def test_a_refused_value_is_followed_by_those_that_are_taken(front, path, body, field, values):
    error = problem(await front.http.post(path, json=body), 400, "invalid_value")
    assert error["param"] == field
    assert all(f'"{value}"' in error["message"].partition("must be")[2] for value in values), error["message"]


async def test_a_failing_first_step_is_an_http_error(tokenizer):
    for stream in (False, True):
        async with front_of(LocalClient(saying(b"Hello"), fail_at=0), tokenizer) as front:
            assert "step failed" in problem(await front.chat(stream=stream), 500, "engine_error")["message"]
            assert front.client.idle()
            assert front.metric('tailrace_request_failed_total{code="engine_error"}') == 1


async def test_a_failure_in_mid_stream_is_an_event_and_the_end(tokenizer):
    async with front_of(LocalClient(saying(b"Hello"), fail_at=3), tokenizer) as front:
        *chunks, last = events((await front.chat(stream=True)).text)
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "Hel"
        assert all(c["choices"][0]["finish_reason"] is None for c in chunks)
        assert list(last) == ["error"]
        assert last["error"]["code"] == "engine_error"
        problem(await front.http.post(CHAT, headers=JSON, content=b"x"), 400)  # and the server goes on


async def test_a_failure_in_mid_answer_is_an_http_error_when_not_streamed(tokenizer):
    async with front_of(LocalClient(saying(b"Hello"), fail_at=3), tokenizer) as front:
        problem(await front.chat(), 500, "engine_error")


async def test_one_bad_sequence_of_several_ends_the_request(tokenizer):
    def nan_after_two(ids):
        return [float("nan")] * 258 if len(ids) > ids.index(ord("=")) + 2 else ord("a")

    async with front_of(LocalClient(nan_after_two), tokenizer) as front:
        *_, last = events((await front.complete(["x=", "longer="], n=2, stream=True)).text)
        assert last["error"]["code"] == "invalid_logits"
        await front.until(front.client.idle)


async def test_the_engines_death(tokenizer):
    client = LocalClient(saying(b"", then=ord("x")), tick_s=0.005)
    async with front_of(client, tokenizer) as front:
        assert (await front.http.get("/health")).json() == {"status": "ready", "error": None}
        asking = asyncio.create_task(front.chat(stream=True))
        await front.until(lambda: client.engine.counters.generated_tokens > 3)
        client.die()
        assert events((await asking).text)[-1]["error"]["code"] == "engine_dead"
        await front.until(lambda: front.service.supervisor.state == "dead")
        error = problem(await front.chat(), 503, "engine_dead")
        assert "signal 9" in error["message"]
        health = await front.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "dead")
        assert front.metric("tailrace_engine_ready") == 0


async def test_too_many_waiting_is_a_429_that_says_when_to_retry(tokenizer):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer) as front:
        front.client.hold = True  # the engine must not be faster than they come
        asking = asyncio.create_task(front.complete(["x="] * 200))
        await front.until(lambda: front.client.engine.stats().waiting == 100)
        front.client.hold = False
        answer = await asking
        problem(answer, 429, "overloaded")
        assert answer.headers["retry-after"] == "1"
        await front.until(front.client.idle)


async def test_a_bug_is_a_500_without_its_words(front, monkeypatch, caplog):
    monkeypatch.setattr(front.service.tokenizer, "render_chat", lambda *a, **k: 1 / 0)
    error = problem(await front.chat(), 500, "internal_error")
    assert "division" not in error["message"]


async def test_unknown_fields_are_logged_once(front, caplog):
    with caplog.at_level(logging.WARNING, "tailrace.api.body"):
        for _ in range(2):
            assert (await front.chat(never_seen_before=1, user="u")).status_code == 200
    assert [r.getMessage() for r in caplog.records] == ["unknown request field 'never_seen_before' is ignored"]


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_what_the_engine_reports_becomes_the_same_error(code):
    error = error_handlers.of_failed(Failed("id", 1, 0, code, "words", "field"))
    assert type(error) is BY_CODE[code]
    assert str(error) == "words"
    assert getattr(error, "param", "field") == "field"


def test_a_code_from_a_newer_engine_is_an_engine_error():
    assert type(error_handlers.of_failed(Failed("id", 1, 0, "new", "words"))) is EngineError


def test_bodies_of_errors():
    assert error_handlers.make_error_body(RequestError("m", "p")).error.param == "p"
    assert error_handlers.make_error_body(ModelLoadError("m")).error.param is None


class Inner(msgspec.Struct):
    x: int


class Outer(msgspec.Struct):
    items: list[Inner]


def test_the_path_of_a_validation_error():
    for raw, param in ((b'{"items": [{"x": 1}, {}]}', "items[1].x"), (b"{}", "items"), (b"[]", None)):
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.json.decode(raw, type=Outer)
        assert error_handlers.of_validation(caught.value).param == param


@pytest.mark.parametrize("depth", [3, 400])
async def test_case_27_a_grammar_is_refused_before_anything_is_compiled(front, depth):
    """However large: a clear 400, nothing reaches the engine, and the next request is served."""
    schema: dict = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "minItems": 9999, "maxItems": 99999, "items": schema}
    asked = {"type": "json_schema", "json_schema": {"name": "bomb", "strict": True, "schema": schema}}
    answer = await front.chat(response_format=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")
    assert not front.client.engine.requests
    assert (await front.chat()).status_code == 200


def test_a_text_that_is_cut_off_is_read_once():
    """Not once more for each of its escaped quotes: what is looked for in 100,000 bytes would take most of a minute."""
    text = b'{"x": "' + b'\\"' * 2000 + b'", "temperature": 1e400}'
    for end in range(20, 40):  # within the string, behind a quote or behind a backslash
        found = [match.span() for match in json_place._NUMBER.finditer(text, 0, end)]
        assert found == [(1, 4), (6, end)]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"enable_thinking": True, "thinking": {"type": "disabled"}},
            'enable_thinking (true) and thinking.type ("disa',
        ),
        ({"enable_thinking": False, "thinking": True}, "enable_thinking (false) and thinking (true) differ"),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"thinking_mode": "disabled"}},
            'enable_thinking (true) and chat_template_kwargs.thinking_mode ("disabled") differ',
        ),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, '("low") and reasoning.effort ("high") differ'),
        (
            {"do_sample": False, "temperature": 0.5},
            "do_sample (false) and temperature (0.5) are two names",
        ),
        ({"n_probs": True}, "got true"),
        ({"samplers": [None, True, "top_k"]}, 'got [null, true, "top_k"]'),
        ({"reasoning_format": None, "dry_sequence_breakers": 'a"'}, r'got "a\""'),
        ({"tools": [{"type": "function", "function": {"parameters": {}}}]}, "got null"),
        ({"messages": [{"role": "user", "content": [{"type": "it's"}]}]}, '''got "it's"'''),
        ({"logprobs_mode": "it's"}, '''invalid enum value "it's"'''),
        ({"model": "it's\n\u202e"}, r'''the model "it's\n\u202e" does not exist; there is "scripted"'''),
    ],
)
async def test_messages_show_what_was_sent_as_json(front, fields, words):
    answer = await front.http.post(CHAT, json=USER | fields)
    error = answer.json()["error"]
    assert words in error["message"]
    assert not {"True", "False", "None"} & set(re.findall(r"\w+", error["message"]))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ((1, None, True), "[1, null, true]"),
        ({"a": float("inf")}, '{"a": Infinity}'),
        ("é\x00\ud800", r'"é\u0000\ud800"'),
        ("x" * 200, '"' + "x" * 99),
        ({(1, 2): 3}, "a value of type dict"),
        (10**5000, "a value of type int"),
        (b"x", "\"b'x'\""),
    ],
    ids=range(7),
)
def test_a_value_of_a_message_is_bounded(value, shown):
    assert format_json(value) == shown
