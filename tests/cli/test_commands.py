"""The commands as a person calls them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file

from api.harness import make_tokenizer
from scripted_server.honest import HonestServer
from tailrace import __version__
from tailrace.cli import main
from tailrace.cli.local import PreparedModel
from tailrace.cli.serve import read_defaults
from tailrace.config import Config


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
        (["bench", "sampler"], "invalid choice: 'bench'"),
        (["dance"], "dance"),
    ],
)
def test_bad_words_are_answered_in_a_line_without_a_traceback(words, says):
    done = tailrace(*words)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serve", "--prot", "8001"], "tailrace serve: unrecognized arguments: --prot 8001 (did you mean --port?)"),
        (["serve", "--port", "many"], "tailrace serve: argument --port: invalid int value: 'many'"),
        (["serve", "--slow-readers", "cutt"], "(did you mean cut?)"),
        (["sreve"], "(did you mean serve?)"),
        (["serve", "--zzz"], "tailrace serve: unrecognized arguments: --zzz;"),
    ],
)
def test_errors_of_a_command_line_are_one_line(words, says, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_start_fails_in_one_line_if_the_chat_template_takes_too_much(tmp_path):
    make_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "chat_template.jinja").write_text("{{ lipsum(n=1000000000) }}")
    done = tailrace("serve", "--port", "0", "--model", str(tmp_path), "--template-cpu-s", "0.2")
    assert done.returncode == 2
    why = "the chat template 'default' can't be used: it takes more than 0.2 s of processor time"
    assert done.stderr == f"tailrace: {tmp_path}: {why}\n"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", "[]", "config.json should hold a JSON object, but holds a list"),
        ("tokenizer.json", '{"model"', "no usable tokenizer"),
        ("model.safetensors", "{" * 99, "model.safetensors is a message, not the file itself"),
    ],
)
def test_a_start_fails_in_one_line_if_a_file_is_damaged(tmp_path, name, content, says):
    make_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / name).write_text(content)
    done = tailrace("serve", "--port", "0", "--model", str(tmp_path))
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_error_of_the_machine_is_one_line(monkeypatch, capsys):
    def fail(args: object) -> int:
        raise OSError(28, "No space left on device", "/cache/model")

    monkeypatch.setattr("tailrace.cli.serve.run", fail)
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == "tailrace: OSError: [Errno 28] No space left on device: '/cache/model'\n"


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_bug_is_one_line_and_its_place_is_shown_on_demand(level, monkeypatch, capsys):
    def fail(args: object) -> int:
        raise KeyError("a bug\nin lines")

    monkeypatch.setenv("TAILRACE_LOG", level)
    monkeypatch.setattr("tailrace.cli.serve.run", fail)
    assert main(["serve"]) == 1
    *place, line = capsys.readouterr().err.splitlines()
    assert line == r"tailrace: KeyError: 'a bug\nin lines' (a bug; TAILRACE_LOG=debug shows where)"
    assert bool(place) == ("in fail" in "".join(place)) == (level == "debug")


def test_without_torch_a_command_says_what_it_needs():
    without = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; from tailrace.cli import main; "
    command = [sys.executable, "-c", without + "sys.exit(main(['serve']))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("tailrace: serve needs torch and numpy; ")
    assert done.stderr.count("\n") == 1


async def test_conform_is_the_command_of_tailrace_conform():
    async with HonestServer("any-model") as server:
        one, other = [
            await asyncio.to_thread(tailrace, "conform", server.url, "--only", only)
            for only in ("streams.done-last", "errors.unknown-model")
        ]
    assert one.returncode == 0, one.stderr
    assert "1 holds" in one.stdout
    assert other.returncode == 1, other.stderr
    assert "errors.unknown-model: silently ignored" in other.stdout


def test_conform_says_misuse_in_a_line():
    done = tailrace("conform", "http://x/v1", "--concurrency", "0")
    assert done.returncode == 2
    assert done.stderr == "tailrace: concurrency must be at least 1, got 0\n"


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


@pytest.mark.parametrize("used", [True, False])
def test_the_log_says_which_sampling_defaults_are_the_models(tmp_path: Path, caplog, used: bool):
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "pad_token_id": 0}')
    model = PreparedModel(Config(), tmp_path, "tiny", cast(Any, None), Config().model)
    with caplog.at_level("INFO"):
        assert read_defaults(model, used) == ({"temperature": 0.6, "top_k": 20} if used else {})
    said = "tiny: a request that leaves these fields out gets the model's defaults: temperature 0.6, top_k 20"
    assert caplog.messages == [said] * used
