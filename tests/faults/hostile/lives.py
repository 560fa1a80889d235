"""Clients that leave, come twice, cancel, read slowly; and what is kept between requests."""

from __future__ import annotations

import dataclasses
import json
from random import Random
from typing import Any

from faults.hostile.client import (
    EITHER,
    FINE,
    Attempt,
    Kind,
    chat,
    complete,
    head,
    listed,
    post,
    raw,
    respond,
    statuses,
)

LENGTHY: dict[str, Any] = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "n": 2}


def leaving(then: Any, after: int, **fields: Any) -> Attempt:
    """A long completion that is left."""
    return post("/v1/completions", LENGTHY | fields, then=then, after=after, field="")


def left_at_once(chance: Random, i: int) -> Attempt:
    return leaving(listed(chance, ["close", "reset"], i % 2), 0, stream=i % 3 == 0)


def left_at_the_first_byte(chance: Random, i: int) -> Attempt:
    return leaving(listed(chance, ["close", "reset"], i % 2), 1, stream=True)


def left_in_the_middle(chance: Random, i: int) -> Attempt:
    return leaving(listed(chance, ["close", "reset"], i % 2), 2000 * (1 + i), stream=True, logprobs=i % 3)


def left_in_the_prompt(chance: Random, i: int) -> Attempt:
    return leaving(
        listed(chance, ["close", "reset"], i % 2),
        0,
        prompt=[chance.randrange(49_152) for _ in range(3000)],
        prompt_logprobs=listed(chance, [None, 5], i % 2),
    )


def left_in_the_grammar(chance: Random, i: int) -> Attempt:
    schema = {"type": "object", "properties": {f"k{n}": {"enum": [f"v{m}" for m in range(20)]} for n in range(300)}}
    return leaving(
        listed(chance, ["close", "reset"], i % 2), listed(chance, [0, 1], i % 2), guided_json=schema, stream=True
    )


def left_in_the_body(chance: Random, i: int) -> Attempt:
    body = json.dumps(LENGTHY).encode()
    return raw(
        head("/v1/completions", len(body)), body[: 1 + i * 5], then=listed(chance, ["close", "reset", "half"], i % 3)
    )


def left_beams(chance: Random, i: int) -> Attempt:
    body = {"prompt": "Once", "max_tokens": 500, "use_beam_search": True, "best_of": 16, "ignore_eos": None}
    return post("/v1/completions", body, then=listed(chance, ["close", "reset"], i % 2), after=0, field="")


def left_responses(chance: Random, i: int) -> Attempt:
    body = {"input": "Hello", "max_output_tokens": 2000, "ignore_eos": True, "stream": True, "store": i % 2 == 0}
    return post(
        "/v1/responses",
        body,
        then=listed(chance, ["close", "reset"], i % 2),
        after=listed(chance, [0, 1, 3000], i % 3),
        field="",
    )


def slow_readers(chance: Random, i: int) -> Attempt:
    """They ask for much, read a little, wait, and go."""
    first = leaving("reset", 100, stream=True, logprobs=20, n=4)
    pieces = (*first.pieces, 1.0 + 0.1 * i)
    return dataclasses.replace(first, pieces=pieces)


def the_same_id(chance: Random, i: int) -> Attempt:
    name = f"same-{i % 3}"
    ask = complete(request_id=name, max_tokens=50, ignore_eos=True)
    by_header = post("/v1/completions", {"prompt": "x", "max_tokens": 50, "ignore_eos": True}, f"x-request-id: {name}")
    return dataclasses.replace(ask, beside=(by_header, ask, complete(request_id=name, max_tokens=50, stream=True)))


def cancel(id: str) -> Attempt:
    """By name."""
    return raw(head(f"/v1/requests/{id}", None, method="DELETE"))


def cancel_storms(chance: Random, i: int) -> Attempt:
    names = [f"storm-{i}-{n}" for n in range(8)]
    asks = tuple(
        complete(request_id=name, max_tokens=500, ignore_eos=True, stream=n % 2 == 0) for n, name in enumerate(names)
    )
    return dataclasses.replace(
        asks[0],
        beside=(
            *asks[1:],
            *(
                dataclasses.replace(cancel(name), pieces=(0.05 * n, *cancel(name).pieces))
                for n, name in enumerate(names * 3)
            ),
        ),
    )


