"""Imports go one way, and the edges stay light: the tree's promise, checked on the sources and on a fresh interpreter.

A room may import only itself and the rooms listed for it. What a module imports lazily, inside a function, counts too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE, BENCH, TOOLS = ROOT / "src" / "tailrace", ROOT / "bench", ROOT / "tools"
CONFORM = ROOT / "packages" / "conform" / "src" / "tailrace_conform"

LEAVES = {"errors", "config", "params", "base", "request", "explain", "_cpu", "__version__"}
# room -> rooms it may know, besides LEAVES
MAY_IMPORT: dict[str, set[str]] = {
    **{leaf: set[str]() for leaf in LEAVES},
    "options": set(),  # aliases for one release
    "explanation": set(),
    "kernels": set(),
    "sampling": {"kernels", "wire.messages"},
    # headers of files; rules about settings
    "runners": {"kernels", "models.tensors", "models.context", "models.auto_class"},
    "drafting": {"kernels", "sampling", "runners"},
    "grammar": set(),
    "models": {"wire.messages", "text.templates.program"},  # of text only what compiles a chat template
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
    },
}
LIGHT = (
    "errors",
    "params",
    "config",
    "base.config_sources",
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


def all_sources() -> list[Path]:
    """The files of both distributions."""
    return [*sources(), *sorted(CONFORM.rglob("*.py"))]


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


# ---- the judge of servers knows its servers from outside


def foreign(path: Path) -> set[str]:
    """The top-level packages that a file of tailrace_conform may not import, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    of_pytest = {"pytest"} if path.name == "pytest_plugin.py" else set()
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {CONFORM.name, "httpx"} - of_pytest


def test_conform_imports_httpx_and_nothing_of_tailrace():
    files = sorted(CONFORM.rglob("*.py"))
    assert len(files) > 100
    assert not {str(path.relative_to(CONFORM)): names for path in files if (names := foreign(path))}
    wanted = tomllib.loads((CONFORM.parents[1] / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [line.partition(">")[0] for line in wanted] == ["httpx"]


def test_the_tests_of_conform_import_nothing_of_tailrace():
    """They would run beside a checkout of the folder alone."""
    found = {path.name: foreign(path) for path in (CONFORM.parents[1] / "tests").rglob("*.py")}
    assert not [name for name, names in found.items() if "tailrace" in names]


def test_a_foreign_import_of_conform_would_be_seen(tmp_path: Path):
    file = tmp_path / "law.py"
    file.write_text(
        "import json, httpx, pytest\ndef f():\n    from tailrace.errors import ConfigError\n    import torch.nn\n"
    )
    assert foreign(file) == {"tailrace", "torch", "pytest"}


# ---- no circles between files


def modules(root: Path, package: str) -> dict[str, Path]:
    """Dotted name → file, of all sources below `root`."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = (package, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows(known: dict[str, Path]) -> dict[str, set[str]]:
    """Return module → the modules among `known` that it imports at any depth: when it is loaded, for its types, inside
    functions, and by `import_module("…")`. `from package import name` imports the package's __init__, unless the name
    is a module."""
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        found[name] = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found[name].add(inner if inner in known else node.module)
            elif isinstance(node, ast.Import):
                found[name].update(alias.name for alias in node.names)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                found[name].update(a.value for a in node.args if isinstance(a, ast.Constant))
        found[name] = {target for target in found[name] if target in known and target != name}
    return found


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


@pytest.mark.parametrize("folder", [SOURCE, CONFORM, BENCH, TOOLS], ids=lambda folder: folder.name)
def test_files_import_in_no_circle(folder: Path):
    known = modules(folder, folder.name)
    found = circles(arrows(known))
    assert not [sorted(circle) for circle in found]


def test_a_circle_would_be_seen(tmp_path: Path):
    """A circle of two files, and of three. An import counts for types alone, inside a function, and by its name."""
    for name, text in {
        "a": "from p.b import x",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import c",
        "c": "import p.a",
        "d": "from p import e",
        "e": "from p.d import y",
        "f": "def late():\n    from p import g",
        "g": "import p.f",
        "h": "import importlib\ndef late():\n    importlib.import_module('p.i')",
        "i": "import p.h",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = circles(arrows(modules(tmp_path, "p")))
    assert sorted(map(sorted, found)) == [["p.a", "p.b", "p.c"], ["p.d", "p.e"], ["p.f", "p.g"], ["p.h", "p.i"]]


def strangers(area: str, known: dict[str, Path]) -> dict[str, set[str]]:
    """Return module of the area → the modules of other areas that it imports. lib/ belongs to all areas."""
    inside = (f"bench.{area}", "bench.lib")
    graph = {name: targets for name, targets in arrows(known).items() if name.startswith(f"bench.{area}")}
    found = {name: {t for t in targets if not t.startswith(inside) and t != "bench"} for name, targets in graph.items()}
    return {name: targets for name, targets in found.items() if targets}


def test_areas_of_benchmarks_import_lib_and_themselves():
    known = modules(BENCH, "bench")
    areas = [path.parent.name for path in BENCH.glob("*/__init__.py")]
    assert len(areas) > 5
    assert not [strangers(area, known) for area in areas if strangers(area, known)]


def test_benchmarks_import_modules_by_their_full_names(tmp_path: Path):
    """`python -m bench.knobs` works without the area; an import by that name would hide its module from these tests."""
    known = modules(BENCH, "bench")
    assert not [f"{path.name}: {name}" for path in known.values() for name in bench_imports(path) - known.keys()]
    (tmp_path / "short.py").write_text("from bench.knobs import throughput\nfrom bench import knobs, AREAS")
    assert bench_imports(tmp_path / "short.py") - known.keys() == {"bench.knobs"}


def bench_imports(path: Path) -> set[str]:
    """Return the modules of bench that a file imports, or from which it imports."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bench":
            modules = {f"bench.{alias.name}" for alias in node.names if alias.name.islower()}
            found |= modules if node.module == "bench" else {str(node.module)}
    return found


# ---- one meaning per class name


def test_each_class_name_is_defined_once():
    found: dict[str, list[str]] = {}
    for path in all_sources():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), []).append(str(path.relative_to(ROOT)))
    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert not twice


def test_only_sockets_imports_zmq():
    users = [p.name for p in sources() if "import zmq" in p.read_text()]
    assert users == ["sockets.py"]


def test_files_are_short_or_say_why():
    """At most 300 lines; a longer file says in its docstring "(More than 300 lines: why.)", and has at most 460."""
    files = [*all_sources(), *BENCH.rglob("*.py"), *TOOLS.rglob("*.py")]
    long = {path: n for path in files if (n := path.read_text().count("\n")) > 300}
    silent = [path for path in long if "(More than 300 lines: " not in (ast.get_docstring(parsed(path)) or "")]
    assert not [str(path.relative_to(ROOT)) for path in silent]
    assert not {str(path.relative_to(ROOT)): n for path, n in long.items() if n > 460}


def test_files_of_the_kernels_are_short():
    """At most 300 lines, without exception."""
    files = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".cpp", ".h")]
    assert len(files) > 50
    assert [path.name for path in files if path.read_text().count("\n") > 300] == []


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
    files = [*all_sources(), *sorted(BENCH.rglob("*.py")), *sorted(TOOLS.rglob("*.py"))]
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
