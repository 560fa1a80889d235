"""What an environment needs, read from the repository's pyproject.toml files, for the Makefile: one requirement a line.

newest: the core, all extras and the dev group as they stand (make lock). oldest: of the core and all extras the oldest
versions that are allowed, with requirements.lock's torch and test tools (make test-oldest).
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(ROOT.glob("packages/*/pyproject.toml"))
TOOLS = ("hypothesis", "jsonschema", "openai", "packaging", "pytest", "pytest-asyncio", "scipy", "torch")  # as locked


def wanted(which: str) -> list[str]:
    """The requirements; ValueError for another word than newest and oldest."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    projects = [settings["project"], *(tomllib.loads(file.read_text())["project"] for file in PACKAGES)]
    asked = [line for project in projects for line in project["dependencies"]]
    asked += [line for lines in settings["project"]["optional-dependencies"].values() for line in lines]
    own = {project["name"] for project in projects}  # an extra includes another one, or a package of this repository
    asked = [line for line in dict.fromkeys(asked) if re.split(r"[^\w-]", line)[0] not in own]
    if which == "newest":
        return [*asked, *settings["dependency-groups"]["dev"]]
    if which == "oldest":
        locked = (ROOT / "requirements.lock").read_text().splitlines()
        tools = [line for line in locked if line.partition("==")[0] in TOOLS]
        return [*(re.sub(">=", "==", line) for line in asked if not line.startswith("torch>")), *tools]
    raise ValueError(f"newest or oldest, not {which}")


if __name__ == "__main__":
    print(*wanted(sys.argv[1]), sep="\n")