def cancelled_strangers(chance: Random, i: int) -> Attempt:
    return cancel(
        listed(
            chance,
            [
                "nobody",
                "%00",
                "%2e%2e",
                "x" * 5000,
                "%F0%9F%98%80",
                "cmpl-",
                "resp_",
                "chatcmpl-nobody",
                "a%2fb",
                "%ff",
            ],
            i,
        )
    )


def previous_responses(chance: Random, i: int) -> Attempt:
    ids: list[Any] = ["nobody", "", "resp_", "x" * 10_000, "\x00", "../x", 5, [], {}, "resp_nobody"]
    return respond(previous_response_id=listed(chance, ids, i))


def responses_overwritten(chance: Random, i: int) -> Attempt:
    """Two answers to be kept under one name."""
    body = {"input": f"Say {i}", "max_output_tokens": 4, "store": True}
    ask = post("/v1/responses", body, "x-request-id: mine", field="")
    return dataclasses.replace(
        ask, beside=(post("/v1/responses", body | {"input": "theirs"}, "x-request-id: mine", field=""),)
    )


def responses_of_themselves(chance: Random, i: int) -> Attempt:
    return post(
        "/v1/responses",
        {"input": "x", "max_output_tokens": 4, "previous_response_id": "resp_loop", "store": True},
        "x-request-id: loop",
        field="",
    )


def stored_much(chance: Random, i: int) -> Attempt:
    return respond("word " * 2500, store=True, metadata={f"k{n}": "v" * 500 for n in range(500 * (1 + i % 4))})


def stored_strangers(chance: Random, i: int) -> Attempt:
    path = listed(
        chance,
        [
            "/v1/responses/nobody",
            "/v1/responses/",
            "/v1/responses/%00",
            "/v1/responses/a/b/cancel",
            "/v1/responses/" + "x" * 5000,
        ],
        i % 5,
    )
    return raw(head(path, None, method=listed(chance, ["GET", "DELETE", "POST"], i % 3)))


def asked_in_passing(chance: Random, i: int) -> Attempt:
    """Whoever asks /metrics and the schema again and again."""
    path = listed(chance, ["/metrics", "/openapi.json", "/health", "/v1/models"], i % 4)
    ask = raw(head(path, None, method="GET"))
    return dataclasses.replace(ask, beside=(ask,) * 20)


def a_crowd(chance: Random, i: int) -> Attempt:
    """More at once than there are slots."""
    asks = tuple(listed(chance, [complete, chat, respond], n % 3)(f"{i} {n}", stream=n % 2 == 0) for n in range(100))
    return dataclasses.replace(asks[0], beside=asks[1:])


def connects(chance: Random, i: int) -> Attempt:
    """Connections that come and go."""
    ask = raw(head("/health", None, method="GET"))
    return dataclasses.replace(ask, beside=(raw(then="reset"),) * 300)


KINDS = (
    Kind("left at once", left_at_once, FINE, "a slot that nobody reads from"),
    Kind("left at the first byte", left_at_the_first_byte, FINE, "the same"),
    Kind("left in the middle", left_in_the_middle, FINE, "the same"),
    Kind("left in the prompt", left_in_the_prompt, FINE, "a prefill for nobody"),
    Kind("left in the grammar", left_in_the_grammar, FINE, "a compilation for nobody"),
    Kind("left in the body", left_in_the_body, statuses(0, 400), "half a request"),
    Kind("beams left", left_beams, FINE, "sixteen requests for nobody"),
    Kind("responses left", left_responses, FINE, "a response in progress for ever"),
    Kind("slow readers", slow_readers, FINE, "megabytes that wait"),
    Kind("the same id again", the_same_id, EITHER | statuses(409), "one request's end is the other's"),
    Kind("storms of cancels", cancel_storms, FINE, "ends that cross"),
    Kind("strangers cancelled", cancelled_strangers, statuses(400, 404), "lookups that fail as 500"),
    Kind("previous responses", previous_responses, statuses(400, 404), "the same"),
    Kind("responses overwritten", responses_overwritten, FINE | statuses(400, 409), "a stored response is another's"),
    Kind("responses of themselves", responses_of_themselves, statuses(200, 400, 404, 409), "a circle"),
    Kind("much to be kept", stored_much, EITHER, "a store without a bound"),
    Kind("strangers kept", stored_strangers, statuses(400, 404, 405), "lookups that fail as 500"),
    Kind("asked in passing", asked_in_passing, FINE, "what is made anew for whoever asks"),
    Kind("a crowd", a_crowd, EITHER | statuses(429), "more than there are slots"),
    Kind("connections that come and go", connects, FINE, "descriptors"),
)
