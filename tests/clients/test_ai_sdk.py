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
APIS = ("messages", "responses", "chat", "compatible")


@pytest.fixture(scope="session")
def sdk() -> Path:
    """A folder with the packages and the script."""
    folder = install_packages(HERE)
    shutil.copy(HERE / "agent.mjs", folder)
    return folder


def test_every_provider_completes_its_conversations(sdk, agent: Server):
    agent.post("/format/hermes")
    ran = subprocess.run(["node", "agent.mjs", agent.url, NAME], cwd=sdk, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert not [one for one in told if "error" in one]
    for api in APIS:
        for how in ("whole", "streamed"):
            plain, cut, called, thought = (one for one in told if (one["api"], one["how"]) == (api, how))
            assert (plain["text"], plain["finishReason"]) == ("Hello", "stop")
            assert (cut["text"], cut["finishReason"]) == ("He", "length")
            for one in (called, thought):
                assert (one["text"], one["steps"], one["finishReason"]) == ("They say: sunny in Paris", 2, "stop")
            shown = "hm" if api in ("messages", "compatible") else thought["thought"]
            assert thought["thought"] == shown
