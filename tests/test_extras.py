"""The core installs beside anything: what it may import, what the rest says where its extra is missing, and that the
tables agree."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tailrace.base.extras import DISTRIBUTIONS, EXTRAS, install_hint
from wanted import PACKAGES, wanted

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tailrace"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = {Requirement(line).name for line in PROJECT["dependencies"]}
# rooms and files that an extra opens, for everything in them
GATES = {"api": "serve", "engine": "serve", "models": "serve", "kernels/gpu": "gpu"}
OF_JINJA = {"tailrace.text.templates.sandbox"}  # imported where a template is rendered: its classes are those of Jinja

# refuses every module outside `allowed`; then imports what it is told to, and says how each import ended
PROBE = """
import json, sys
from importlib import import_module
allowed, wanted = json.loads(sys.stdin.read())
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r} (refused)", name=name)
sys.meta_path.insert(0, Refuse())
import torch
ended = {}
for name in wanted:
    try:
        import_module(name)
        ended[name] = "imported"
    except Exception as error:
        ended[name] = f"{type(error).__name__}: {error}"
foreign = sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - set(allowed))
print(json.dumps([ended, foreign]))
"""


def modules() -> list[str]:
    """Every module of the package."""
    paths = [path.relative_to(SOURCE.parent).with_suffix("") for path in sorted(SOURCE.rglob("*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if not name.endswith("__main__")]


def closure(names: set[str]) -> set[str]:
    """Distributions, and all that they need in turn."""
    found: set[str] = set()
    waiting = {canonicalize_name(name) for name in names}
    while waiting:
        name = waiting.pop()
        found.add(name)
        for line in requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting |= {canonicalize_name(requirement.name)} - found
    return found


@cache
def installed() -> Mapping[str, list[str]]:
    """Each top-level module, and the distributions that it may come from: read once, it takes half a second."""
    return packages_distributions()


@cache
def core_modules() -> list[str]:
    """The top-level modules of an environment in which the core's dependencies are installed, and nothing else."""
    there = closure(CORE)
    return sorted(
        {"tailrace", "__main__", "torchgen", "functorch"}
        | {module for module, owned in installed().items() if any(canonicalize_name(name) in there for name in owned)}
    )


def probe(allowed: list[str], wanted: list[str]) -> tuple[dict[str, str], list[str]]:
    """How each import ended in a fresh interpreter that finds `allowed` alone, and what else was loaded all the
    same."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps([allowed, wanted]),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr
    ended, foreign = json.loads(done.stdout)
    return ended, foreign


def rooms(names: list[str], *wanted: str) -> list[str]:
    return [name for name in names if name.partition(".")[2].partition(".")[0] in wanted]


@pytest.fixture(scope="module")
def bare() -> dict[str, str]:
    """How the import of each module ends where only the core's dependencies are."""
    ended, _ = probe(core_modules(), modules())
    return ended


@pytest.mark.long  # the test of the core's size shows that it is imported with the core alone
def test_the_library_imports_nothing_but_the_core():
    texts = [name for name in rooms(modules(), "text") if name not in OF_JINJA]
    names = ["tailrace", "tailrace.sampling", "tailrace.kernels", *texts]
    ended, foreign = probe(core_modules(), names)
    assert set(ended.values()) == {"imported"}, ended
    assert not [name for name in foreign if not name.startswith(("_", "sitecustomize"))]


@pytest.mark.long
def test_what_is_refused_is_seen():
    allowed = [name for name in core_modules() if name != "msgspec"]
    ended, _ = probe(allowed, ["tailrace.sampling"])
    assert "msgspec" in ended["tailrace.sampling"]


