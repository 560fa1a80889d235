"""Vercel's AI SDK: its providers check each answer against schemas that are stricter than the official clients' types.
Skipped where there is no npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import NAME, Server, install_packages

HERE = Path(__file__).resolve().parent / "ai_sdk"
VERSIONS = ("ai_sdk_6", "ai_sdk_7")  # the last one for Node 20, and the newest
APIS = ("messages", "responses", "chat", "compatible")
TALKS = ("plain", "cut", "called", "thought", "steps")
OBJECTS = ("object", "output")


@pytest.fixture(scope="session", params=VERSIONS)
def sdk(request: pytest.FixtureRequest) -> Path:
    """A folder with the packages and the scripts."""
    folder = install_packages(HERE / request.param)
    for script in HERE.glob("*.mjs"):
        shutil.copy(script, folder)
    return folder


def run_script(sdk: Path, name: str, server: Server) -> list[dict[str, Any]]:
    """Run a script. Return the JSON lines that it prints."""
    server.post("/format/hermes")
    ran = subprocess.run(["node", name, server.url, NAME], cwd=sdk, capture_output=True, text=True, timeout=1800)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def test_every_provider_completes_its_conversations(sdk: Path, agent: Server):
    told = run_script(sdk, "agent.mjs", agent)
    assert not [one for one in told if "error" in one]
    outcomes = {(one["api"], one["how"], one["what"]): one for one in told}
    assert len(outcomes) == len(APIS) * 2 * len(TALKS + OBJECTS)
    for api in APIS:
        for how in ("whole", "streamed"):
            plain, cut, called, thought, steps = (outcomes[api, how, what] for what in TALKS)
            assert (plain["text"], plain["finishReason"]) == ("Hello", "stop")
            assert (cut["text"], cut["finishReason"]) == ("He", "length")
            for one in (called, thought):
                assert (one["text"], one["called"], one["finishReason"]) == (
                    "They say: sunny in Paris",
                    [["Paris"], []],
                    "stop",
                )
            assert (steps["text"], steps["called"]) == ("All are sunny.", [["Paris", "Oslo"], ["Rome"], []])
            assert steps["streamed"].endswith(steps["text"])
            if api in ("messages", "compatible"):  # the others do not read thoughts
                assert (thought["thought"], steps["thought"]) == ("hm", "Both, at once.")
            for what in OBJECTS:
                assert outcomes[api, how, what]["object"] == {"city": "Paris", "weather": "sunny"}


def test_a_failed_answer_reaches_the_user_as_an_error(sdk: Path, failing_agent: Server):
    outcomes = {(one["api"], one["how"], one["what"]): one for one in run_script(sdk, "failures.mjs", failing_agent)}
    assert len(outcomes) == len(APIS) * 2 * 3
    for (api, how, what), one in outcomes.items():
        if what == "limit":
            assert (one["text"], one["finishReason"], one["errors"]) == ("A long", "length", []), (api, how)
        else:
            assert "the scripted model fails here" in " ".join(one["errors"]), (api, how, what)
            assert one["text"] == ("Half an answer" if (what, how) == ("late", "streamed") else ""), (api, how, what)
            assert one.get("finishReason", "error") == "error", (api, how, what)
