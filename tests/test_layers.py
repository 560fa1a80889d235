"""Imports go one way, and the edges stay light: the tree's promise, checked on the sources and on a fresh interpreter.

A room may import only itself and the rooms listed for it. What a module imports lazily, inside a function, counts too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE, BENCH = ROOT / "src" / "tailrace", ROOT / "bench"

LEAVES = {
    "errors",
    "extras",
    "fields",
    "field_checks",
    "explanation",
    "sentences",
    "figures",
    "sampler_fields",
    "engine_fields",
    "options",
    "params",
    "config",
    "config_sources",
    "logprobs",
    "logs",
    "json_schema",
    "memory_trim",
    "_cpu",
    "__version__",
}
# room -> rooms it may know, besides LEAVES
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "extras": set(),
    "fields": set(),
    "field_checks": set(),
    "explanation": set(),
    "sentences": set(),
    "figures": set(),
    "sampler_fields": set(),
    "engine_fields": set(),
    "options": set(),
    "params": set(),
    "config": set(),
    "config_sources": set(),
    "logprobs": set(),
    "logs": set(),
    "json_schema": set(),
    "memory_trim": set(),
    "kernels": set(),
    "sampling": {"kernels", "wire.messages"},
    "runners": {"kernels"},
    "drafting": {"kernels", "sampling", "runners"},
    "grammar": set(),
    "models": {"wire.messages"},
    # of text only what works on the bytes of tokens (banned strings are found where tokens are drawn), and what finds
    # thoughts, which have a budget
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
        "text.channel_splitter",
        "text.detokenize",
        "text.reasoning",
        "text.stop_regex",
        "text.stop_strings",
        "text.tokenizer",
        "text.utf8",
        "text.token_search",
        "text.tool_parsers",
    },
    "wire": set(),
    # of grammar only what the texts of a schema may be
    "text": {"wire.messages", "grammar.check", "grammar.ecma", "grammar.formats"},
    "api": {"text", "wire"},
    # parts for engines that people already run: the library, and nothing of our own engine
    "integrations": {"kernels", "sampling", "text"},
    # the whole server, as `tailrace serve` has it, and the names of the cache's blocks, by which prompts find a replica
    "integrations.ray": {"text", "wire", "api", "models", "cli.local", "engine.block_hash"},
    "conform": set(),  # judges servers from outside, whatever they run
    "cli": {
        "kernels",
        "sampling",
        "runners",
        "drafting",
        "grammar",
        "models",
        "engine",
        "wire",
        "text",
        "api",
        "conform",
    },
}
LIGHT = (
    "errors",
    "params",
    "config",
    "config_sources",
    "wire.messages",
    "wire.async_client",
    "wire.sync_client",
    "text.output",
    "text.tokenizer",
    "api.app",
    "models",
)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """The trees are large: they are not kept for the tests of other files."""
    yield
    parsed.cache_clear()


def imported(path: Path) -> set[str]:
    """Dotted names below `tailrace` that a source file imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tailrace":
            base = node.module.removeprefix("tailrace").lstrip(".")
            found.update(f"{base}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(a.name.removeprefix("tailrace.") for a in node.names if a.name.startswith("tailrace."))
    return found


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    """A folder of a room may be a room of its own."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    inner = ".".join(parts[:2])
    return inner if inner in MAY_IMPORT else parts[0]


def trespasses(room: str, names: set[str]) -> list[str]:
    """The imports among `names` that `room` may not have; the package's own __init__ and __main__ may have all."""
    if room in ("__init__", "__main__"):
        return []
    allowed = MAY_IMPORT[room] | LEAVES | {room}
    return [n for n in names if not any(n == a or n.startswith(a + ".") for a in allowed)]


def test_imports_go_one_way():
    found = {str(path.relative_to(SOURCE)): trespasses(room_of(path), imported(path)) for path in sources()}
    assert len(found) > 100
    assert not {path: names for path, names in found.items() if names}


def test_a_trespass_would_be_seen():
    assert trespasses("kernels", {"sampling.sampler.Sampler"}) == ["sampling.sampler.Sampler"]
    assert trespasses("api", {"engine.engine.Engine"}) == ["engine.engine.Engine"]
    assert trespasses("text", {"wire.messages.Tokens"}) == []
    assert trespasses("integrations", {"engine.block_hash.prefix_hash"}) == ["engine.block_hash.prefix_hash"]
    assert room_of(SOURCE / "integrations" / "ray" / "ingress.py") == "integrations.ray"


# ---- no circles between files


def modules(root: Path, package: str) -> dict[str, Path]:
    """Dotted name → file, of all sources below `root`."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = (package, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows(known: dict[str, Path]) -> dict[str, set[str]]:
    """Module → the modules among `known` that it imports when it is loaded, or for its types. A package's __init__ is
    imported by `from package import name`, unless the name is a module. What is imported inside functions is left
    out."""
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        found[name] = set()
        for node in at_module_level(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found[name].add(inner if inner in known else node.module)
            elif isinstance(node, ast.Import):
                found[name].update(alias.name for alias in node.names)
        found[name] = {target for target in found[name] if target in known and target != name}
    return found


def at_module_level(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from at_module_level(node)


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that reach one another."""
    reach = {name: reachable(graph, name) for name in graph}
    found: list[set[str]] = []
    for name in graph:
        together = {other for other in reach[name] if name in reach[other]}
        if together and together not in found:
            found.append(together)
    return found


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


@pytest.mark.parametrize(("folder", "package"), [("src/tailrace", "tailrace"), ("bench", "bench")])
def test_files_import_in_no_circle(folder: str, package: str):
    known = modules(SOURCE.parents[1] / folder, package)
    found = circles(arrows(known))
    assert not [sorted(circle) for circle in found]


def test_a_circle_would_be_seen(tmp_path: Path):
    """Of two files and of three, also where an import is for types alone."""
    for name, text in {
        "a": "from p.b import x",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import c",
        "c": "import p.a",
        "d": "from p import e",
        "e": "from p.d import y",
        "f": "def late():\n    from p import g",
        "g": "import p.f",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = circles(arrows(modules(tmp_path, "p")))
    assert sorted(map(sorted, found)) == [["p.a", "p.b", "p.c"], ["p.d", "p.e"]]


# ---- one meaning per class name


def test_each_class_name_is_defined_once():
    found: dict[str, list[str]] = {}
    for path in sources():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), []).append(str(path.relative_to(SOURCE)))
    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert not twice


