"""Tools that vendors define and clients run, by the vendors' own clients: openai-agents runs shell, local_shell and
apply_patch, Anthropic's tool runner runs memory, bash and text_editor. The model is scripted (scripted_agent.py)."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import agents
import anthropic
import openai
import pytest
from agents.editor import ApplyPatchResult
from anthropic.tools import BetaLocalFilesystemMemoryTool
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from .conftest import NAME, Server

FORMS = ("hermes", "qwen3_coder", "glm4", "minimax_m2")
COMMANDS = ["echo 'a \"b\"'", "ls\n"]
DIFF = "+def f():\n+    return '</parameter>'"
ANSWER = "All is done."
UNTYPED = ("response.shell_call_command.", "response.apply_patch_call_operation_diff.")


@pytest.fixture(params=FORMS)
def model(agent: Server, request: pytest.FixtureRequest) -> Server:
    agent.post(f"/format/{request.param}")
    return agent


def write_script(model: Server, *calls: tuple[str, dict[str, Any]]) -> None:
    """Let the model make these calls, one in each turn, and then answer."""
    turns = [{"thought": "", "calls": [call], "text": ""} for call in calls]
    last = {"thought": "", "calls": [], "text": ANSWER}
    model.post("/script", json.dumps([*turns, last]).encode())


def read_last_prompt(model: Server) -> str:
    with urllib.request.urlopen(f"{model.url}/prompts", timeout=30) as answer:
        return json.load(answer)[-1]


class Editor:
    """An editor that keeps the operations."""

    def __init__(self) -> None:
        self.operations: list[Any] = []

    def create_file(self, operation: Any) -> ApplyPatchResult:
        self.operations.append((operation.type, operation.path, operation.diff))
        return ApplyPatchResult(status="failed", output="the disk is full")

    update_file = delete_file = create_file


@pytest.mark.parametrize("stream", [False, True])
def test_openai_agents(model: Server, stream: bool):
    patch = {"type": "create_file", "path": "a.py", "diff": DIFF}
    write_script(model, ("shell", {"commands": COMMANDS, "timeout_ms": 7}), ("apply_patch", patch))
    editor, ran = Editor(), []

    def run_commands(request: Any) -> str:
        ran.append((request.data.action.commands, request.data.action.timeout_ms))
        return "the secret is walrus"

    async def converse() -> str:
        client = openai.AsyncOpenAI(base_url=model.v1, api_key="none", max_retries=0, timeout=120)
        agent = agents.Agent(
            name="coder",
            model=agents.OpenAIResponsesModel(NAME, client),
            tools=[agents.ShellTool(executor=run_commands), agents.ApplyPatchTool(editor=editor)],
        )
        if not stream:
            return (await agents.Runner.run(agent, "Go.")).final_output
        run = agents.Runner.run_streamed(agent, "Go.")
        async for _ in run.stream_events():
            pass
        return run.final_output

    assert asyncio.run(converse()) == ANSWER
    assert ran == [(COMMANDS, 7)]
    assert editor.operations == [("create_file", "a.py", DIFF)]
    prompt = read_last_prompt(model)
    assert "the secret is walrus" in prompt
    assert "failed\nthe disk is full" in prompt


@pytest.mark.parametrize("stream", [False, True])
def test_the_local_shell_of_openai_agents(model: Server, stream: bool):
    write_script(model, ("local_shell", {"command": ["ls", "-l"], "working_directory": "/tmp"}))
    ran = []

    def run_command(request: Any) -> str:
        ran.append((request.data.action.command, request.data.action.working_directory))
        return "the secret is walrus"

    async def converse() -> str:
        client = openai.AsyncOpenAI(base_url=model.v1, api_key="none", max_retries=0, timeout=120)
        tools = [agents.LocalShellTool(executor=run_command)]
        agent = agents.Agent(name="coder", model=agents.OpenAIResponsesModel(NAME, client), tools=tools)
        run = agents.Runner.run_streamed(agent, "Go.") if stream else await agents.Runner.run(agent, "Go.")
        if isinstance(run, agents.RunResultStreaming):
            async for _ in run.stream_events():
                pass
        return run.final_output

    assert asyncio.run(converse()) == ANSWER
    assert ran == [(["ls", "-l"], "/tmp")]
    assert "the secret is walrus" in read_last_prompt(model)


def test_the_types_of_openai_read_all_items_and_events(model: Server):
    """openai 2.54 has no types for two kinds of events: those of a shell's commands, which 3.57 has, and those of a
    patch's diff, which OpenAI's server sends nevertheless."""
    calls = [
        ("local_shell", {"command": ["ls"]}),
        ("shell", {"commands": COMMANDS}),
        ("apply_patch", {"type": "update_file", "path": "a.py", "diff": DIFF}),
        ("apply_patch", {"type": "delete_file", "path": "a.py", "diff": ""}),
    ]
    tools: list[Any] = [{"type": kind} for kind in ("local_shell", "shell", "apply_patch")]
    events = TypeAdapter(ResponseStreamEvent)
    with openai.OpenAI(base_url=model.v1, api_key="none", max_retries=0, timeout=120) as client:
        for call in calls:
            write_script(model, call)
            whole = client.responses.create(model=NAME, input="Go.", tools=tools)
            stream = client.responses.create(model=NAME, input="Go.", tools=tools, stream=True)
            seen = [event.model_dump() for event in stream]
            known = [event for event in seen if not event["type"].startswith(UNTYPED)]
            assert all(events.validate_python(event).type == event["type"] for event in known)
            item = {name: value for name, value in known[-1]["response"]["output"][0].items() if "id" not in name}
            [first] = whole.output
            assert {name: value for name, value in first.model_dump().items() if "id" not in name} == item
            assert first.type == f"{call[0]}_call"


def test_the_memory_of_anthropic(model: Server, tmp_path: Path):
    text = 'walrus "</parameter>"\n'
    path = "/memories/a.txt"
    write_script(
        model,
        ("memory", {"command": "create", "path": path, "file_text": text}),
        ("memory", {"command": "rename", "old_path": path, "new_path": "/memories/b.txt"}),
        ("memory", {"command": "view", "path": "/memories/b.txt", "view_range": [1, -1]}),
    )
    with anthropic.Anthropic(base_url=model.url, api_key="none", max_retries=0, timeout=120) as client:
        runner = client.beta.messages.tool_runner(
            model=NAME,
            max_tokens=2000,
            tools=[BetaLocalFilesystemMemoryTool(base_path=str(tmp_path))],
            messages=[{"role": "user", "content": "Go."}],
        )
        assert runner.until_done().content[-1].text == ANSWER
    assert (tmp_path / "memories" / "b.txt").read_text() == text
    assert 'walrus "</parameter>"' in read_last_prompt(model)


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ({"type": "bash_20250124", "name": "bash"}, {"command": "ls\npwd", "restart": False}),
        (
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100},
            {"command": "insert", "path": "/a", "insert_line": 3, "insert_text": DIFF},
        ),
    ],
)
def test_bash_and_editor_of_anthropic(model: Server, tool: Any, given: dict[str, Any]):
    write_script(model, (tool["name"], given))
    with anthropic.Anthropic(base_url=model.url, api_key="none", max_retries=0, timeout=120) as client:
        ask: dict[str, Any] = {"model": NAME, "max_tokens": 2000, "tools": [tool]}
        messages: list[Any] = [{"role": "user", "content": "Go."}]
        whole = client.messages.create(**ask, messages=messages)
        with client.messages.stream(**ask, messages=messages) as stream:
            streamed = stream.get_final_message()
        [use] = whole.content
        assert (use.type, use.name, use.input) == ("tool_use", tool["name"], given)
        assert streamed.content[0].input == given
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "the secret is walrus"}
        messages += [{"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
        assert client.messages.create(**ask, messages=messages).content[-1].text == ANSWER
    assert "the secret is walrus" in read_last_prompt(model)
