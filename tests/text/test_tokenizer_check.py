"""Hostile files of tokenizers are one sentence: in this process what fails at once, in the child what takes long."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tailrace.base import limited_child
from tailrace.base.python_command import make_script_command
from tailrace.errors import EngineError, ModelLoadError
from tailrace.text import tokenizer_check
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.tokenizer_check import check_tokenizer

DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
LETTERS = {char: id for id, char in enumerate("abcxyz!Ġ")}


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def nest(depth: int) -> str:
    return '{"type":"Sequence","pretokenizers":[' * depth + json.dumps(split("a")) + "]}" * depth


def write(folder: Path, model: dict[str, Any] | None = None, **parts: Any) -> Path:
    """Write a tokenizer.json of BPE without merges. A part that is a text is written as it is."""
    plain = {"type": "BPE", "vocab": LETTERS, "merges": []} | (model or {})
    parts = {"added_tokens": [], "decoder": DECODER, "model": plain} | parts
    texts = [
        f"{json.dumps(name)}:{part if isinstance(part, str) else json.dumps(part)}" for name, part in parts.items()
    ]
    (folder / "tokenizer.json").write_text("{" + ",".join(texts) + "}")
    return folder


def replace(regex: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": "b"}


AT_LOAD: dict[str, tuple[dict[str, Any], str]] = {
    "deep sequence": ({"pre_tokenizer": nest(500)}, "recursion limit exceeded"),
    "bad regex": ({"pre_tokenizer": split("(a+")}, "unmatched parenthesis"),
    "deep regex": ({"pre_tokenizer": split("(" * 9000 + "a" + ")" * 9000)}, "parse depth limit over"),
    "id beyond u32": ({"model": {"vocab": {"a": 2**33}}}, "expected u32"),
    "huge id": (
        {"model": {"vocab": {"a": 2**32 - 1}}},
        "has the id 4294967295, and 16777215 is",
    ),
    "foreign merge": ({"model": {"merges": [["a", "q"]]}}, "out of vocabulary"),
    "wrong type": ({"added_tokens": {"a": 1}}, "expected a sequence"),
    "no object": ({"normalizer": "[]"}, "no usable tokenizer"),
}


@pytest.mark.parametrize("case", AT_LOAD)
def test_damaged_file_is_one_sentence_at_load(case: str, tmp_path: Path):
    parts, words = AT_LOAD[case]
    with pytest.raises(ModelLoadError, match=words) as caught:
        Tokenizer.load(write(tmp_path, **parts))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


# Regexes that are slow at runs of x. Nothing else in the file is.
SLOW: dict[str, tuple[dict[str, Any], str]] = {
    "exponential": ({"pre_tokenizer": split("(x+x+)+y")}, "can't encode this text: PanicException: Onig"),
    "exponential normalizer": ({"normalizer": replace("(x+x+)+y")}, "can't encode this text: PanicException: Onig"),
    "quadratic": ({"pre_tokenizer": split("x*x*y")}, "to encode 'x' 3000 times, takes more than 1 s of processor time"),
}


@pytest.mark.parametrize("case", SLOW)
def test_slow_regex_is_one_sentence_at_the_start(case: str, tmp_path: Path):
    parts, words = SLOW[case]
    with pytest.raises(ModelLoadError, match=words):
        check_tokenizer(write(tmp_path, **parts), seconds=1 if case == "quadratic" else tokenizer_check.CPU_S)


ENDS = {  # what ends the process → what the sentence says
    "os.kill(os.getpid(), signal.SIGKILL)": "ended from outside (SIGKILL); the machine may lack memory",
    "os.kill(os.getpid(), signal.SIGTERM)": "ended from outside (SIGTERM)",
    "os.write(2, b'memory allocation of 8 bytes failed'); os.abort()": "takes too much memory",
    "os.abort()": "ends the process (signal 6)",
    "os.kill(os.getpid(), signal.SIGXCPU)": "takes more than 5 s of processor time",
}


@pytest.mark.parametrize("code", ENDS)
def test_the_file_is_blamed_for_what_it_does_alone(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    command = make_script_command(f"import os, signal; {code}")
    monkeypatch.setattr(tokenizer_check, "make_python_command", lambda *arguments: command)
    with pytest.raises(ModelLoadError) as caught:
        check_tokenizer(write(tmp_path), seconds=5)
    assert ENDS[code] in str(caught.value)
    assert ("processor time" in str(caught.value)) == ("SIGXCPU" in code)


def test_a_machine_that_is_too_busy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    command = make_script_command("import time; time.sleep(600)")
    monkeypatch.setattr(tokenizer_check, "make_python_command", lambda *arguments: command)
    monkeypatch.setattr(limited_child, "WALL_S", 0.1)
    with pytest.raises(ModelLoadError, match="the tokenizer can't be checked: the machine is too busy"):
        check_tokenizer(write(tmp_path))


def test_the_limit_of_time_is_the_files_even_where_its_signal_was_ignored(tmp_path: Path):
    """The signal's default action and its mask are inherited."""
    folder = write(tmp_path, pre_tokenizer=split("x*x*y"))
    code = """
import signal, sys
from pathlib import Path
from tailrace.text.tokenizer_check import check_tokenizer
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGXCPU])
try:
    check_tokenizer(Path(sys.argv[1]), seconds=1)
except Exception as error:
    print(error)
"""
    done = subprocess.run(make_script_command(code, str(folder)), capture_output=True, text=True, check=True)
    assert "takes more than 1 s of processor time" in done.stdout


