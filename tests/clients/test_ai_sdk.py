"""Vercel's AI SDK: its providers check each answer against schemas that are stricter than the official clients' types.
Skipped where there is no npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import NAME, Server, install_packages

HERE = Path(__file__).resolve().parent / "ai_sdk"
VERSIONS = ("ai_sdk_6", "ai_sdk_7")  # the last one for Node 20, and the newest
APIS = ("messages", "responses", "chat", "compatible")
TALKS = ("plain", "cut", "called", "thought", "steps")
OBJECTS = ("object", "output")


@pytest.fixture(scope="session", params=VERSIONS)
def sdk(request: pytest.FixtureRequest) -> Path:
    """A folder with the packages and the script."""
    folder = install_packages(HERE / request.param)
    shutil.copy(HERE / "agent.mjs", folder)
    return folder


def test_every_provider_completes_its_conversations(sdk: Path, agent: Server):
    agent.post("/format/hermes")
    ran = subprocess.run(["node", "agent.mjs", agent.url, NAME], cwd=sdk, capture_output=True, text=True, timeout=1800)
    assert ran.returncode == 0, ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
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
