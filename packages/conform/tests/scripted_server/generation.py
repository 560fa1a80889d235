"""One choice of the scripted server: token by token from the sampler, through the text side, as parts.

Structure and tool calls are forced: a text that fits is chosen by the seed, and its tokens are the only ones allowed.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scripted_server.answer_text import AnswerText
from scripted_server.fields import BadRequest
from scripted_server.instances import json_text, matching
from scripted_server.sampler import draw
from scripted_server.script import EOS, VOCABULARY, Drawn, Step, encode


@dataclass(frozen=True)
class Part:
    """What one token adds. channel: "content", "reasoning" or "arguments". drawn: the token, None for the end alone."""

    text: str
    drawn: Drawn | None
    channel: str = "content"
    finish: str | None = None
    stop_reason: str | None = None


@dataclass
class Plan:
    """A request as it runs. forced: a text that must be written, or None. call: the function that it is the arguments
    of. thoughts: tokens that are thought before the content."""

    params: dict[str, Any]
    prompt: Sequence[int]
    seed: int
    fault: str = ""
    forced: str | None = None
    call: str | None = None
    thoughts: int = 0
    num_running: Callable[[], int] = field(default=lambda: 1)
    longest_prompt: Callable[[], int] = field(default=lambda: 0)

    @property
    def max_tokens(self) -> int:
        return self.params.get("max_completion_tokens", self.params.get("max_tokens", 64))

    @property
    def stops(self) -> list[str]:
        given = self.params.get("stop", [])
        if self.fault == "stop-text-as-characters" and isinstance(given, str):
            return list(given)
        return [given] if isinstance(given, str) else given


# Servers that take any request and always answer the same. One that does nothing but think has "answers-thoughts".
ANSWERS = {"answers-nothing": "", "answers-blanks": "  \n   \n", "answers-alike": "It is as it is, and no other way."}
THOUGHTS = "answers-thoughts"


def bound_text(params: dict[str, Any], rng: random.Random, fault: str) -> str | None:
    """The text that structure asks for, or None."""
    if fault == "structure-ignored":
        return None
    wanted = params.get("response_format", {})
    kind = wanted.get("type", "text")
    if kind == "json_schema":
        schema = wanted.get("json_schema", {}).get("schema")
        if not isinstance(schema, dict) or not isinstance(schema.get("type", "object"), str):
            raise BadRequest("response_format.json_schema.schema must be a JSON schema", "response_format")
        return spoiled(json_text(schema, rng), fault)
    if kind == "json_object" and fault == "json-mode-ignored":
        return None
    if kind == "json_object":
        return spoiled(json.dumps({"a": rng.randrange(10)}), fault)
    if kind != "text":
        raise BadRequest("response_format.type must be text, json_object or json_schema", "response_format")
    given = params.get("structured_outputs", {})
    if "choice" in given:
        return str(rng.choice(given["choice"])) + ("!" if fault == "choice-and-more" else "")
    if "regex" in given:
        return matching(given["regex"], rng) + (" " if fault == "regex-and-more" else "")
    if given:
        raise BadRequest("structured_outputs has choice or regex", "structured_outputs")
    return None


def spoiled(text: str, fault: str) -> str:
    if fault == "json-unclosed":
        return text[:-1]
    return text.replace(": ", ': "', 1) if fault == "json-untyped" else text


async def choice_parts(plan: Plan, index: int) -> AsyncIterator[Part]:
    """Draw tokens until a stop, the end of the text, or the length."""
    if plan.fault in ANSWERS:
        for part in fixed_parts(plan, encode(ANSWERS[plan.fault])):
            yield part
        return
    ids, written = list(plan.prompt), 0
    include, streamed = (plan.params.get(name, False) for name in ("include_stop_str_in_output", "stream"))
    side = AnswerText(plan.stops, include, plan.fault, streamed)
    forced = encode(plan.forced) if plan.forced is not None else None
    if plan.fault == "stops-in-prompt":
        side.text = b"".join(VOCABULARY[one] for one in plan.prompt).decode(errors="replace")
        side.sent = len(side.text)
    while True:
        allowed = None
        if forced is not None and (at := written - plan.thoughts) >= 0:
            allowed = frozenset([forced[at]] if at < len(forced) else [EOS])
        drawn = draw(
            Step(
                ids,
                len(plan.prompt),
                plan.params,
                plan.seed,
                index,
                plan.num_running(),
                allowed,
                plan.fault,
                plan.longest_prompt(),
            )
        )
        ids.append(drawn.id)
        written += 1
        channel = "reasoning" if written <= plan.thoughts else "arguments" if plan.call else "content"
        last = written == plan.max_tokens
        if drawn.id == EOS and not plan.params.get("ignore_eos"):
            yield Part(side.feed(b"", last=True), drawn, channel, ending(plan, "stop"))
            return
        if channel == "reasoning":
            text = VOCABULARY[drawn.id].decode(errors="replace")
        else:
            ended = side.ended
            text = side.feed(VOCABULARY[drawn.id], last, written >= plan.params.get("min_tokens", 0))
            text = "" if ended else text
        if side.ended and (plan.fault != "stop-goes-on" or last):
            yield Part(text, drawn, channel, ending(plan, "stop"), side.stop_reason)
            return
        if last:
            yield Part(text, drawn, channel, "stop" if plan.fault == "finish-always-stop" else "length")
            return
        yield Part(text, drawn, channel)


def fixed_parts(plan: Plan, ids: Sequence[int]) -> list[Part]:
    """The same answer whatever was asked for, of tokens that have all of the probability."""
    if not ids:
        return [Part("", None, finish="stop")]
    shown = list(ids[: plan.max_tokens])
    drawn = [Drawn(id, [0.0 if other == id else -math.inf for other in range(len(VOCABULARY))]) for id in shown]
    made = [Part(VOCABULARY[one.id].decode(), one) for one in drawn]
    return [*made[:-1], replace(made[-1], finish="stop" if len(shown) == len(ids) else "length")]


def ending(plan: Plan, finish: str) -> str:
    if plan.fault == "finish-always-length":
        return "length"
    return "tool_calls" if plan.call else finish
