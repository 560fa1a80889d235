"""The benchmarks start: NAME finds the file of an area, each shows its flags, and those for a GPU run without one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from bench.__main__ import list_benchmarks
from bench.server.abuse import grown

import bench

ROOT = Path(__file__).resolve().parents[2]
OTHER_ENVIRONMENT = {"vllm_guard", "vllm_sampler"}  # needs vLLM
WRITE_MODELS = {"random_gguf", "random_model"}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the words, in the checkout's root."""
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


# ---- names


def test_a_name_finds_the_file_of_its_area():
    for name in list_benchmarks():
        spec = find_spec(f"bench.{name}")
        assert spec is not None
        assert spec.origin is not None
        area = Path(spec.origin).parent
        assert area.parent == ROOT / "bench"
        assert area.name in bench.AREAS
        main = find_spec(f"bench.{name}.__main__") if spec.submodule_search_locations else spec
        assert main is not None
        assert '\nif __name__ == "__main__":\n' in Path(str(main.origin)).read_text()  # else the command does nothing


def test_no_two_areas_have_a_file_of_one_name():
    """Else `python -m bench.NAME` would run the first and never the second."""
    names = Counter(path.stem for area in bench.AREAS for path in (ROOT / "bench" / area).glob("[!_]*.py"))
    assert max(names.values()) == 1
    assert not names.keys() & {"lib", *bench.AREAS}
    folders = {path.name for path in (ROOT / "bench").iterdir() if (path / "__init__.py").exists()}
    assert folders == {"lib", *bench.AREAS}


def test_the_list_names_each_benchmark():
    done = run("-m", "bench")
    assert done.returncode == 0, done.stderr
    listed = list_benchmarks()
    assert {"sampler", "serve", "egress", "knobs", "kernels", "vllm", "spec"} <= listed.keys()
    assert not {"load", "plain", "gpu", "serve_device", "baseline"} & listed.keys()  # parts of others
    assert set(re.findall(r"^(\w+)  ", done.stdout, re.MULTILINE)) == listed.keys()
    assert all(text.endswith(".") for text in listed.values())


def test_the_page_on_benchmarks_lists_each():
    page = (ROOT / "docs/benchmarks.md").read_text()
    table = page.partition("| benchmark |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\|((?:[^|]*`\w+`)+)[^|]*\|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == list_benchmarks().keys()


# ---- runs

HELP = """
import runpy, sys
for name in sys.argv[1:]:
    print(f"## {name}")
    sys.argv = [name, "--help"]
    try:
        runpy.run_module(f"bench.{name}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, name
"""


@pytest.mark.long
def test_every_benchmark_shows_its_flags():
    names = list_benchmarks().keys() - OTHER_ENVIRONMENT
    done = run("-c", HELP, *names)
    assert done.returncode == 0, done.stderr
    shown = {part.split()[0]: part for part in done.stdout.split("## ")[1:]}
    assert shown.keys() == names
    for name, text in shown.items():
        assert f"usage: python -m bench.{name} " in text
        assert ("--json" in text) == (name not in WRITE_MODELS), name  # make bench passes --json


@pytest.mark.long
def test_every_case_of_the_sampler_on_a_gpu_runs(tmp_path):
    found = tmp_path / "found.json"
    flags = ("--device", "interpreter", "--vocab", "270", "--rows", "1", "--no-host", "--json", str(found))
    done = run("-m", "bench.sampler", *flags)
    assert done.returncode == 0, done.stderr
    assert "the times mean nothing" in done.stdout
    lines = json.loads(found.read_text())["results"]
    assert {"one read", "copy", "sort, torch", "greedy", "drafts, rejection", "mixed"} <= {
        line["case"] for line in lines
    }


@pytest.mark.long
def test_the_sampler_refuses_a_gpu_that_is_not_there():
    code = (
        "import torch; torch.cuda.is_available = lambda: False; import sys; from bench.sampler.__main__ import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    done = run("-c", code, "--device", "cuda")
    assert done.returncode == 2
    assert "sees no GPU" in done.stderr


@pytest.mark.long
def test_the_abuse_benchmark_names_what_each_input_costs(tmp_path):
    found = tmp_path / "found.json"
    done = run("-m", "bench.abuse", "--only", "orders", "--peace-s", "1", "--json", str(found))
    assert done.returncode == 0, done.stderr
    record = json.loads(found.read_text())
    assert not record["differences"]
    [line] = record["results"]
    assert line["input"] == "orders"
    assert line["bound"] == 50
    assert line["step ≤"] > 0  # neighbours were served all the while, so there were steps
    assert line["gap"] > 0


def test_the_worst_of_a_histogram_is_the_largest_bucket_that_grew():
    def counts(*values: int) -> dict[str, float]:
        return {f'h{{le="{edge}"}}': float(n) for edge, n in zip(("0.1", "0.5", "+Inf"), values, strict=True)}

    assert grown(counts(5, 7, 9), counts(5, 7, 9), "h") == 0
    assert grown(counts(5, 7, 9), counts(6, 8, 10), "h") == 0.1
    assert grown(counts(5, 7, 9), counts(6, 9, 11), "h") == 0.5
    assert grown(counts(5, 7, 9), counts(5, 7, 10), "h") == float("inf")
