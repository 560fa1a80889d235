"""Imports go one way, and the edges stay light: the tree's promise, checked on the sources and on a fresh interpreter.

A room may import only itself and the rooms listed for it. What a module imports lazily, inside a function, counts too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "tailrace"

LEAVES = {
    "errors",
    "ranges",
    "options",
    "params",
    "config",
    "logprobs",
    "logs",
    "json_schema",
    "residue",
    "_cpu",
    "__version__",
}
# room -> rooms it may know, besides LEAVES
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "ranges": set(),
    "options": set(),
    "params": set(),
    "config": set(),
    "logprobs": set(),
    "logs": set(),
    "json_schema": set(),
    "residue": set(),
    "kernels": set(),
    "sampling": {"kernels", "wire.messages"},
    "runners": {"kernels"},
    "drafting": {"kernels", "sampling", "runners"},
    "grammar": set(),
    "models": {"wire.messages"},
    # of text only what works on the bytes of tokens: banned strings are found where tokens are drawn
    "engine": {
        "kernels",
        "sampling",
        "runners",
        "drafting",
        "grammar",
        "models",
        "wire.messages",
        "wire.sockets",
        "wire.pulse",
        "text.detokenize",
        "text.stop_regex",
        "text.stop_strings",
        "text.tokenizer",
        "text.utf8",
        "text.within",
    },
    "wire": set(),
    # of grammar only what the texts of a schema may be
    "text": {"wire.messages", "grammar.check", "grammar.ecma", "grammar.formats"},
    "api": {"text", "wire"},
    "cli": {"kernels", "sampling", "runners", "drafting", "grammar", "models", "engine", "wire", "text", "api"},
}
LIGHT = (
    "errors",
    "params",
    "config",
    "wire.messages",
    "wire.async_client",
    "wire.sync_client",
    "text.output",
    "text.tokenizer",
    "api.app",
    "models",
)


def imported(path: Path) -> set[str]:
    """Dotted names below `tailrace` that a source file imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tailrace":
            base = node.module.removeprefix("tailrace").lstrip(".")
            found.update(f"{base}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(a.name.removeprefix("tailrace.") for a in node.names if a.name.startswith("tailrace."))
    return found


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def trespasses(room: str, names: set[str]) -> list[str]:
    """The imports among `names` that `room` may not have."""
    allowed = MAY_IMPORT[room] | LEAVES | {room}
    return [n for n in names if not any(n == a or n.startswith(a + ".") for a in allowed)]


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path):
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    assert not trespasses(room, imported(path)), f"{path.name} reaches out of its room"


def test_a_trespass_would_be_seen():
    assert trespasses("kernels", {"sampling.sampler.Sampler"}) == ["sampling.sampler.Sampler"]
    assert trespasses("api", {"engine.engine.Engine"}) == ["engine.engine.Engine"]
    assert trespasses("text", {"wire.messages.Tokens"}) == []


def test_only_sockets_imports_zmq():
    users = [p.name for p in sources() if "import zmq" in p.read_text()]
    assert users == ["sockets.py"]


def test_no_source_file_is_a_god_file():
    long = {str(p.relative_to(SOURCE)): n for p in sources() if (n := p.read_text().count("\n")) > 450}
    assert not long


@pytest.mark.parametrize("module", LIGHT)
def test_light_edges_import_no_torch(module: str):
    code = f"import tailrace.{module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
