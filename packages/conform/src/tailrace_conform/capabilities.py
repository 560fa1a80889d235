"""What a server offers, asked once at the start of a run.

A capability is "offered" (accepted, or answered with a 5xx, which is a finding of errors.no-5xx), "refused" (a clear
4xx), or "ignored" (accepted, but what it should bring into the answer is not there). Whether a field has its effect on
the tokens is what the laws find out, not this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tailrace_conform.errors import ConformError
from tailrace_conform.exchange import Exchange
from tailrace_conform.plain import quoted
from tailrace_conform.prompts import PROMPTS
from tailrace_conform.reply import reply
from tailrace_conform.target import TargetServer

Offer = Literal["offered", "refused", "ignored"]
ENDPOINTS = {"completions": "/completions", "chat": "/chat/completions"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Look a word up.", "parameters": SCHEMA}}
CHOICE = {"type": "function", "function": {"name": "look_up"}}


@dataclass(frozen=True)
class Probe:
    """fields: what is added to the smallest request. shows: whether the answer has what they ask for; None where no
    answer can show it. chat: the field belongs to chats alone."""

    fields: Mapping[str, Any]
    shows: Callable[[Exchange], bool] | None = None
    chat: bool = False


def has_logprobs(made: Exchange) -> bool:
    """Whether tokens are reported; an answer without any text has none to report."""
    choice = reply(made).choice()
    return bool(choice.tokens) or not choice.reasoning + choice.text


PROBES: dict[str, Probe] = {
    "stream": Probe({"stream": True}, lambda made: bool(made.events)),
    "stream_usage": Probe(
        {"stream": True, "stream_options": {"include_usage": True}}, lambda made: reply(made).usage is not None
    ),
    "n": Probe({"n": 2, "temperature": 1.0}, lambda made: len(reply(made).choices) == 2),
    "logprobs": Probe({}, has_logprobs),  # spelled by endpoint, see fields_of
    "logit_bias": Probe({"logit_bias": {"5": 1.0}}),
    "json_schema": Probe(
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}},
        chat=True,
    ),
    "json_object": Probe({"response_format": {"type": "json_object"}}, chat=True),
    "tools": Probe({"tools": [TOOL]}, chat=True),
    "forced_tool": Probe({"tools": [TOOL], "tool_choice": CHOICE}, chat=True),
} | {
    name: Probe({name: value})
    for name, value in {
        "seed": 1,
        "stop": ["\n"],
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
        "repeat_penalty": 1.1,  # llama.cpp's name
        "min_tokens": 1,
        "bad_words": ["zebra"],
        "allowed_token_ids": [5, 6, 7],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "structured_outputs": {"choice": ["yes", "no"]},
        "guided_choice": ["yes", "no"],
        "prompt_logprobs": 1,
        "echo": True,
    }.items()
}


@dataclass
class Capabilities:
    """offers: by name. exchanges: what was asked, as evidence."""

    found: dict[str, Offer] = field(default_factory=dict)
    exchanges: dict[str, Exchange] = field(default_factory=dict)

    def offers(self, name: str) -> bool:
        """Whether it was accepted. What was never probed counts as offered: the law finds out."""
        return self.found.get(name, "offered") == "offered"

    def lacks(self, names: tuple[str, ...]) -> str | None:
        """The first of the names that is not offered."""
        return next((name for name in names if not self.offers(name)), None)


def fields_of(name: str, endpoint: str) -> dict[str, Any]:
    """The smallest request of a probe."""
    prompt = PROMPTS["plain"]
    message = {"messages": [{"role": "user", "content": prompt}]}
    start: dict[str, Any] = {"prompt": prompt} if endpoint == "completions" else message
    start["max_tokens"] = 2
    if name == "logprobs":
        return start | ({"logprobs": 2} if endpoint == "completions" else {"logprobs": True, "top_logprobs": 2})
    return start | dict(PROBES[name].fields)


async def probe(server: TargetServer) -> Capabilities:
    """Ask for each capability once. Endpoints first: the others are asked where completions, else chats, are there.

    Raises:
        ConformError: neither endpoint answers, as with a wrong key or model: every law would be "not offered".
    """
    made = Capabilities()
    for name, path in ENDPOINTS.items():
        body = {"model": server.model, **fields_of("seed", name)}
        body.pop("seed")
        made.exchanges[name] = await server.request(path, body)
        made.found[name] = "refused" if made.exchanges[name].refused else "offered"
    asked = [made.exchanges[name] for name in ENDPOINTS]
    if not any(one.ok for one in asked):  # no law could say anything
        failures = [one.failure or f"status {one.status}: {quoted(one.error_message[:120])}" for one in asked]
        raise ConformError(
            f"neither {' nor '.join(ENDPOINTS.values())} of {server.base_url} answers a plain request to "
            f"{quoted(server.model)}: {' and '.join(dict.fromkeys(failures))}"
        )

    async def ask(name: str) -> None:
        chat = PROBES[name].chat or not made.offers("completions")
        endpoint = "chat" if chat else "completions"
        if not made.offers(endpoint):
            made.found[name] = "refused"
            return
        answer = await server.request(ENDPOINTS[endpoint], {"model": server.model, **fields_of(name, endpoint)})
        made.exchanges[name] = answer
        shows = PROBES[name].shows
        if answer.refused:
            made.found[name] = "refused"
        else:
            made.found[name] = "offered" if not answer.ok or shows is None or shows(answer) else "ignored"

    await asyncio.gather(*(ask(name) for name in PROBES))
    return made
