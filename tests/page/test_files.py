"""The page's files: nothing from outside, nothing inline, and what others wrote is as it was published."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "src" / "tailrace" / "page"
VENDOR = PAGE / "vendor"
OURS = sorted([*PAGE.glob("*.*"), *(PAGE / "js").glob("*.js")])


def test_what_others_wrote_is_named_and_untouched():
    listed = {
        name: tag
        for package in json.loads((VENDOR / "versions.json").read_text())
        for name, tag in package["files"].items()
    }
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del there["versions.json"]
    assert there == listed
    for package in json.loads((VENDOR / "versions.json").read_text()):
        assert re.fullmatch(r"\d+\.\d+\.\d+", package["version"])
        assert any(name.endswith(".LICENSE") for name in package["files"])


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_nothing_from_outside_and_nothing_inline(path: Path):
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?:src|href|url\(|import|from)\s*[=(]?\s*[\"']?(?:https?:)?//", text)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|\beval\(", text
    )
    if path.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_files_and_lines_are_short(path: Path):
    lines = path.read_text().split("\n")
    assert len(lines) <= 300
    assert [line for line in lines if len(line) > 120] == []