def test_usual_file_passes(tmp_path: Path):
    check_tokenizer(write(tmp_path, pre_tokenizer=split(r"\\s+|\\p{L}+")))


def write_gpt2(folder: Path) -> Path:
    """Write a tokenizer that transformers reads: a vocabulary and merges, without tokenizer.json."""
    letters = ["<|endoftext|>", *"abcxyz", "Ġ", "ab"]
    (folder / "vocab.json").write_text(json.dumps({text: id for id, text in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    return folder


def test_files_that_transformers_reads_are_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_gpt2(tmp_path)
    check_tokenizer(folder)
    assert Tokenizer.load(folder).encode("ab", add_special_tokens=False) == [8]
    monkeypatch.setattr(tokenizer_check, "IMPORT_S", 0)  # The limit is the child's: the import alone exceeds a second.
    with pytest.raises(ModelLoadError, match="takes more than 1 s of processor time"):
        check_tokenizer(folder, seconds=1)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"vocab.json": "[" * 100_000}, "no usable tokenizer"),
        ({"vocab.json": '{"a": -1}'}, "no usable tokenizer"),
        ({"vocab.json": "{}", "merges.txt": ""}, "makes no tokens of any text"),
        ({"merges.txt": "a b c d\n"}, "no usable tokenizer"),
        ({"tokenizer_config.json": '{"tokenizer_class": "GPT2Tokenizer", "model_max_length": {}}'}, ""),
        ({"vocab.json": None, "tokenizer.model": "no model"}, "it has only tokenizer.model"),
    ],
    ids=str,
)
def test_damaged_files_that_transformers_reads_are_one_sentence(files, words, tmp_path: Path):
    folder = write_gpt2(tmp_path)
    for name, text in files.items():
        (folder / name).unlink() if text is None else (folder / name).write_text(text)
    if words:
        with pytest.raises(ModelLoadError, match=words) as caught:
            check_tokenizer(folder)
        assert "\n" not in str(caught.value)
    else:
        check_tokenizer(folder)


def test_panic_at_a_request_is_that_requests_error(tmp_path: Path):
    tokenizer = Tokenizer.load(write(tmp_path, pre_tokenizer=split("(x+x+)+y")))
    with pytest.raises(EngineError, match="can't encode this text: PanicException: Onig"):
        tokenizer.encode("x" * 100)
    assert tokenizer.encode("xyz") == [LETTERS[char] for char in "xyz"]


@pytest.mark.parametrize("vocab", [{}, {"zzz": 0}], ids=["empty", "foreign"])
def test_a_tokenizer_that_makes_no_tokens_is_one_sentence(vocab: dict[str, int], tmp_path: Path):
    """Otherwise the server starts, and each chat is a 400."""
    marks = [{"id": 1, "content": "<s>", "special": True} | dict.fromkeys(FLAGS, False)]
    with pytest.raises(ModelLoadError, match=r"makes no tokens of any text: its vocabulary is empty$"):
        check_tokenizer(write(tmp_path, model={"vocab": vocab}, added_tokens=marks))
