"""Coding agents work through a conversation: a thought, two calls at once, results, a picture, a long file, a text.

The model is scripted (scripted_agent.py) and writes calls in the forms of models that people run, with a small template
and with the real templates of these models, which tests/peers/fetch.py fetches.
Skipped where there is no npm. The clients do not run as root outside a container; IS_SANDBOX says that this is one.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import NAME, Server, install_packages

HERE = Path(__file__).resolve().parent / "coding_agents"
# The format of calls; with a real template its package and name.
FORMS = (
    "hermes",
    "qwen3_coder",
    "glm4",
    "minimax_m2",
    "harmony",
    "qwen3_coder/llama-cpp-python/Qwen3.5-4B",
    "qwen3_coder/xinference/qwen3.8",
    "glm4/xinference/glm-5.3",
    "minimax_m2/xinference/MiniMax-M2.7",
    "harmony/llama-cpp-python/openai-gpt-oss-120b",
)
QUESTION = "Read a.txt and b.png, then write out.py. Please think."
SECRET = "The secret word is walrus."
THOUGHT = "Both files, at once."
ANSWER = "All is written."
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
LONG_FILE = "".join(f"def f{i}(x):\n    return \"</b>\" + '\\\\' * {i}  # é\n" for i in range(24))
CODEX = """\
model = "{name}"
model_provider = "tailrace"

