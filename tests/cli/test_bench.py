"""Benchmarks of what only a GPU can measure run without one: every case, once, in Triton's interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.test_commands import tailrace
from tailrace.cli.bench import BENCHES


@pytest.mark.long
def test_every_case_of_the_sampler_on_a_gpu_runs(tmp_path):
    found = tmp_path / "found.json"
    done = tailrace(
        *(
            "bench",
            "sampler",
            "--device",
            "interpreter",
            "--vocab",
            "270",
            "--rows",
            "1",
            "--no-host",
            "--json",
            str(found),
        )
    )
    assert done.returncode == 0, done.stderr
    assert "the times mean nothing" in done.stdout
    lines = json.loads(found.read_text())["results"]
    assert {"one read", "copy", "sort, torch", "greedy", "drafts, rejection", "mixed"} <= {
        line["case"] for line in lines
    }


@pytest.mark.long
def test_without_a_gpu_it_says_so():
    code = "import torch; torch.cuda.is_available = lambda: False; import sys; from tailrace.cli import main; sys.exit(main(sys.argv[1:]))"  # noqa: E501, one text
    words = ("bench", "sampler", "--device", "cuda")
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert "sees no GPU" in done.stderr


@pytest.mark.long
def test_the_abuse_bench_names_what_each_input_costs(tmp_path):
    found = tmp_path / "found.json"
    done = tailrace("bench", "abuse", "--only", "orders", "--peace-s", "1", "--json", str(found))
    assert done.returncode == 0, done.stderr
    record = json.loads(found.read_text())
    assert not record["differences"]
    [line] = record["results"]
    assert line["input"] == "orders"
    assert line["bound"] == 50
    assert line["step ≤"] > 0  # neighbours were served all the while, so there were steps
    assert line["gap"] > 0


def test_the_worst_of_a_histogram_is_the_largest_bucket_that_grew(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    from bench.abuse import grown

    def counts(*values: int) -> dict[str, float]:
        return {f'h{{le="{edge}"}}': float(n) for edge, n in zip(("0.1", "0.5", "+Inf"), values, strict=True)}

    assert grown(counts(5, 7, 9), counts(5, 7, 9), "h") == 0
    assert grown(counts(5, 7, 9), counts(6, 8, 10), "h") == 0.1
    assert grown(counts(5, 7, 9), counts(6, 9, 11), "h") == 0.5
    assert grown(counts(5, 7, 9), counts(5, 7, 10), "h") == float("inf")


HELP = """
import sys
from tailrace.cli import main
for name in sys.argv[1:]:
    print(f"## {name}")
    try:
        main(["bench", name, "--help"])
    except SystemExit as end:
        assert not end.code, name
"""


@pytest.mark.long
def test_every_bench_says_what_it_takes():
    done = subprocess.run(
        [sys.executable, "-c", HELP, *BENCHES], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    said = {part.split()[0]: part for part in done.stdout.split("## ")[1:]}
    assert said.keys() == BENCHES.keys()
    assert all("--json" in part for part in said.values())