def test_only_sockets_imports_zmq():
    users = [p.name for p in sources() if "import zmq" in p.read_text()]
    assert users == ["sockets.py"]


def test_files_are_short_or_say_why():
    """At most 300 lines; a longer file says in its docstring "(More than 300 lines: why.)", and has at most 460."""
    long = {path: n for path in sources() if (n := path.read_text().count("\n")) > 300}
    silent = [path for path in long if "(More than 300 lines: " not in (ast.get_docstring(parsed(path)) or "")]
    assert not [str(path.relative_to(SOURCE)) for path in silent]
    assert not {str(path.relative_to(SOURCE)): n for path, n in long.items() if n > 460}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[tuple[Function, str]]:
    """Every function but the GPU's kernels, with what may give a reason: its docstring, of an __init__ its class's."""
    nodes = list(ast.walk(tree))
    of_class = {one: ast.get_docstring(node) for node in nodes if isinstance(node, ast.ClassDef) for one in node.body}
    for node in nodes:
        if isinstance(node, Function) and "jit" not in "".join(map(ast.unparse, node.decorator_list)):
            yield node, f"{ast.get_docstring(node)} {of_class.get(node) if node.name == '__init__' else ''}"


def too_long(path: Path, tree: ast.AST) -> list[str]:
    """Functions of more than 40 lines or six parameters that do not say why. A docstring's lines, and self, do not
    count."""
    found = []
    for node, reasons in functions(tree):
        described = node.body[0] if ast.get_docstring(node) else None
        lines = node.end_lineno - node.lineno + 1
        lines -= 0 if described is None else described.end_lineno - described.lineno + 1
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = sum(argument.arg not in ("self", "cls") for argument in arguments)
        if lines > 40 and "(More than 40 lines: " not in reasons:
            found.append(f"{path}: {node.name} has {lines} lines")
        if count > 6 and "(More than six parameters: " not in reasons:
            found.append(f"{path}: {node.name} has {count} parameters")
    return found


def test_functions_are_short_or_say_why():
    """At most 40 lines and six parameters; others say in their docstring "(More than 40 lines: why.)" or "(More than
    six parameters: why.)"."""
    files = [*sources(), *sorted(BENCH.rglob("*.py"))]
    assert len(files) > 250
    assert not [line for path in files for line in too_long(path.relative_to(ROOT), parsed(path))]


def test_a_long_function_would_be_seen():
    body = "\n".join("    x = 1" for _ in range(41))
    reason = '    """(More than six parameters: why.) (More than 40 lines: why.)"""\n'
    for head, lines, found in (
        ("self, a, b, c, d, e, f", body, 1),
        ("a, b, c, d, e, f, *, g", body, 2),
        ("", "    pass", 0),
    ):
        for why, expected in (("", found), (reason, 0)):
            assert len(too_long(Path("x.py"), ast.parse(f"async def f({head}):\n{why}{lines}\n"))) == expected


def test_light_edges_import_no_torch():
    """One after the other in one interpreter: the first that brings torch is named."""
    code = (
        f"import importlib, sys\nfor module in {LIGHT}:\n    importlib.import_module('tailrace.' + module)\n"
        "    if 'torch' in sys.modules: sys.exit(module)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