[model_providers.tailrace]
name = "tailrace"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "TAILRACE_KEY"
"""
OPENCODE = {
    "model": f"tailrace/{NAME}",
    "small_model": f"tailrace/{NAME}",
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "tailrace": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"apiKey": "none"},
            "models": {NAME: {"tool_call": True, "reasoning": True, "limit": {"context": 400_000, "output": 4000}}},
        }
    },
}


@pytest.fixture(scope="session")
def packages() -> Path:
    return install_packages(HERE) / "node_modules" / ".bin"


@pytest.fixture(scope="session")
def cline() -> Path:
    """Cline, apart from the others: it brings 300 packages."""
    return install_packages(HERE / "cline") / "node_modules" / ".bin" / "cline"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text(SECRET + "\n")
    (folder / "b.png").write_bytes(PICTURE)
    return folder


@pytest.fixture
def model(agent: Server) -> Iterator[Server]:
    """The server. Its model has no script afterwards."""
    yield agent
    agent.post("/script", b"[]")


def script(server: Server, form: str, *turns_of_calls: list[tuple[str, dict[str, Any]]]) -> None:
    """Let the model think, make these calls, and end with the answer."""
    server.post(f"/format/{form}")
    turns: list[dict[str, Any]] = [{"calls": one} for one in turns_of_calls]
    turns[0]["thought"] = THOUGHT
    server.post("/script", json.dumps([*turns, {"text": ANSWER}]).encode())


def has_picture(form: str) -> bool:
    """Whether the model reads the picture. gpt-oss makes one call at a time, so it reads none."""
    return not form.startswith("harmony")


def read_prompts(server: Server) -> list[str]:
    with urllib.request.urlopen(f"{server.url}/prompts", timeout=30) as answer:
        return json.load(answer)


def run_agent(command: list[str | Path], project: Path, **variables: str) -> list[Any]:
    """Run an agent in the project, with a home of its own. Return the JSON lines that it prints."""
    home = project.parent / "home"
    home.mkdir(exist_ok=True)
    ran = subprocess.run(
        command,
        cwd=project,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "IS_SANDBOX": "1"} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("calls", FORMS)
def test_claude_code_completes_its_work(packages: Path, model: Server, project: Path, calls: str):
    reads = [("Read", {"file_path": str(project / name)}) for name in ("a.txt", "b.png")]
    script(model, calls, reads, [("Write", {"file_path": str(project / "out.py"), "content": LONG_FILE})])
    command = [packages / "claude", "-p", QUESTION, "--allowedTools", "Read", "Write", "--verbose"]
    told = run_agent(
        [*command, "--permission-mode", "acceptEdits", "--output-format", "stream-json"],
        project,
        ANTHROPIC_BASE_URL=model.url,
        ANTHROPIC_API_KEY="none",
        ANTHROPIC_MODEL=NAME,
        ANTHROPIC_SMALL_FAST_MODEL=NAME,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )
    parts = [part for one in told if one["type"] == "assistant" for part in one["message"]["content"]]
    assert (told[-1]["subtype"], told[-1]["result"].strip()) == ("success", ANSWER)
    assert [part["thinking"] for part in parts if part["type"] == "thinking"] == [THOUGHT]
    assert (project / "out.py").read_text() == LONG_FILE
    last = read_prompts(model)[-1]
    assert SECRET in last
    assert ("[image: left out" in last) == has_picture(calls)


@pytest.mark.parametrize("calls", FORMS)
def test_codex_completes_its_work(packages: Path, model: Server, project: Path, calls: str):
    home = project.parent / "codex"
    home.mkdir()
    (home / "config.toml").write_text(CODEX.format(name=NAME, url=model.url))
    write = "cat > out.py <<'END'\n" + LONG_FILE + "END"
    reads = [("exec_command", {"cmd": "cat a.txt"}), ("view_image", {"path": str(project / "b.png")})]
    script(model, calls, reads, [("exec_command", {"cmd": write})])
    command = [packages / "codex", "exec", "--json", "--skip-git-repo-check"]
    told = run_agent(
        [*command, "--dangerously-bypass-approvals-and-sandbox", QUESTION],
        project,
        CODEX_HOME=str(home),
        TAILRACE_KEY="none",
    )
    items = [one["item"] for one in told if one["type"] == "item.completed"]
    assert [one["text"].strip() for one in items if one["type"] == "agent_message"] == [ANSWER]
    assert [one["text"] for one in items if one["type"] == "reasoning"] == [THOUGHT]
    assert (project / "out.py").read_text() == LONG_FILE
    last = read_prompts(model)[-1]
    assert SECRET in last
    assert ("[image: left out" in last) == has_picture(calls)


@pytest.mark.parametrize("calls", FORMS)
def test_opencode_completes_its_work(packages: Path, model: Server, project: Path, calls: str):
    settings = json.loads(json.dumps(OPENCODE))
    settings["provider"]["tailrace"]["options"]["baseURL"] = model.v1
    (project / "opencode.json").write_text(json.dumps(settings))
    reads = [("read", {"filePath": str(project / name)}) for name in ("a.txt", "b.png")]
    script(model, calls, reads, [("write", {"filePath": str(project / "out.py"), "content": LONG_FILE})])
    told = run_agent(
        [packages / "opencode", "run", "--format", "json", QUESTION], project, OPENCODE_DISABLE_MODELS_FETCH="1"
    )
    assert [one["part"]["text"].strip() for one in told if one["type"] == "text"] == [ANSWER]
    assert (project / "out.py").read_text() == LONG_FILE
    assert SECRET in read_prompts(model)[-1]


@pytest.mark.parametrize("calls", FORMS)
def test_cline_completes_its_work(cline: Path, model: Server, project: Path, calls: str):
    run_agent([cline, "auth", "-p", "openai", "-k", "none", "-m", NAME, "-b", model.v1], project)
    reads = [("read_files", {"files": [{"path": str(project / name)}]}) for name in ("a.txt", "b.png")]
    script(model, calls, reads, [("editor", {"path": str(project / "out.py"), "new_text": LONG_FILE})])
    command = [cline, "--json", "-P", "openai-compatible", "-m", NAME, QUESTION]
    told = run_agent(command, project, CLINE_SESSION_BACKEND_MODE="local")  # else a daemon stays behind
    events = [one["event"] for one in told if one["type"] == "agent_event"]
    ends = [one for one in events if one["type"] == "content_end"]
    assert (told[-1]["finishReason"], told[-1]["text"].strip()) == ("completed", ANSWER)
    assert [one["reasoning"] for one in ends if one["contentType"] == "reasoning"] == [THOUGHT]
    assert (project / "out.py").read_text() == LONG_FILE
    last = read_prompts(model)[-1]
    assert SECRET in last
    assert ("[image: left out" in last) == has_picture(calls)
