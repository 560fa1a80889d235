"""errors.strange-bodies: whatever the body, there is an answer, and the server lives."""

from __future__ import annotations

import json
from typing import Any

from tailrace_conform.cases import asking
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive
from tailrace_conform.wrong_requests import endpoint_of, path_of

MIB = 1 << 20


def bodies(ctx: LawContext) -> dict[str, str]:
    """By name; each is sent as it is."""

    def text_of(**fields: Any) -> str:
        return json.dumps({"model": ctx.server.model, **asking(endpoint_of(ctx), "plain", **fields).body})

    start = text_of(max_tokens=2)[:-1]
    return {
        "deep nesting": '{"model": ' + "[" * 100_000 + "]" * 100_000 + "}",
        "a deep field": start + ', "logit_bias": ' + '{"1":' * 2_000 + "1" + "}" * 2_000 + "}",
        "half a surrogate pair": start.replace("quick", "\\ud83d") + "}",
        "a NUL character": start.replace("quick", "\\u0000") + "}",
        "NaN": start + ', "temperature": NaN}',
        "Infinity": start + ', "temperature": Infinity}',
        "a huge exponent": start + ', "temperature": 1e999}',
        "a huge integer": start + ', "seed": ' + "9" * 5_000 + "}",
        "a name of 1 MiB": start + ', "' + "a" * MIB + '": 1}',
        "20,000 fields": start + "".join(f', "f{at}": 1' for at in range(20_000)) + "}",
        "a field twice": start + ', "max_tokens": 3}',
        "10,000 stops": start + ', "stop": ' + json.dumps(["\x01" + str(at) for at in range(10_000)]) + "}",
        "an empty stop": start + ', "stop": [""]}',
        "100,000 biases": start + ', "logit_bias": ' + json.dumps({str(at): 1 for at in range(100_000)}) + "}",
        "a billion choices": start + ', "n": 1000000000}',
    }


async def check(ctx: LawContext) -> Verdict:
    found = bodies(ctx)
    if not (await ctx.server.request("/models")).ok:
        return inconclusive("GET /models does not answer before either, so it can't tell whether the server lives")
    for name, body in found.items():
        made = await ctx.server.request(path_of(ctx), body)
        if not made.ok and not made.refused and made.status != 429:
            return broken(f"{name}: {made.failure or f'status {made.status}'}", made)
        if not (await ctx.server.request("/models")).ok:
            return broken(f"after {name} the server does not answer any more", made)
    return holds(f"{len(found)} bodies")


LAW = Law(
    "errors.strange-bodies",
    "Whatever the body, the answer is a 200 or a 4xx, and the server lives on.",
    "One strange request must not take a server down, nor hold it up.",
    "Deep nesting, half surrogates, NUL, NaN, infinite and huge numbers, a name of 1 MiB, 20,000 fields, 10,000 stops, "
    "100,000 biases, an n of a billion; after each GET /models must answer.",
    "500, a closed connection, silence.",
    check,
    cost=30,
)
