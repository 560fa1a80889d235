"""Conversations as clients of OpenAI's API send them, and what must be found of each in a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Message = dict[str, Any]


class Conversation(NamedTuple):
    """What a client sends. words: what a prompt that has lost nothing holds, in this order."""

    messages: list[Message]
    words: tuple[str, ...]
    tools: list[Message] | None = None
    options: Mapping[str, Any] = MappingProxyType({})
    unfinished: bool = False


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city — now.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "the city's name"},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time.",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
            "required": ["zone"],
        },
    },
}
TOOLS = [WEATHER, CLOCK]
ARGUMENTS = {"city": "Zürich 苏黎世", "days": 2}


def system(text: Any, role: str = "system") -> Message:
    """A system message."""
    return {"role": role, "content": text}


def user(text: Any) -> Message:
    """A user's message."""
    return {"role": "user", "content": text}


def said(text: Any, **fields: Any) -> Message:
    """An answer."""
    return {"role": "assistant", "content": text, **fields}


def call(name: str, arguments: Any, id: str) -> Message:
    """A call, its arguments as given."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text: Any, id: str, **fields: Any) -> Message:
    """What a tool said."""
    return {"role": "tool", "tool_call_id": id, "content": text, **fields}


def text(*parts: str) -> list[Message]:
    """Content in parts."""
    return [{"type": "text", "text": part} for part in parts]


ASKED = user("How warm is it?")
WARM = call("get_weather", json.dumps(ARGUMENTS, ensure_ascii=False), "call00001")
NOON = call("get_time", '{"zone": "CET"}', "call00002")
CALL_WORDS = ("warm", "get_weather", "Zürich 苏黎世")

CONVERSATIONS: dict[str, Conversation] = {
    "plain": Conversation([user("Hello there")], ("Hello there",)),
    "turns": Conversation([user("one"), said("two"), user("three")], ("one", "two", "three")),
    "unicode": Conversation([user("naïve 日本語 👩‍👩‍👧 \u2028 <b>&amp;</b>")], ("日本語 👩‍👩‍👧 \u2028 <b>&amp;</b>",)),
    "white space": Conversation([user("  x \n\n y\t ")], ("x \n\n y",)),
    "empty": Conversation([user(""), said(""), user("b")], ("b",)),
    "system": Conversation([system("Be brief"), user("one")], ("Be brief", "one")),
    "two systems": Conversation([system("Be brief"), system("Be kind"), user("one")], ("Be brief", "Be kind", "one")),
    "late system": Conversation(
        [system("Be brief"), user("one"), said("two"), system("Be kind"), user("three")],
        ("Be brief", "one", "Be kind", "three"),
    ),
    "late system, last": Conversation(
        [system("Be brief"), user("one"), system("Be kind")], ("Be brief", "one", "Be kind")
    ),
    "system alone": Conversation([system("Be brief")], ("Be brief",)),
    "two users": Conversation([user("one"), user("two"), said("three"), user("four")], ("one", "two", "three", "four")),
    "two answers": Conversation(
        [user("one"), said("two"), said("three"), user("four")], ("one", "two", "three", "four")
    ),
    "developer": Conversation([system("Be brief", "developer"), user("one")], ("Be brief", "one")),
    "system and developer": Conversation(
        [system("Be brief"), system("Be kind", "developer"), user("one")], ("Be brief", "Be kind", "one")
    ),
    "parts": Conversation(
        [user(text("first", "second")), said(text("third")), user("x")], ("first", "second", "third")
    ),
    "one part": Conversation([user(text("first"))], ("first",)),
    "system in parts": Conversation([system(text("first", "second")), user("x")], ("first", "second")),
    "names": Conversation([user("one") | {"name": "Ada"}, said("two", name="Bob"), user("three")], ("one", "two")),
    "tools": Conversation([ASKED], ("get_weather", "warm"), TOOLS),
    "tools and system": Conversation([system("Be brief"), ASKED], ("get_weather",), TOOLS),
    "call": Conversation([ASKED, said(None, tool_calls=[WARM]), result("21 °C", "call00001")], CALL_WORDS, TOOLS),
    "call, empty content": Conversation(
        [ASKED, said("", tool_calls=[WARM]), result("21 °C", "call00001")], CALL_WORDS, TOOLS
    ),
    "call, no content": Conversation(
        [ASKED, {"role": "assistant", "tool_calls": [WARM]}, result("21 °C", "call00001")], CALL_WORDS, TOOLS
    ),
    "call and text": Conversation(
        [ASKED, said("Let me see", tool_calls=[WARM]), result("21 °C", "call00001")],
        ("warm", "Let me see", "get_weather", "Zürich 苏黎世"),
        TOOLS,
    ),
    "calls and texts": Conversation(
        [
            ASKED,
            said("Let me see", tool_calls=[WARM]),
            result("21 °C", "call00001"),
            said("And when", tool_calls=[NOON]),
            result("noon", "call00002"),
            said("Warm"),
            user("Thanks"),
        ],
        ("warm", "Let me see", "get_weather", "Zürich 苏黎世", "21 °C", "And when", "CET", "noon", "Thanks"),
        TOOLS,
    ),
    "cut call": Conversation(
        [
            ASKED,
            said(None, tool_calls=[call("get_weather", '{"place": "Zür', "call00001")]),
            result("cut", "call00001"),
            said("Sorry"),
            user("Again"),
        ],
        ("warm", "get_weather", "Zür", "Again"),
        TOOLS,
    ),
    "text behind a result": Conversation(
        [ASKED, said(None, tool_calls=[WARM]), result("21 °C", "call00001"), user("And now?")],
        (*CALL_WORDS, "21 °C", "And now?"),
        TOOLS,
    ),
    "call with an object": Conversation(
        [ASKED, said(None, tool_calls=[call("get_weather", ARGUMENTS, "call00001")]), result("21 °C", "call00001")],
        CALL_WORDS,
        TOOLS,
    ),
    "call and answer": Conversation(
        [ASKED, said(None, tool_calls=[WARM]), result("21 °C", "call00001"), said("Warm"), user("And now?")],
        ("warm", "get_weather", "Zürich 苏黎世", "And now?"),
        TOOLS,
    ),
    "parallel calls": Conversation(
        [ASKED, said(None, tool_calls=[WARM, NOON]), result("21 °C", "call00001"), result("noon", "call00002")],
        ("warm", "get_weather", "Zürich 苏黎世", "get_time", "CET", "21 °C", "noon"),
        TOOLS,
    ),
    "no arguments": Conversation(
        [ASKED, said(None, tool_calls=[call("get_time", "{}", "call00001")]), result("noon", "call00001")],
        ("warm", "get_time"),
        TOOLS,
    ),
    "result in parts": Conversation(
        [ASKED, said(None, tool_calls=[WARM]), result(text("21 °C", "sunny"), "call00001")],
        (*CALL_WORDS, "21 °C", "sunny"),
        TOOLS,
    ),
    "result with a name": Conversation(
        [ASKED, said(None, tool_calls=[WARM]), result("21 °C", "call00001", name="get_weather")], CALL_WORDS, TOOLS
    ),
    "no calls": Conversation([user("one"), said("two", tool_calls=[]), user("three")], ("one", "two", "three")),
    "thinking on": Conversation([user("one")], ("one",), options={"enable_thinking": True, "thinking": True}),
    "thinking off": Conversation([user("one")], ("one",), options={"enable_thinking": False, "thinking": False}),
    "effort": Conversation([user("one")], ("one",), options={"reasoning_effort": "high"}),
    "thoughts": Conversation(
        [user("one"), said("two", reasoning_content="hm hm"), user("three")], ("one", "two", "three")
    ),
    "thoughts, as reasoning": Conversation(
        [user("one"), said("two", reasoning="hm hm"), user("three")], ("one", "two", "three")
    ),
    "thoughts and a call": Conversation(
        [ASKED, said(None, reasoning_content="hm hm", tool_calls=[WARM]), result("21 °C", "call00001")],
        CALL_WORDS,
        TOOLS,
    ),
    "thoughts, text and a call": Conversation(
        [ASKED, said("Let me see", reasoning_content="hm hm", tool_calls=[WARM]), result("21 °C", "call00001")],
        CALL_WORDS,
        TOOLS,
    ),
    "documents": Conversation(
        [user("one")], ("one",), options={"documents": [{"title": "A title", "text": "A text", "content": "A text"}]}
    ),
    "continued": Conversation([user("one"), said("two thr")], ("one", "two thr"), unfinished=True),
    "continued, with a space": Conversation([user("one"), said("two ")], ("one", "two"), unfinished=True),
    "continued, in parts": Conversation([user("one"), said(text("two", "thr"))], ("one", "thr"), unfinished=True),
    "continued, thinking": Conversation(
        [user("one"), said("<think>\nhm\n</think>\n\ntwo thr")], ("one", "two thr"), unfinished=True
    ),
    "continued, with thoughts": Conversation(
        [user("one"), said("two thr", reasoning_content="hm")], ("one", "two thr"), unfinished=True
    ),
}
