"""Schemathesis by its command: thousands of requests made from /openapi.json, and every answer held against it."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from .conftest import Server

INFERENCE = r"^/(v1/(completions|chat/completions|responses|messages)|inference/v1/generate)$"
CONFORMANCE = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture
def scripted(serve):
    """Quick logits, and no request that takes long."""
    with serve("--model", "scripted:next", "--max-request-s", "0.3") as running:
        yield running


def attack(server: Server, folder: Path, *flags: str, hooks: str = "") -> None:
    """One run of at most a minute and a half."""
    known = os.environ | {"SCHEMATHESIS_HOOKS": hooks, "PYTHONPATH": str(Path(__file__).parent)}
    command = [
        Path(sys.executable).parent / "schemathesis",
        "run",
        f"{server.url}/openapi.json",
        "--max-examples",
        "200",
        "--max-time",
        "90",
        "--request-timeout",
        "30",
        "--continue-on-failure",
        "--seed",
        "1",
        *flags,
    ]
    subprocess.run(command, check=True, timeout=300, cwd=folder, env=known)


def test_whatever_comes_is_answered_as_documented(scripted, tmp_path):
    """Values of the right and of wrong types: those that the schema forbids are refused, and none is a 500."""
    attack(scripted, tmp_path, "--checks", f"{CONFORMANCE},negative_data_rejection")


def test_methods(scripted, tmp_path):
    """What a path does not take is a 405 that says what it takes."""
    attack(scripted, tmp_path, "--phases", "coverage", "--checks", "unsupported_method,allow_header_conformance")


def test_what_reaches_the_engine_is_answered_as_documented(scripted, tmp_path):
    """The paths that run the model: among all paths, they would get a tenth of the time."""
    flags = ("--mode", "positive", "--checks", CONFORMANCE, "--include-path-regex", INFERENCE)
    attack(scripted, tmp_path, *flags, hooks="narrow")
    with urllib.request.urlopen(f"{scripted.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    finished = sum(float(line.split()[-1]) for line in lines if line.startswith("tailrace_request_finished_total"))
    assert finished > 20