def test_the_core_is_as_large_as_it_is_said_to_be(bare):
    core = {name for name, how in bare.items() if how == "imported"}
    on_gpu = ("device_slots", "edit_table", "gpu", "gpu_numbers", "gpu_stateless")
    gpu = {f"tailrace.sampling.backends.{name}" for name in on_gpu}
    library = rooms(
        modules(),
        "",
        "sampling",
        "text",
        "params",
        "fields",
        "options",
        "errors",
        "config",
        "extras",
        "logprobs",
        "explanation",
        "sentences",
        "figures",
        "cli",
    )
    kernels = [name for name in rooms(modules(), "kernels") if not name.startswith("tailrace.kernels.gpu")]
    commands = ("chat", "chat_backends", "explain", "explain_html", "explain_table", "generate", "local", "memory_fit")
    of_the_server = {f"tailrace.cli.{name}" for name in (*commands, "serve", "conform")}
    assert {*library, *kernels, "tailrace.wire.messages"} - gpu - of_the_server - OF_JINJA <= core


def test_every_other_module_names_its_extra(bare):
    # what an engine imports has the engine
    others = {
        name: how for name, how in bare.items() if how != "imported" and not name.startswith("tailrace.integrations.")
    }
    assert "tailrace.api.app" in others
    hints = tuple(install_hint(extra) for extra in EXTRAS)
    for name, how in others.items():
        assert how.startswith("MissingExtraError"), (name, how)
        assert how.endswith(hints), (name, how)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("command", "extra"),
    [("serve", "serve"), ("chat", "serve"), ("generate", "serve"), ("explain", "serve"), ("conform", "conform")],
)
def test_a_command_that_lacks_its_extra_says_so_in_a_line(command, extra):
    code = PROBE.partition("import torch")[0] + f"from tailrace.cli import main; sys.exit(main([{command!r}]))"
    allowed = json.dumps([core_modules(), []])
    done = subprocess.run([sys.executable, "-c", code], input=allowed, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("tailrace: ")
    assert install_hint(extra) in done.stderr
    assert done.stderr.count("\n") == 1


# ---- the tables


def brought(extra: str) -> set[str]:
    """Distributions of an extra, of those that it includes too."""
    found: set[str] = set()
    for line in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            found |= set().union(*(brought(one) for one in requirement.extras))
        else:
            found.add(canonicalize_name(requirement.name))
    return found


@cache
def own_packages() -> dict[str, str]:
    """Map each module of packages/ to its distribution: an editable installation does not show which modules it has."""
    names = {file.parent: tomllib.loads(file.read_text())["project"]["name"] for file in PACKAGES}
    return {path.parent.name: name for folder, name in names.items() for path in folder.glob("src/*/__init__.py")}


def owners(module: str) -> set[str]:
    """The distributions that a module may come from."""
    top = module.partition(".")[0]
    return {canonicalize_name(name) for name in (*installed().get(top, ()), own_packages().get(top, "")) if name}


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_module_of_an_extra_comes_with_it(extra):
    for module in EXTRAS[extra]:
        assert owners(module) & brought(extra), module


def test_the_oldest_versions_are_the_bounds():
    oldest, newest = wanted("oldest"), wanted("newest")
    assert "msgspec==0.21" in oldest
    assert all("==" in line or "platform_system" in line for line in oldest)
    assert {canonicalize_name(Requirement(line).name) for line in oldest} >= brought("all") | CORE
    assert any(line.startswith("pyright>=") for line in newest)


def third_party_imports(source: str) -> list[tuple[str, str | None]]:
    """(module, extra): each import of what is neither ours nor Python's nor the core's, and the extra that `needs`
    guards it with."""
    found: list[tuple[str, str | None]] = []

    def visit(node: ast.AST, extra: str | None) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.With):
            for item in node.items:
                if isinstance(call := item.context_expr, ast.Call) and ast.unparse(call.func) == "require_extra":
                    extra = ast.literal_eval(call.args[0])
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in CORE | {"tailrace", "__future__"}:
                found.append((name, extra))
        for child in ast.iter_child_nodes(node):
            visit(child, extra)

    visit(ast.parse(source), None)
    return found


