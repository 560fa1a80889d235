"""The commands as a person calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace import __version__
from tailrace.cli import main


def tailrace(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailrace.cli", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300, check=False)


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serve", "--model", "/nowhere/model.gguf"], "/nowhere/model.gguf"),
        (["serve", "--port", "many"], "port"),
        (["generate", "--temperature", "-1", "x"], "temperature"),
        (["bench", "nothing"], "nothing"),
        (["dance"], "dance"),
    ],
)
def test_bad_words_are_answered_in_a_line_without_a_traceback(words, says):
    done = tailrace(*words)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.model
def test_doctor_finds_everything_in_place(model_folder):
    done = tailrace("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in (__version__, "torch", "argmax", "SmolLM2"):
        assert word in done.stdout


def flags_of(model_folder: Path) -> list[str]:
    return ["--model", str(model_folder), "--num-blocks", "500", "--temperature", "0", "--max-tokens", "12"]


@pytest.mark.model
@pytest.mark.long
def test_generate(model_folder):
    done = tailrace("generate", *flags_of(model_folder), "--json", "The capital of France is")
    assert done.returncode == 0, done.stderr
    assert "Paris" in json.dumps([json.loads(line) for line in done.stdout.splitlines()])


@pytest.mark.long
@pytest.mark.model
def test_chat(model_folder):
    talk = tailrace("chat", *flags_of(model_folder), stdin="What is the capital of France?\n/quit\n")
    assert talk.returncode == 0, talk.stderr
    assert "Paris" in talk.stdout
