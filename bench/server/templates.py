"""Measure the rendering of chat templates: in this process, in a process with limits, and as the server does it (on a
thread that waits for the process).

The conversations have the shape of agents' conversations: questions, calls, results and answers in turn. The template
writes them as Qwen's do. All three ways must give the same text.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request

from bench.lib.harness import machine, percentile, table, write_json
from tailrace.api.work_queue import WorkQueue
from tailrace.text.templates.chat_template import ChatTemplate
from tailrace.text.templates.environment import CompiledTemplate
from tailrace.text.templates.processes import SHARED
from tailrace.text.templates.program import TemplateProgram

TEMPLATE = """{%- if tools %}<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' }}
# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% endif %}{% for message in messages %}{% if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}{% elif message.role != 'system' or not tools %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
WORDS = "The river runs past the mill and turns its wheel. "


class Conversation(NamedTuple):
    """A number of messages, the characters of each, and the number of tools."""

    messages: int
    chars: int
    tools: int


CONVERSATIONS = {
    "one question": Conversation(1, 50, 0),
    "10 messages, 3 tools": Conversation(10, 300, 3),
    "100 messages, 20 tools": Conversation(100, 600, 20),
    "4,000 messages": Conversation(4000, 300, 3),
    "8 MiB in 40 messages": Conversation(40, 8 * 2**20 // 40, 3),
}


def make_values(shape: Conversation) -> dict[str, Any]:
    """Return the template's variables."""
    text = (WORDS * (shape.chars // len(WORDS) + 1))[: shape.chars]
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": {"place": "mill", "days": 3}}}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": text},
        {"role": "assistant", "content": text},
    ]
    properties = {name: {"type": "string", "description": text[:80]} for name in ("place", "days", "unit", "language")}
    tools = [
        {"type": "function", "function": {"name": f"look_up_{i}", "parameters": {"properties": properties}}}
        for i in range(shape.tools)
    ]
    messages = [turns[i % len(turns)] for i in range(shape.messages)]
    return {"messages": messages, "tools": tools, "add_generation_prompt": True}


async def time_runs(render: Callable[[], Awaitable[str]], rounds: int) -> tuple[list[float], str]:
    """Return the seconds of each rendering, and the text."""
    times, text = [], await render()
    for _ in range(rounds):
        begun = time.perf_counter()
        await render()
        times.append(time.perf_counter() - begun)
    return times, text


async def measure(rounds: int) -> list[dict[str, Any]]:
    """Return a row per conversation, in microseconds."""
    inside, program, queue = CompiledTemplate(TEMPLATE), TemplateProgram(TEMPLATE), WorkQueue()
    program.end_load()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    rows = []
    for name, shape in CONVERSATIONS.items():
        values = make_values(shape)

        async def render_inside(values: dict[str, Any] = values) -> str:
            return inside.render(values)

        async def render_outside(values: dict[str, Any] = values) -> str:
            return program.run(values)

        async def render_on_thread(values: dict[str, Any] = values) -> str:
            return await queue.render(Request({"type": "http"}, receive), lambda: program.run(values))

        ways = {"in process": render_inside, "process": render_outside, "server": render_on_thread}
        count = max(5, rounds // max(1, shape.messages * shape.chars // 3000))
        found = {way: await time_runs(render, count) for way, render in ways.items()}
        assert len({text for _, text in found.values()}) == 1
        row: dict[str, Any] = {"conversation": name, "chars": len(found["process"][1])}
        for way, (times, _) in found.items():
            row |= {f"{way} p50": round(percentile(times, 50) * 1e6), f"{way} p99": round(percentile(times, 99) * 1e6)}
        row["added p50"] = row["server p50"] - row["in process p50"]
        rows.append(row)
    return rows


def measure_load() -> dict[str, Any]:
    """Return milliseconds: the load of a template while the process starts, and once it runs."""
    times = []
    for source in (TEMPLATE, TEMPLATE + " "):
        begun = time.perf_counter()
        ChatTemplate(source, {})
        times.append(round((time.perf_counter() - begun) * 1e3, 1))
    return {"load with start ms": times[0], "load ms": times[1]}


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.templates", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000, help="renderings of a short conversation")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args(argv)
    load = measure_load()
    rows = asyncio.run(measure(arguments.rounds))
    SHARED.close()
    print(table(rows))
    print(table([load]))
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), "rows": rows, "load": load})
    return 0


if __name__ == "__main__":
    sys.exit(main())
