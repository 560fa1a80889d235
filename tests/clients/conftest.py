"""Servers to talk to, started as a person starts them: by the command `tailrace serve` of the project's own
environment.

This environment knows the clients and not tailrace; TAILRACE names the command, else it is the one in ../../.venv.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

NAME = "small"
KEY = "sk-right"
# what the clients would ask the internet for by themselves, and settings of whoever runs this
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}
OTHERS = ("BASE_URL", "API_BASE", "API_KEY", "AUTH_TOKEN", "ORG_ID", "PROJECT_ID")
for variable in (f"{vendor}_{name}" for vendor in ("ANTHROPIC", "OPENAI") for name in OTHERS):
    os.environ.pop(variable, None)


@dataclass(frozen=True)
class Server:
    """One that is ready. `url` has no /v1; `log` is what it has written so far."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def post(self, path: str, body: bytes = b"") -> None:
        """Send a body. The answer has none."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, body, method="POST"), timeout=300):
                pass
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error} {error.read()!r}\n{self.log.read_text()[-5000:]}") from error

    def healthy(self) -> bool:
        """It accepts requests."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `form` runs for every format of tool calls that the server knows."""
    if "form" in metafunc.fixturenames:
        metafunc.parametrize("form", tool_formats())


@cache
def tool_formats() -> list[str]:
    """Names of the formats; harmony (gpt-oss) is beside the table."""
    code = "from tailrace.text.tool_parsers import TOOL_FORMATS as T; print(*T, 'harmony')"
    answer = subprocess.run(
        [find_command().parent / "python", "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    names = answer.stdout.split()
    assert len(names) > 20
    return names


@pytest.fixture(scope="session")
def command() -> Path:
    """`tailrace` of the project's own environment."""
    return find_command()


def find_command() -> Path:
    found = Path(os.environ.get("TAILRACE") or Path(__file__).resolve().parents[2] / ".venv" / "bin" / "tailrace")
    assert found.exists(), f"{found} is missing; run make install, or name the command in TAILRACE"
    return found


@pytest.fixture(scope="session")
def serve(
    command: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., contextlib.AbstractContextManager[Server]]:
    """Runs a server with these flags as long as its block lasts. It must end well, and have logged no traceback."""

    @contextlib.contextmanager
    def run(*flags: str) -> Iterator[Server]:
        port = free_port()
        log = tmp_path_factory.mktemp("server") / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [command, "serve", "--port", str(port), "--served-model-name", NAME, "--num-blocks", "2000", *flags],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        server = Server(f"http://127.0.0.1:{port}", process, log)
        try:
            await_health(server)
            yield server
            assert process.poll() is None, f"the server died:\n{log.read_text()}"
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(60)
        assert status == 0, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()

    return run


@pytest.fixture(scope="session")
def server(serve: Callable[..., contextlib.AbstractContextManager[Server]]) -> Iterator[Server]:
    """The default model; anybody may call."""
    with serve() as running:
        yield running


@pytest.fixture(scope="session")
def guarded(serve: Callable[..., contextlib.AbstractContextManager[Server]]) -> Iterator[Server]:
    """Scripted logits, for those who have the key."""
    with serve("--model", "scripted:next", "--api-keys", KEY) as running:
        yield running


@pytest.fixture(scope="session")
def agent(command: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that plays an agent's part: see scripted_agent.py. It must have logged no traceback."""
    with run_scripted_model(command, tmp_path_factory.mktemp("agent") / "log") as server:
        yield server
    assert "Traceback" not in server.log.read_text(), server.log.read_text()


@pytest.fixture
def failing_agent(command: Path, tmp_path: Path) -> Iterator[Server]:
    """The same model, for answers that fail."""
    with run_scripted_model(command, tmp_path / "log") as server:
        yield server


@contextlib.contextmanager
def run_scripted_model(command: Path, log: Path) -> Iterator[Server]:
    """Run scripted_agent.py as long as the block lasts."""
    here, port = Path(__file__).resolve().parent, free_port()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [command.parent / "python", here / "scripted_agent.py", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(here.parent), "OMP_NUM_THREADS": "1"},
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        await_health(server)
        yield server
        assert process.poll() is None, f"the server died:\n{log.read_text()}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def install_packages(source: Path) -> Path:
    """Install the packages of source/package.json. Return a folder with them, which is kept for the next run."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    manifest = (source / "package.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace" / "clients"
    folder = cache / f"{source.name}-{hashlib.sha256(manifest).hexdigest()[:12]}"
    if not (folder / ".done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_bytes(manifest)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True, timeout=900)
        (folder / ".done").touch()
    return folder


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def await_health(server: Server) -> None:
    """Wait until it accepts requests."""
    end = time.monotonic() + 300  # the first one ever fetches and converts the model
    while not server.healthy():
        assert server.process.poll() is None, f"the server ended:\n{server.log.read_text()}"
        assert time.monotonic() < end, f"the server does not get ready:\n{server.log.read_text()}"
        time.sleep(0.1)


@pytest.fixture(scope="session")
def tokenizer_folder(command: Path) -> str:
    """Where the default model's tokenizer is, for clients that count tokens themselves."""
    code = "from tailrace.config import ModelConfig as M; from tailrace.models import resolve; print(resolve(M(), False).folder)"  # noqa: E501, one text
    answer = subprocess.run([command.parent / "python", "-c", code], capture_output=True, text=True, check=True)
    return answer.stdout.strip()
