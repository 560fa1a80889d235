"""docs/add/method.md: a copy of the package gets the guide's two methods, by the code on the page and nothing else. The
methods then act in the library, over HTTP, on the command line, in the tables of the docs and in the data of the page.
Another copy also gets the GPU's branch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import _cpu

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs/add/method.md"
BLOCK = re.compile(r'^```python title="(.+?)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# how a block opens that adds lines to a class or a table → the line of the file behind which the test puts the lines
BEHIND = {
    "class SamplerFields(...):": '    """See params.SamplingParams."""\n',
    "EDIT_ORDER = (": "EDIT_ORDER = (\n",
    "REFINEMENT_ORDER = (": '    OrderEntry("top_k", "top-k {top_k}", title="Top-k"),\n',
}


def copy_package(folder: Path) -> None:
    """Copy the package with its compiled module, and the docs that have tables."""
    shutil.copytree(Path(tailrace.__file__).parent, folder / "src/tailrace")
    compiled = Path(_cpu.__file__)
    shutil.copy2(compiled, folder / "src/tailrace" / compiled.name)
    (folder / "docs/api").mkdir(parents=True)
    pages = ("write_fields.py", "write_combinations.py", "sampling.md", "api/sampling-fields.md", "api/combinations.md")
    for name in pages:
        shutil.copy2(ROOT / "docs" / name, folder / "docs" / name)


def apply_guide(text: str, folder: Path) -> list[str]:
    """Put the guide's blocks of code into the files that their titles name. Return the titles."""
    blocks = BLOCK.findall(text)
    for path, code in blocks:
        file = folder / path
        if file.exists():
            opening, *lines = code.splitlines(keepends=True)
            behind, source = BEHIND[opening.strip()], file.read_text()
            assert source.count(behind) == 1, path
            code = source.replace(behind, behind + "".join(line for line in lines if line.startswith(" ")))
        file.write_text(code)
    return [path for path, _ in blocks]


