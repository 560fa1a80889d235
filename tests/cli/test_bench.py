"""Benchmarks of what only a GPU can measure run without one: every case, once, in Triton's interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

from cli.test_commands import tailrace


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


def test_without_a_gpu_it_says_so():
    code = "import torch; torch.cuda.is_available = lambda: False; import sys; from tailrace.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ("bench", "sampler", "--device", "cuda")
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "sees no GPU" in done.stderr
