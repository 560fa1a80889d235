"""smolagents, llama-index and Haystack work through conversations: a thought, two calls at once, results, a third call,
an answer; and structured output. Their packages are in an environment of their own; PYTHON_AGENTS names its Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import NAME, Server

HERE = Path(__file__).resolve().parent / "python_agents"
FORMS = ("hermes", "qwen3_coder")
ANSWER = "All are sunny."
RESULTS = ["sunny in Paris", "sunny in Oslo", "sunny in Rome"]
REPORT = {"city": "Paris", "weather": "sunny"}
OFFLINE = {"HAYSTACK_TELEMETRY_ENABLED": "False", "PYTHONUTF8": "1"}


def run(name: str, server: Server, calls: str, tmp_path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Run the script of a client. Return each outcome by what was done and how."""
    python = os.environ.get("PYTHON_AGENTS") or HERE.parents[2] / ".venv-agents" / "bin" / "python"
    assert Path(python).exists(), f"{python} is missing; run make test-clients, or name a Python in PYTHON_AGENTS"
    server.post(f"/format/{calls}")
    ran = subprocess.run(
        [python, HERE / f"run_{name}.py", server.url, NAME],
        cwd=tmp_path,
        env=os.environ | OFFLINE | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    server.post("/script", b"[]")
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"what"')]
    assert not [one for one in told if "error" in one], told
    return {(one["what"], one["how"]): one for one in told}


@pytest.mark.parametrize("calls", FORMS)
def test_smolagents_completes_its_work(agent: Server, calls: str, tmp_path: Path):
    told = run("smolagents", agent, calls, tmp_path)
    for how in ("whole", "streamed"):
        for what, steps in (("tools", 3), ("code", 2), ("structured", 2)):
            one = told[what, how]
            assert (one["text"], one["steps"]) == (ANSWER, steps), one
            wanted = RESULTS if what == "tools" else RESULTS[:2]
            assert all(result in one["seen"] for result in wanted), one


@pytest.mark.parametrize("calls", FORMS)
def test_llama_index_completes_its_work(agent: Server, calls: str, tmp_path: Path):
    told = run("llama_index", agent, calls, tmp_path)
    for how in ("whole", "streamed"):
        work = told["tools", how]
        assert (work["text"], [result for _, result in work["called"]]) == (ANSWER, RESULTS)
        assert told["plain", how]["text"] == "Hello"
        assert told["object", how]["object"] == REPORT
    assert (told["tools", "streamed"]["deltas"], told["tools", "streamed"]["thought"]) == (ANSWER, "Both, at once.")


@pytest.mark.parametrize("calls", FORMS)
def test_haystack_completes_its_work(agent: Server, calls: str, tmp_path: Path):
    told = run("haystack", agent, calls, tmp_path)
    for how in ("whole", "streamed"):
        work = told["tools", how]
        assert (work["text"], work["results"]) == (ANSWER, RESULTS)
        assert work["called"] == [["Paris", "Oslo"], ["Rome"]]
        assert told["plain", how]["text"] == "Hello"
        assert told["object", how]["object"] == REPORT
    assert told["tools", "streamed"]["deltas"] == ANSWER
