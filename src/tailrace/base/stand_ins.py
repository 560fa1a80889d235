"""Detects what replaces a model's file: a Git LFS pointer, a saved error page, a download that broke off, or no file at
all (a FIFO, which nobody may ever write to, a device, a folder). This module does not know what the files should
hold."""

from __future__ import annotations

import os
import re
import stat
import zipfile
from pathlib import Path
from typing import IO

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


def open_file(path: Path) -> IO[bytes]:
    """Open a file. Wait for nobody, even if a FIFO takes its place at this moment.

    Raises:
        ModelLoadError: there is something else in its place. OSError, ValueError: it can't be opened.
    """
    refuse_kind(path, os.stat(path))  # a device is not even opened
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        refuse_kind(path, os.fstat(descriptor))
    except ModelLoadError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def refuse_kind(path: Path, found: os.stat_result) -> None:
    """Raise ModelLoadError for what is no file."""
    if kind := KINDS.get(stat.S_IFMT(found.st_mode)):
        raise ModelLoadError(f"{path} is {kind}, not a file")


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file.

    Raises:
        ModelLoadError: there is something else in its place, or the file has more bytes. Or it has another number of
            bytes than the system states: another process writes to it, or it is one of the system's own (/proc).
            OSError, ValueError: it can't be read.
    """
    with open_file(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > max_bytes:
            raise ModelLoadError(f"{path} has more than {max_bytes >> 20} MiB, and this is the most for such a file")
        data = file.read(size + 1)
    if len(data) != size:
        raise ModelLoadError(f"{path} has another number of bytes than {size}: it changes, or is no file of a model")
    return data


def refuse_stand_in(path: Path) -> None:
    """Raise ModelLoadError if something else replaces a model's file. A file that is missing or can't be read
    passes."""
    try:
        with open_file(path) as file:
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
