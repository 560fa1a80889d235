"""The wheels of `make wheel`, installed where nothing else is: the core samples, the rest names its extra, and with
`serve` it serves. The judge of servers brings httpx alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from tailrace import _cpu
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "src" / "tailrace" / "page"
pytestmark = pytest.mark.long

SAMPLE = """
import json, sys
import torch
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots
logits = torch.linspace(-3, 3, 1000).repeat(2, 1)
slots = Slots(2, 1000)
slots.add(0, SamplingParams(temperature=0.8, top_p=0.95), key=7, prompt=[1, 2, 3])
slots.add(1, SamplingParams(temperature=0.0, logprobs=1), key=8, prompt=[4, 5])
sampled = Sampler(slots)(logits, Rows.plain(slot=[0, 1], source=[0, 1]))
import tailrace.text.output, tailrace.text.tool_parsers
import tailrace
others = [name for name in ("transformers", "tokenizers", "starlette", "zmq") if name in sys.modules]
print(json.dumps([sampled.tokens(), tailrace.__file__, others]))
"""


def run(*words: str | Path, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=1500, check=False, **more
    )


@pytest.fixture(scope="module")
def made() -> list[Path]:
    """Every wheel in dist/, built again if the sources are newer."""
    done = run("make", "-C", ROOT, "wheel")
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted((ROOT / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def wheels(made: list[Path]) -> list[Path]:
    """The wheels of tailrace, one per kind of interpreter."""
    return [wheel for wheel in made if wheel.name.startswith("tailrace-")]


@pytest.fixture(scope="module")
def mine(wheels: list[Path]) -> Path:
    """The one for this interpreter."""
    tag = "cp312-abi3" if sys.version_info >= (3, 12) else "cp311-cp311"
    [found] = [wheel for wheel in wheels if tag in wheel.name]
    return found


@pytest.fixture(scope="module")
def empty(mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel and what it asks for, in the locked versions."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "requirements.lock", mine)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def test_the_wheels_are_for_other_machines(wheels: list[Path]):
    assert wheels
    for wheel in wheels:
        assert "-manylinux_" in wheel.name or sys.platform != "linux", wheel
        names = zipfile.ZipFile(wheel).namelist()
        assert {"tailrace/py.typed", "tailrace/_cpu.pyi"} <= set(names)
        page = {path.relative_to(ROOT / "src").as_posix() for path in PAGE.rglob("*") if path.is_file()}
        assert page
        assert page <= set(names)
        assert len([name for name in names if name.startswith("tailrace/_cpu.") and name.endswith(".so")]) == 1
        assert not [name for name in names if not name.startswith("tailrace")], "something else is in it"


def test_the_core_samples_where_nothing_else_is(empty: Path):
    done = run(empty / "python", "-c", SAMPLE, cwd=empty)
    assert done.returncode == 0, done.stderr
    tokens, file, loaded = json.loads(done.stdout)
    assert Path(file).is_relative_to(empty.parent)
    assert loaded == []
    slots = Slots(2, 1000)
    slots.add(0, SamplingParams(temperature=0.8, top_p=0.95), key=7, prompt=[1, 2, 3])
    slots.add(1, SamplingParams(temperature=0.0), key=8, prompt=[4, 5])
    logits = torch.linspace(-3, 3, 1000).repeat(2, 1)
    assert tokens == Sampler(slots)(logits, Rows.plain(slot=[0, 1], source=[0, 1])).tokens()


def test_without_its_extra_a_command_says_so(empty: Path):
    assert run(empty / "tailrace", "--version").returncode == 0
    done = run(empty / "tailrace", "serve")
    assert done.returncode == 2
    assert "'tailrace-….whl[serve]' with its wheel" in done.stderr


def test_the_judge_of_servers_brings_httpx_alone(made: list[Path], tmp_path: Path):
    [wheel] = [wheel for wheel in made if wheel.name.startswith("tailrace_conform-")]
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert {"tailrace_conform/cli.py", "tailrace_conform/laws/stops/cut.py", "tailrace_conform/py.typed"} <= set(names)
    assert not [name for name in names if not name.startswith("tailrace_conform")], "something else is in it"
    venv.create(tmp_path, with_pip=True)
    python = tmp_path / "bin" / "python"
    done = run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "requirements.lock", wheel)
    assert done.returncode == 0, done.stderr
    listed = {one["name"] for one in json.loads(run(python, "-m", "pip", "list", "--format=json").stdout)}
    assert {"tailrace-conform", "httpx"} <= listed
    assert not listed & {"tailrace", "torch", "numpy", "msgspec"}
    assert "stops.cut" in run(tmp_path / "bin" / "tailrace-conform", "--list").stdout
    assert run(tmp_path / "bin" / "tailrace-conform", "http://127.0.0.1:9/v1").returncode == 2


@pytest.mark.model
def test_with_serve_it_serves(empty: Path, mine: Path, model_folder: Path, free_port):
    installed = run(
        empty / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        ROOT / "requirements.lock",
        f"{mine}[serve]",
    )
    assert installed.returncode == 0, installed.stderr
    port = free_port()
    command = [empty / "tailrace", "serve", "--model", model_folder, "--port", str(port), "--num-blocks", "200"]
    server = subprocess.Popen([str(word) for word in command], cwd=empty, env=os.environ | {"TAILRACE_LOG": "warning"})
    try:
        body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        wait_for(f"http://127.0.0.1:{port}/health", server)
        with urllib.request.urlopen(request, timeout=300) as response:
            assert "Paris" in json.load(response)["choices"][0]["text"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=300) as response:
            assert response.read() == (PAGE / "index.html").read_bytes()
    finally:
        server.terminate()
        assert server.wait(60) == 0


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Until it answers 200, as long as its process lives; five minutes at most."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server did not become ready")


@pytest.mark.parametrize("name", ["python3.12", "python3.13", "python3.14"])
def test_one_wheel_is_for_all_newer_pythons(wheels: list[Path], name: str, tmp_path: Path):
    """Its extension module alone: torch may not be there for them."""
    python = shutil.which(os.environ.get(f"TEST_{name.upper().replace('.', '_')}", name))
    if python is None or run(python, "-c", "").returncode != 0:
        pytest.skip(f"{name} is not here")
    found = [wheel for wheel in wheels if "cp312-abi3" in wheel.name]
    if not found:
        pytest.skip("no interpreter from 3.12 on had headers when the wheels were made")
    zipfile.ZipFile(found[0]).extractall(tmp_path)
    code = "from tailrace import _cpu; print(repr(_cpu.uniform(7, 3, 1)))"
    done = run(python, "-c", code, env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == repr(_cpu.uniform(7, 3, 1))
