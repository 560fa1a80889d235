"""Fetches axe-core, which finds what people cannot use, into build/: `python tests/page/axe.py`. Never shipped."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = "4.14.1"
SCRIPT = Path(__file__).resolve().parents[2] / "build" / f"axe-core-{VERSION}" / "axe.min.js"


def fetch() -> None:
    """The script, if it is not there yet. Needs npm.

    Raises:
        subprocess.CalledProcessError, FileNotFoundError: npm is not there, or could not fetch it.
    """
    if SCRIPT.is_file():
        return
    SCRIPT.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["npm", "pack", "--silent", f"axe-core@{VERSION}"],
        cwd=SCRIPT.parent,
        check=True,
        timeout=120,
        stdout=subprocess.DEVNULL,
    )
    with tarfile.open(SCRIPT.parent / f"axe-core-{VERSION}.tgz") as archive:
        found = archive.extractfile("package/axe.min.js")
        if found is None:
            raise FileNotFoundError("axe-core has no axe.min.js")
        SCRIPT.write_bytes(found.read())


if __name__ == "__main__":
    try:
        fetch()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"axe-core could not be fetched, its tests are skipped: {error}", file=sys.stderr)
