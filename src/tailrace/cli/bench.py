"""tailrace bench NAME: the project's measurements. They live in bench/ of the repository, not in the wheel."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from tailrace.errors import ConfigError

FOLDER = Path(__file__).resolve().parents[3] / "bench"


def names() -> list[str]:
    """The benchmarks that are there: files that have a `run`."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if "\ndef run(" in path.read_text())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own flags follow its name."""
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(names()) or 'none: there is no bench folder'}")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="for the benchmark itself: NAME --help lists them")


def run(arguments: argparse.Namespace) -> int:
    """Load the file and call its `run(options, json_file)`.

    Raises:
        ConfigError: there is no such benchmark.
    """
    if arguments.name not in names():
        raise ConfigError(f"no benchmark {arguments.name!r} in {FOLDER}; there are {', '.join(names()) or 'none'}")
    spec = importlib.util.spec_from_file_location(f"bench_{arguments.name}", FOLDER / f"{arguments.name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run(arguments.options, arguments.json)
