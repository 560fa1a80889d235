"""The command, the pytest plug-in and an interrupted run, without torch and without tailrace."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tailrace_conform
from scripted_server.honest import HonestServer
from tailrace_conform.errors import ConformError
from tailrace_conform.laws import FAMILIES, all_laws
from tailrace_conform.runner import chosen

COMMAND = [sys.executable, "-m", "tailrace_conform"]
# refuses every module that is neither Python's nor of the declared dependencies, then runs the command
BLOCKED = """
import sys
of_httpx = {"httpx", "httpcore", "h11", "anyio", "certifi", "idna", "sniffio", "typing_extensions"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | of_httpx | {"tailrace_conform"}:
            raise ModuleNotFoundError(f"{name} is refused", name=name)
sys.meta_path.insert(0, Refuse())
from tailrace_conform.cli import main
sys.exit(main(sys.argv[1:]))
"""


async def called(command: Sequence[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run beside the server, which is in this process."""
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=300, check=False, **kwargs
    )


async def test_a_run_needs_httpx_alone(tmp_path: Path):
    files = {kind: tmp_path / f"report.{kind}" for kind in ("html", "json", "junit")}
    flags = [word for kind, file in files.items() for word in (f"--{kind}", str(file))]
    only = "streams.done-last,errors.unknown-model"
    async with HonestServer() as server:
        done = await called([sys.executable, "-c", BLOCKED, server.url, "--only", only, *flags])
    assert done.returncode == 0, done.stderr
    assert "2 holds" in done.stdout
    assert [one["id"] for one in json.loads(files["json"].read_text())["laws"]] == only.split(",")
    assert all(file.stat().st_size > 100 for file in files.values())


async def test_the_version_is_the_package_s():
    done = await called([*COMMAND, "--version"])
    assert done.stdout == f"tailrace-conform {tailrace_conform.__version__}\n"


async def test_a_finding_is_the_exit_code():
    async with HonestServer("any-model") as server:
        done = await called([*COMMAND, server.url, "--only", "errors.unknown-model"])
        left_out = await called(
            [*COMMAND, server.url, "--only", "errors.unknown-model,streams.done-last", "--skip", "errors"]
        )
    assert done.returncode == 1
    assert "errors.unknown-model: silently ignored" in done.stdout
    assert left_out.returncode == 0


async def test_an_interrupted_run_has_a_report(tmp_path: Path):
    file = tmp_path / "report.json"
    async with HonestServer("bad-json-hangs") as server:  # so that the run waits there
        command = [*COMMAND, server.url, "--only", "streams.done-last,errors.bad-json", "--json", str(file)]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        )
        assert process.stdout is not None
        assert b"streams.done-last" in await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 130, err
    assert b"interrupted, 1 law left out" in out
    assert json.loads(file.read_text())["left_out"] == ["errors.bad-json"]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "base URL must be as http://host:8000/v1, got none"),
        (["http://127.0.0.1:99999/v1"], "base URL must be as"),
        (["http://"], "base URL must be as"),
        (["http://x/v1", "--timeout", "nan"], "timeout must be a number of seconds above 0"),
        (["http://x/v1", "--json", "/nowhere/report.json"], "--json: /nowhere/report.json can't be written"),
        (["http://127.0.0.1:9/v1"], "lists no model"),
        (["http://x/v1", "--only", "stops", "--skip", "stops"], "what is skipped (stops) leaves no law"),
        (["http://x/v1", "--only", "sampling.nothing"], 'no law and no family is called "sampling.nothing"'),
        (["http://x/v1", "--concurrency", "0"], "concurrency must be at least 1"),
    ],
)
async def test_misuse_is_said_in_a_line(arguments: list[str], said: str):
    done = await called([*COMMAND, *arguments])
    assert done.returncode == 2
    assert done.stderr.startswith("tailrace-conform: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


async def test_a_server_that_refuses_everything_is_misuse_not_success():
    """A model that is not there, or a wrong key: every law would be "not offered", and the exit code 0."""
    async with HonestServer() as server:
        done = await called([*COMMAND, server.url, "--model", "other", "--only", "streams.done-last"])
    assert done.returncode == 2
    assert 'answers a plain request to "other": status 404: "model: there is no other"' in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


async def test_a_verdict_is_written_once():
    async with HonestServer() as server:
        done = await called([*COMMAND, server.url, "--only", "streams.done-last"])
    assert (done.stdout + done.stderr).count("streams.done-last") == 1


def test_laws_have_ids_that_are_their_files():
    laws = all_laws()
    assert len({law.id for law in laws}) == len(laws) > 40
    assert {law.family for law in laws} <= set(FAMILIES)
    for law in laws:
        family, _, name = law.id.partition(".")
        assert law.check.__module__ == f"tailrace_conform.laws.{family}.{name.replace('-', '_')}"
        assert all(text.strip() for text in (law.sentence, law.why, law.method, law.violation))


def test_laws_are_chosen_by_id_and_family():
    ids = [law.id for law in chosen(all_laws(), ["errors", "stops.cut"], ["errors.no-5xx"])]
    assert "stops.cut" in ids
    assert "errors.bad-json" in ids
    assert "errors.no-5xx" not in ids
    assert "stops.several" not in ids
    with pytest.raises(ConformError, match="no law"):
        chosen(all_laws(), skip=["errors.nothing"])


PLUG_IN = [sys.executable, "-m", "pytest", "-p", "tailrace_conform.pytest_plugin", "-p", "no:cacheprovider", "-v"]
ALONE = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.mark.parametrize(
    "flags", [["--conform-url=nowhere"], ["--conform-url=http://x/v1", "--conform-only=sampling.nothing"]]
)
async def test_the_plug_in_says_misuse_in_a_line(tmp_path: Path, flags: list[str]):
    done = await called([*PLUG_IN, *flags], cwd=tmp_path, env=ALONE)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: " in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


async def test_with_the_plug_in_a_server_that_can_t_be_judged_fails_each_law_and_says_why(tmp_path: Path):
    flags = ["--conform-url=http://127.0.0.1:9/v1", "--conform-only=stops"]
    done = await called([*PLUG_IN, *flags], cwd=tmp_path, env=ALONE)
    assert done.returncode == 1
    assert f"{len(chosen(all_laws(), ['stops']))} failed" in done.stdout
    assert "lists no model (nobody answers there)" in done.stdout
    assert "Traceback" not in done.stdout


async def test_the_plug_in_adds_a_test_per_law(tmp_path: Path):
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    flags = [
        "--conform-only",
        "errors.unknown-model,errors.unknown-path,streams.done-last",
        "--conform-budget",
        "quick",
    ]
    async with HonestServer("any-model") as server:
        done = await called([*PLUG_IN, "--conform-url", server.url, *flags], cwd=tmp_path, env=ALONE)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 3 passed" in done.stdout
    assert "errors.unknown-model: silently ignored" in done.stdout
    without = await called(PLUG_IN, cwd=tmp_path, env=ALONE)
    assert "1 passed" in without.stdout