def gate(path: Path) -> str | None:
    """The extra without which nothing of the path's room can be imported."""
    inside = path.relative_to(SOURCE).as_posix()
    return next((extra for room, extra in GATES.items() if inside.startswith(room + "/")), None)


def test_every_import_of_others_is_guarded_by_the_extra_that_brings_it():
    seen = 0
    for path in sorted(SOURCE.rglob("*.py")):
        if path.is_relative_to(SOURCE / "integrations"):
            continue  # the engine that a file imports has imported the file
        for module, extra in third_party_imports(path.read_text()):
            extra = extra or gate(path)
            assert extra is not None, f"{path}: import {module} stands outside of `with needs(…)`"
            assert owners(module) & brought(extra), f"{path}: {module} does not come with {extra}"
            seen += 1
    assert seen > 50


def test_a_distribution_of_its_own_is_installed_from_its_folder():
    """pip would look for the name in an index, and no index has it."""
    assert install_hint("serve").startswith("pip install '.[serve]' in the source folder")
    assert own_packages() == {"tailrace_conform": "tailrace-conform"}
    for extra, (folder, wheel) in DISTRIBUTIONS.items():
        assert install_hint(extra).startswith(f"pip install {folder} in the source folder")
        [module] = EXTRAS[extra]
        assert (ROOT / folder / "src" / module / "__init__.py").is_file()
        assert wheel == f"{module}-….whl"
    assert not brought("all") & {"tailrace-conform"}


def test_an_import_without_a_guard_would_be_seen():
    bare = "def f():\n    import zmq.asyncio\n    from tailrace import api\n    import torch, json"
    assert third_party_imports(bare) == [("zmq.asyncio", None)]
    assert third_party_imports('with require_extra("grammar"):\n    from zmq import Context') == [("zmq", "grammar")]
    assert not owners("zmq") & brought("grammar")


@pytest.mark.long
def test_doctor_works_where_only_the_core_is():
    code = PROBE.partition("import torch")[0] + "from tailrace.cli import main; sys.exit(main(['doctor', '--json']))"
    allowed = json.dumps([core_modules(), []])
    done = subprocess.run([sys.executable, "-c", code], input=allowed, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert found["missing"] == [f"extra serve: {install_hint('serve')}"]
    assert found["kernels"]["argmax"] == {"reference": "yes", "cpu": "yes", "gpu": "extra missing"}


def test_gates_are_where_the_table_says():
    for room, extra in GATES.items():
        assert f'require_extra("{extra}")' in (SOURCE / room / "__init__.py").read_text()


ROOT = Path(__file__).resolve().parents[1]
FROM_AN_INDEX = re.compile(
    r"(?:pip3? install|uvx|pipx run) (-\S+ )*[\"']?tailrace(?:-conform)?(?![\w-])|(?<!Sample)\btailrace\["
)


def names_of_an_index(text: str) -> list[str]:
    """What the text would have pip look for in an index."""
    return [found[0] for found in FROM_AN_INDEX.finditer(" ".join(text.split()))]


def test_nothing_says_that_an_index_has_the_package():
    """It has none of the name today; decision records say what was said then."""
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("packages/*/*.md"),
        *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"),
    ]
    sources = [*(ROOT / "src").rglob("*.py"), *ROOT.glob("packages/*/src/**/*.py"), ROOT / "Dockerfile"]
    assert {path.name: found for path in (*pages, *sources) if (found := names_of_an_index(path.read_text()))} == {}
    for said in (
        "pip install tailrace",
        "pip install --no-deps\ntailrace",
        "tailrace[text]",
        "uvx tailrace-conform",
        "pip install tailrace-conform",
    ):
        assert names_of_an_index(said)  # the planted fault
    assert not names_of_an_index("pip install '.[serve]' or 'dist/tailrace-….whl[serve]'")
    assert not names_of_an_index("pip install ./packages/conform or tailrace_conform-….whl")
