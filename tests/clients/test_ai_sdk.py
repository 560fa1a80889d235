"""Vercel's AI SDK: its providers check each answer against schemas that are stricter than the official clients' types.
Skipped where there is no npm."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from .conftest import NAME, Server

HERE = Path(__file__).resolve().parent / "ai_sdk"
APIS = ("messages", "responses", "chat", "compatible")


@pytest.fixture(scope="session")
def sdk() -> Path:
    """A folder with the packages and the script."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    manifest = (HERE / "package.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace" / "clients"
    folder = cache / f"ai-sdk-{hashlib.sha256(manifest).hexdigest()[:12]}"
    if not (folder / ".done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_bytes(manifest)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True, timeout=600)
        (folder / ".done").touch()
    shutil.copy(HERE / "agent.mjs", folder)
    return folder


def test_every_provider_completes_its_conversations(sdk, agent: Server):
    with urllib.request.urlopen(urllib.request.Request(f"{agent.url}/format/hermes", method="POST"), timeout=30):
        pass
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