def run_file(folder: Path, name: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Run a file of tests/ with the copied package. -S: no hook of an editable install finds the package first."""
    path = os.pathsep.join([str(folder / "src"), str(ROOT / "tests"), *filter(None, sys.path)])
    line = [sys.executable, "-S", str(ROOT / "tests" / name), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=600, env=environment)


def run_methods(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run added_method.py with the copied package."""
    (folder / "vocabulary").mkdir()
    return run_file(folder, "added_method.py", folder / "docs", folder / "vocabulary")


def replace_once(file: Path, old: str, new: str) -> None:
    """Replace a text that the file has once."""
    source = file.read_text()
    assert source.count(old) == 1, (file, old)
    file.write_text(source.replace(old, new))


def find_once(pattern: str, text: str) -> str:
    """Return the group of the pattern's only match."""
    [found] = re.findall(pattern, text, re.MULTILINE | re.DOTALL)
    return found


def apply_branch(text: str, folder: Path) -> None:
    """Apply the guide's steps for a GPU, by the code on the page, to a copy that has the guide's methods.

    The compiled module lacks the new kind. So the copy compares only the other kinds with the compiled module.
    """
    kernels = folder / "src/tailrace/kernels"
    stage = find_once(r"^```python\n(from tailrace.kernels.program import Stage\n.*?)^```$", text)
    replace_once(folder / "src/tailrace/sampling/methods/logit_gap.py", "METHOD = Refinement(apply, None)\n", stage)
    replace_once(
        kernels / "cpu/program.py", "for kind, info in STAGES.items())\n", "for kind, info in STAGES.items())[:-1]\n"
    )
    entry = find_once(r'^```python\n( {4}"logit_gap": StageInfo.*?)^```$', text)
    end_of_stages = '    "tournament": StageInfo("everything", on_gpu=False, slow=True),\n'
    replace_once(kernels / "program.py", end_of_stages, end_of_stages + entry.replace(", on_gpu=False", ""))
    file = kernels / "gpu/refine.py"
    replace_once(file, "HANDLED = (\n", find_once(r"`(LOGIT_GAP = .*?)`", text) + "\nHANDLED = (\n    LOGIT_GAP,\n")
    branch = find_once(r"^```python\n( +elif kind == LOGIT_GAP:\n.*?)^```$", text)
    last = "            else:  # top-p, top-a, typical"
    replace_once(file, last, branch + last)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What added_method.py prints about the copy."""
    folder = tmp_path_factory.mktemp("package")
    copy_package(folder)
    assert apply_guide(GUIDE.read_text(), folder) == [
        "src/tailrace/request/sampler_fields.py",
        "src/tailrace/sampling/methods/logit_gap.py",
        "src/tailrace/sampling/methods/id_step.py",
        "src/tailrace/request/method_order.py",
        "src/tailrace/request/method_order.py",
    ]
    done = run_methods(folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["package"] == str(folder / "src/tailrace/__init__.py")
    return result


def test_the_sampler_draws_by_the_methods(found):
    both = {"tokens": [0, 2, 4], "mask": [0, 2, 4]}
    assert found["kernels"] == found["reference"] == both
    assert found["gap"] == {"tokens": [0, 4], "mask": [0, 4]}
    assert found["step"]["mask"] == [0, 3, 6]
    assert found["greedy"] == {"tokens": [0], "mask": [0]}


def test_explain_has_sentences_about_the_methods(found):
    edit, refinement, why_not = found["sentences"]
    assert edit == "The step of token ids banned 4 tokens, which leaves 4."
    assert re.fullmatch(r"logit gap 2 kept 3 of 4 tokens, \d\d\.\d % of the mass\..*", refinement)
    assert why_not == "The step of token ids banned it."
    assert [text.split(" kept ")[0] for text in found["reordered"][1:3]] == ["logit gap 2", "top-k 2"]


def test_errors_name_the_fields(found):
    mask, mirostat, gap, step = found["errors"]
    assert {"logit_gap", "id_step"} < {*mask.removeprefix("return_sampling_mask has no effect without ").split(" or ")}
    assert mirostat.startswith("logit_gap has no effect with mirostat")
    assert gap == "logit_gap must be a number in [0, 1000000], got -1.0"
    assert step == "id_step must be an integer in [0, 2147483647], got 1.5"


def test_completions_and_generate_take_the_fields(found):
    http = found["http"]
    [choice] = http["completion"]["choices"]
    assert len(choice["token_ids"]) == 6
    assert choice["sampling_mask"] == http["rows"]
    assert all(token in kept for token, kept in zip(choice["token_ids"], http["rows"], strict=True))
    methods = [step["method"] for step in choice["explanations"][0]["edits"] + choice["explanations"][0]["refinements"]]
    assert methods == ["id_step", "logit_gap"]
    assert http["native"]["output_ids"] == choice["token_ids"]
    assert http["native"]["meta_info"]["output_token_sampling_mask"] == http["rows"]
    assert http["chat"] == 200
    assert http["refused"]["error"]["param"] == "logit_gap"


def test_the_schema_and_the_flags_have_the_fields(found):
    schemas = found["http"]["openapi"]["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest"):
        assert {"logit_gap", "id_step"} <= schemas[name]["properties"].keys()
    assert found["flags"] == {"logit_gap": 1.5, "id_step": 2}


def test_the_page_has_knobs_a_title_and_the_order(found):
    page = found["http"]["page"]
    knobs = {field["name"]: field for field in page["fields"]}
    assert knobs["logit_gap"]["kind"] == "truncation"
    assert knobs["logit_gap"]["voided_by"] == ["mirostat"]
    assert (knobs["id_step"]["kind"], knobs["id_step"]["method"]) == ("edit", "id_step")
    assert {"logit_gap", "id_step"} <= {*knobs["return_sampling_mask"]["needs"]}
    order = page["refinements"]
    assert order[order.index("top_k") + 1] == "logit_gap"
    assert page["titles"]["logit_gap"] == "Gap"
    assert "id_step" not in page["titles"]  # the page makes it from the name


def test_the_tables_have_the_fields(found):
    sampling, combinations = found["tables"]["sampling.md"], found["tables"]["api/combinations.md"]
    assert "| `id_step` | `id_step` | yes |\n" in sampling
    assert "| `top_k` | `top_k` | yes |\n| `logit_gap` | `logit_gap` | no: falls back |\n" in sampling
    field = (
        "| `logit_gap` | Keep logits at most this far below the largest | number in [0, 1000000] | 0 | sampler | yes |"
    )
    assert field in sampling
    assert "`logit_gap`" in combinations


def test_a_step_that_is_left_out_does_not_load(tmp_path: Path):
    copy_package(tmp_path)
    apply_guide(GUIDE.read_text(), tmp_path)
    order = tmp_path / "src/tailrace/request/method_order.py"
    order.write_text(re.sub(r'^    OrderEntry\("logit_gap".*\n', "", order.read_text(), flags=re.MULTILINE))
    done = run_methods(tmp_path)
    assert done.returncode == 1
    assert "different methods: ['logit_gap']" in done.stderr


def test_the_gpu_branch_keeps_what_the_reference_keeps(tmp_path: Path):
    copy_package(tmp_path)
    apply_guide(GUIDE.read_text(), tmp_path)
    apply_branch(GUIDE.read_text(), tmp_path)
    done = run_file(tmp_path, "added_kernel.py")
    assert done.returncode == 0, done.stderr
    kept = json.loads(done.stdout)
    assert kept["package"] == str(tmp_path / "src/tailrace/__init__.py")
    assert kept["gpu"] == kept["reference"]
    sizes = [len(ids) for ids in kept["reference"]]
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3] == 600
