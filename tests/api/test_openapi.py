"""The schema served is the one obeyed: every route is in it, requests it allows are understood, what it forbids is
refused."""

from __future__ import annotations

import re

import jsonschema
import pytest

from api.harness import LocalClient, endless, front_of
from tailrace.api.app import ROUTES
from tailrace.api.openapi import OPERATIONS
from tailrace.api.schema.chat import ChatRequest


@pytest.fixture
async def document(front):
    return (await front.http.get("/openapi.json")).json()


async def test_every_route_is_described(document):
    served = {(method, re.sub(r":\w+}", "}", path)) for method, path, _ in ROUTES if path != "/openapi.json"}
    assert served == set(OPERATIONS)
    assert served == {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


async def test_each_path_refuses_all_other_methods(front):
    """Ids may hold a slash, so that the path of one route can be an id of another."""
    paths = {path for _, path in OPERATIONS}
    for path in paths:
        taken = {method for method, other in OPERATIONS if other == path}
        for method in {"GET", "POST", "PUT", "DELETE", "TRACE"} - taken:
            answer = await front.http.request(method, re.sub(r"\{\w+\}", "x", path))
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == taken, path


async def test_references_lead_somewhere(document):
    names = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert names <= set(document["components"]["schemas"])
    assert {"ChatRequest", "ChatCompletion", "ErrorBody", "ResponseObject"} <= names


async def test_fields_and_ranges_are_those_that_are_read(document):
    schema = document["components"]["schemas"]["ChatRequest"]
    assert set(schema["properties"]) == set(ChatRequest.__struct_fields__)
    assert schema["required"] == ["messages"]
    top_p = next(kind for kind in schema["properties"]["top_p"]["anyOf"] if kind["type"] == "number")
    assert (top_p["minimum"], top_p["maximum"]) == (0.0, 1.0)
    for name, least in (("ChatRequest", 1), ("CompletionRequest", 0)):  # with echo
        kinds = document["components"]["schemas"][name]["properties"]["max_tokens"]["anyOf"]
        assert [kind["minimum"] for kind in kinds if kind["type"] == "integer"] == [least]


async def test_a_real_answer_fits_the_schema(tokenizer, document):
    async with front_of(LocalClient(endless), tokenizer) as front:
        for path, fields in (
            (
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 2, "max_tokens": 5},
            ),
            ("/v1/completions", {"prompt": "x=", "logprobs": 2, "prompt_logprobs": 1, "max_tokens": 5}),
            ("/generate", {"text": "x=", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}),
            ("/generate", {"text": ["x=", "y"], "sampling_params": {"max_new_tokens": 2}}),
            ("/v1/responses", {"input": "hi", "max_output_tokens": 5}),
            ("/v1/completions", {"prompt": "x=", "max_tokens": 5, "explain": True, "seed": 1, "top_p": 0.9}),
            ("/v1/explain", {"prompt": "x=", "output_token_ids": [65, 66], "seed": 1, "min_p": 0.1}),
            ("/tokenize", {"prompt": "hi"}),
            ("/detokenize", {"tokens": [65]}),
        ):
            answer = await front.http.post(path, json=fields)
            ref = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
            jsonschema.validate(answer.json(), ref | {"components": document["components"]})
