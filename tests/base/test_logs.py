"""A line of the log is one line, whatever names it quotes."""

from __future__ import annotations

import logging

import pytest

from tailrace import cli
from tailrace.base.logs import LineFormatter
from tailrace.errors import ModelLoadError, escape_controls
from tailrace.models.progress import Progress

NAME = "x\nERROR tailrace: fake\x1b[31m\r\u2028\udc80 é 字"
LINE = r"x\nERROR tailrace: fake\u001b[31m\r\u2028\udc80 é 字"


def test_line_ends_and_terminal_codes_are_escaped():
    assert escape_controls(NAME) == LINE
    assert escape_controls("plain é 字") == "plain é 字"


def test_a_message_is_one_line_and_a_traceback_follows():
    formatter = LineFormatter("%(levelname)s %(name)s: %(message)s")
    record = logging.LogRecord("a", logging.ERROR, "", 0, "tensor %s", (NAME,), None)
    assert formatter.format(record) == f"ERROR a: tensor {LINE}"
    record.exc_info = (ValueError, ValueError("v"), None)
    record.stack_info = "a stack"
    assert formatter.format(record).splitlines() == [f"ERROR a: tensor {LINE}", "ValueError: v", "a stack"]


def test_a_failed_start_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fail(words: object) -> None:
        raise ModelLoadError(NAME)

    monkeypatch.setattr(cli, "make_parser", fail)
    assert cli.main(["serve"]) == 2
    assert capsys.readouterr().err == f"tailrace: {LINE}\n"


def test_a_stage_is_one_line(capsys: pytest.CaptureFixture[str]):
    with Progress() as progress:
        progress.start_stage(NAME)
    assert capsys.readouterr().err == f"tailrace: {LINE}\n"
