"""vLLM's own tests of its samplers with tailrace in their place: `python vllms_own.py [--source FOLDER]`.

The tests come from the sdist of the vLLM that this environment has; what is there is not fetched again. A test counts
if it passes without the plug-in, here: some need a GPU, or models from the network. Exit code 1 if one of those fails
with it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from environment import extract_sdist

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"
FILES = ("test_sampler.py", "test_rejection_sampler.py", "test_sampling_params_e2e.py", "test_trace_replay_params.py")
RESULTS = "TAILRACE_TEST_RESULTS"  # where the run in pytest leaves what became of each test


def source() -> Path:
    """A folder with the tests of the installed vLLM."""
    release = version("vllm").removesuffix("+cpu")
    folder = CACHE / "vllm-tests" / release
    if not (folder / "tests" / "v1").is_dir():
        extract_sdist(sys.executable, release, folder, "tests/", ".py")
    return folder


def run(folder: Path, switch: str) -> dict[str, str]:
    """What became of each test. switch: what TAILRACE_VLLM is. Each file has a process of its own: what every engine of
    a process refuses is refused as soon as parameters are made, and a test of a file starts engines."""
    found = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"TAILRACE_VLLM": switch, "PYTHONPATH": found}
    env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    options = ["-q", "-W", "ignore", "--noconftest", "-p", "no:cacheprovider", "-p", "vllms_own", "--tb=line"]
    outcomes: dict[str, str] = {}
    for path in (f"tests/v1/sample/{name}" for name in FILES):
        if (folder / path).is_file():
            with tempfile.TemporaryDirectory() as held:
                results = Path(held) / "results"
                command = [sys.executable, "-m", "pytest", *options, "-c", "/dev/null", "--rootdir", ".", path]
                subprocess.run(command, cwd=folder, env=env | {RESULTS: str(results)}, check=False)
                outcomes |= json.loads(results.read_text())
    return outcomes


# ---- as a plug-in of pytest

outcomes: dict[str, str] = {}


def pytest_configure(config: Any) -> None:
    sys.path.insert(0, str(Path.cwd()))
    from tailrace.integrations.vllm import register

    register()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Models come from the disk: tests of text take the default model."""
    folder = next((CACHE / "models").glob("SmolLM2-135M-Instruct-bfloat16-[0-9a-f]*"), None)
    for item in items:
        if folder is not None and hasattr(item.module, "MODEL"):
            item.module.MODEL = str(folder)


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    if path := os.environ.get(RESULTS):
        Path(path).write_text(json.dumps(outcomes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, help="a checkout of vLLM; without it the sdist is fetched")
    asked = parser.parse_args()
    folder = asked.source or source()
    off, on = run(folder, "0"), run(folder, "1")
    passing = [test for test, outcome in off.items() if outcome == "passed"]
    worse = [test for test in passing if on.get(test) != "passed"]
    print(f"{len(off)} tests; {len(passing)} pass without the plug-in; of these {len(worse)} fail with it")
    print("\n".join(worse))
    return 1 if worse or not passing else 0


if __name__ == "__main__":
    sys.exit(main())
