"""The Dockerfile, read without Docker: downloads stay in the volume, and `docker stop` lets the server end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

from tailrace.api.serve import LAST_WORDS_S
from tailrace.base.config_sources import load_config

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
STOP_S = 10  # what `docker stop` waits before it kills


def lines(instruction: str) -> list[str]:
    """What the instruction's lines say, in the last stage."""
    last = DOCKERFILE.rpartition("\nFROM ")[2].replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.*)$", last, re.MULTILINE)


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for line in lines("ENV") for pair in line.split())


def test_what_is_copied_is_not_ignored():
    kept = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copied = [name for line in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()]
    assert set(copied) == set(kept)
    assert all((ROOT / name).exists() for name in copied)
    [line] = re.findall(r"^RUN pip wheel .*--wheel-dir /wheels (.*)$", DOCKERFILE, re.MULTILINE)
    assert all((ROOT / folder / "pyproject.toml").is_file() for folder in line.split())


def test_models_and_downloads_lie_in_the_volume():
    (volume,) = lines("VOLUME")
    env = environment()
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE_", "XDG_"))}
    found = subprocess.run([sys.executable, "-c", code], env=clean | env, capture_output=True, text=True, check=True)
    for path in (env["TAILRACE_MODEL_CACHE_DIR"], found.stdout.strip()):
        assert PurePosixPath(volume) in (PurePosixPath(path), *PurePosixPath(path).parents)
    assert f"mkdir {volume} && chown tailrace {volume}" in DOCKERFILE  # by the user that the server runs as
    assert lines("USER") == ["tailrace"]


def test_server_ends_before_docker_kills_it():
    drain_s = load_config({}, env=environment()).server.drain_timeout_s
    assert 0 < drain_s + LAST_WORDS_S < STOP_S
    longer = re.search(r"--stop-timeout (\d+) -e TAILRACE_SERVER_DRAIN_TIMEOUT_S=(\d+)", DOCKERFILE)
    assert longer is not None
    assert int(longer[2]) + LAST_WORDS_S < int(longer[1])
    assert longer[0] in (ROOT / "docs" / "api" / "operations.md").read_text()
    assert not lines("STOPSIGNAL")  # SIGTERM, which the server drains at
    assert lines("ENTRYPOINT") == ['["tailrace"]']  # without a shell in between, which would keep the signal
