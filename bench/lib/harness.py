"""What every benchmark needs: a description of the machine, percentiles, a table, a JSON file, worker processes.

Knows nothing of what is measured.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REST_WINDOW_S = 0.25
REST_BUSY = 0.25  # of one core
REST_LIMIT_S = 5.0


def machine() -> dict[str, Any]:
    """The machine and the versions that the figures were measured with."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "tailrace")},
    }


def version(package: str) -> str | None:
    """The package's version; None if it is not installed as a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def rest() -> None:
    """Waits until this machine's cores are idle, because a server may be busy after its last answer: vLLM's worker
    waits for its next step in a loop that takes a whole core for a second. Goes on after 5 s where other work never
    ends."""
    end = time.perf_counter() + REST_LIMIT_S
    while time.perf_counter() < end:
        before = busy_s()
        time.sleep(REST_WINDOW_S)
        if busy_s() - before < REST_BUSY * REST_WINDOW_S:
            return


def busy_s() -> float:
    """Seconds that all cores together have worked since the machine's start (Linux), else 0."""
    try:
        user, nice, system = map(int, Path("/proc/stat").read_text().split(maxsplit=4)[1:4])
    except OSError:
        return 0.0
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def cpu_model() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed; nan if there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of equal keys as aligned text: the first column to the left, numbers to the right."""
    cells = [list(rows[0]), *([shown(value) for value in row.values()] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        padded = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(padded))
    return "\n".join(lines)


def shown(value: Any) -> str:
    """A cell."""
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return str(value)


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write the record to a file; its folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {path}")


class Worker:
    """A child process of `python -m MODULE` that answers each line of JSON with a line of JSON. It ends with the block.

    python: the interpreter of another environment; None: this one's."""

    def __init__(self, module: str, *, threads: int | None = None, python: str | None = None) -> None:
        env = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
        self.process = subprocess.Popen(
            [python or sys.executable, "-m", module],
            cwd=ROOT,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, question: Any) -> Any:
        """Send, wait for the answer.

        Raises:
            RuntimeError: the child died.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            command = " ".join(map(str, self.process.args))  # type: ignore[arg-type]
            raise RuntimeError(f"{command} ended with code {self.process.wait()}")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
