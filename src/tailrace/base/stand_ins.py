"""Detects what replaces a model's file: a Git LFS pointer, a saved error page, a download that broke off, or no file at
all (a FIFO, which nobody may ever write to, a device, a folder). This module does not know what the files should
hold."""

from __future__ import annotations

import os
import re
import stat
import zipfile
from pathlib import Path

from tailrace.errors import ModelLoadError

KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
KINDS |= {stat.S_IFDIR: "a folder"}
HEAD = 4096  # bytes that are read
TEXTS = (".jinja", ".txt", ".py", ".toml")  # these may be empty, or hold any text
POINTERS = {
    b"version https://git-lfs.github.com/spec/": "a Git LFS pointer, not the file itself; run git lfs pull",
    b"version https://hawser.github.com/spec/": "a Git LFS pointer, not the file itself; run git lfs pull",
    b"/annex/objects/": "a git-annex pointer, not the file itself; run git annex get",
}
PAGE = re.compile(rb"\s*(<!--.*?-->\s*)*<(!doctype html|html|head|body|\?xml|error)\b", re.IGNORECASE | re.DOTALL)
SENTENCE = 10  # the fewest characters of a message
MESSAGE = re.compile(r'{"error"|(?!null|true|false)[A-Za-z]')  # instead of JSON
ZIP = b"PK\x03\x04"


def refuse_stand_in(path: Path) -> None:
    """Raise ModelLoadError if something else replaces a model's file. A file that is missing or can't be read
    passes."""
    try:
        if kind := KINDS.get(stat.S_IFMT(os.stat(path).st_mode)):
            raise ModelLoadError(f"{path} is {kind}, not a file")
        with path.open("rb") as file:
            head = file.read(HEAD)
        found = name_stand_in(path, head)
    except (OSError, ValueError):  # a name with a null byte
        return
    if found:
        raise ModelLoadError(f"{path} is {found}")


def name_stand_in(path: Path, head: bytes) -> str | None:
    """Return what the file is and what to do, or None. head: its first bytes."""
    for beginning, words in POINTERS.items():
        if head.startswith(beginning):
            return words
    if PAGE.match(head):
        return "a web page, perhaps of an error or a login, not the file itself; download it again"
    if path.suffix in TEXTS:
        return None
    if not head.strip():
        return "empty; download it again"
    if head.startswith(ZIP) and not zipfile.is_zipfile(path):
        return "cut short; download it again"
    return name_message(path, head)


def name_message(path: Path, head: bytes) -> str | None:
    """Return words for a server's message in plain text or JSON, or None."""
    if len(head) == HEAD or not (head.isascii() and head.decode("ascii").replace("\n", " ").strip().isprintable()):
        return None
    text = " ".join(head.decode("ascii").split())
    if len(text) < SENTENCE or (path.suffix == ".json" and not MESSAGE.match(text)):
        return None
    return f"a message, not the file itself: {text:.80}; download it again"
