"""Fetches what the page stands on, and writes it into src/tailrace/page/vendor: `python tests/page/vendor.py`.

Needs npm. A browser finds no package by its name, so the files name each other by path; else they are as published.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[2] / "src" / "tailrace" / "page" / "vendor"
LICENCES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "LICENSE-MIT.txt")


class Package(NamedTuple):
    """What is taken from a package: file of it → name here."""

    name: str
    version: str
    files: dict[str, str]


PACKAGES = (
    Package("preact", "11.2.0", {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js"}),
    Package("htm", "3.1.1", {"dist/htm.mjs": "htm.js"}),
    Package("@preact/signals-core", "1.14.5", {"dist/signals-core.mjs": "signals-core.js"}),
    Package("@preact/signals", "2.11.4", {"dist/signals.mjs": "signals.js"}),
    Package("uplot", "1.6.32", {"dist/uPlot.esm.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"}),
    Package("markdown-it", "15.0.3", {"dist/browser/markdown-it.esm.min.mjs": "markdown-it.js"}),
    # markdown-it's file holds these too: their licences belong beside it
    Package("entities", "8.1.0", {}),
    Package("linkify-it", "6.1.0", {}),
    Package("mdurl", "2.1.0", {}),
    Package("punycode.js", "2.3.1", {}),
    Package("uc.micro", "3.0.0", {}),
)
BY_PATH = {
    "preact": "./preact.js",
    "preact/hooks": "./preact-hooks.js",
    "@preact/signals-core": "./signals-core.js",
}
IMPORT = re.compile(r"""(from\s*)(["'])([@\w./-]+)\2""")
SOURCE_MAP = re.compile(r"//# sourceMappingURL=\S+\s*")


def adapted(text: str) -> str:
    """The file with paths where it names packages, and without a map that is not there.

    Raises:
        KeyError: it imports a package that is not taken along.
    """
    named = IMPORT.sub(lambda found: f"{found[1]}{found[2]}{BY_PATH[found[3]]}{found[2]}", text)
    return SOURCE_MAP.sub("", named).rstrip() + "\n"


def fetch(package: Package, folder: Path) -> dict[str, str]:
    """Its files and its licence, into FOLDER. Returns their names with their SHA-256."""
    packed = subprocess.run(
        ["npm", "pack", "--silent", f"{package.name}@{package.version}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.split()[-1]
    with tarfile.open(folder / packed) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}

        def text(name: str) -> str:
            found = archive.extractfile(members[name])
            if found is None:
                raise FileNotFoundError(f"{package.name} has no {name}")
            return found.read().decode()

        licence = next(name for name in LICENCES if name in members)
        short = package.name.removeprefix("@").replace("/", "-")
        texts = {f"{short}.LICENSE": text(licence)}
        texts |= {here: adapted(text(name)) for name, here in package.files.items()}
    for name, content in texts.items():
        (FOLDER / name).write_text(content)
    return {name: hashlib.sha256(content.encode()).hexdigest() for name, content in sorted(texts.items())}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        made = [
            {"name": package.name, "version": package.version, "files": fetch(package, Path(work))}
            for package in PACKAGES
        ]
    (FOLDER / "versions.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()
