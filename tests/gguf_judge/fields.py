"""`python -m gguf_judge.fields SOURCE PYTHON [name…]`: takes each field of the tiny files away, changes it, and adds
each field that the package gguf can write, and compares what llama.cpp and tailrace make of it. SOURCE and PYTHON: as
of `python -m gguf_judge`.

A file is read wrongly if llama.cpp's logits follow the field and tailrace's do not, or the other way round. That
tailrace refuses a file is never wrong.
"""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, GGUFValueType, GGUFWriter, Keys

from gguf_judge.__main__ import differ, logits_here, run
from gguf_judge.models import VOCAB, make_folder
from gguf_judge.published import POPULAR
from models.gguf_writer import kinds_of, rewrite
from tailrace.errors import ModelLoadError
from tailrace.models.gguf_architectures import read_settings
from tailrace.models.gguf_fields import Fields

HERE = Path(__file__).parent
LENGTH = 100  # tokens: behind the windows of the tiny models
IDS = np.random.default_rng(0).integers(0, VOCAB - 3, LENGTH)
NEAR = 0.0003  # of log-probabilities; caps of 30 change small logits hardly
OFTEN = 2.5  # times the difference that llama.cpp's kernels make in the unchanged file
V = GGUFValueType
SAMPLES: dict[str, Any] = {"uint32": 3, "float32": 0.37, "bool": True, "string": "yarn", "array": [1, 2, 3, 4]}
TYPES = {
    "uint32": (V.UINT32,),
    "float32": (V.FLOAT32,),
    "bool": (V.BOOL,),
    "string": (V.STRING,),
    "array": (V.ARRAY, V.INT32),
}
# end of a model's name and a field's → why tailrace does not follow llama.cpp
KNOWN = {
    "phi3.attention.sliding_window": "llama.cpp leaves Phi 3's windows out, and the original has them",
    "gpt-oss.rope.freq_base": "llama.cpp rounds the range of YaRN, and the original does not",
    "deepseek2 lite: deepseek2.expert_group_count": "DeepSeek V2 ranks groups by one expert, llama.cpp by two",
    "rope.scaling.yarn_attn_factor": "the converter writes the original's factor, which llama.cpp does not read",
}
LENGTHS = "max_position_embeddings"  # no token depends on it
ADDED = re.compile(r"self\.add_(uint32|float32|bool|string|array)\(\s*Keys\.([\w.]+)\.format\(arch=")


def list_writable() -> dict[str, list[str]]:
    """Return the fields of architectures, without the architecture's name, and the kinds of values that the package
    gguf writes."""
    found: dict[str, list[str]] = {}
    for kind, path in ADDED.findall(inspect.getsource(GGUFWriter)):
        key: Any = Keys
        for name in path.split("."):
            key = getattr(key, name)
        found.setdefault(key.removeprefix("{arch}."), []).append(kind)
    return found


def change_value(value: Any) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, list):
        return [*value[1:], value[0]] if value[1:] != value[:-1] else [change_value(value[0]), *value[1:]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return "linear" if value == "yarn" else "yarn"
    return value * 2 if isinstance(value, int) else value * 1.5


def list_variants(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield changes of a file's fields, each with its name. None: the field is taken away."""
    reader = GGUFReader(file)
    start = f"{Fields(file).architecture}."
    own = {name: field for name, field in reader.fields.items() if name.startswith(start)}
    for name, field in own.items():
        yield f"without {name}", {name: None}
        yield f"other {name}", {name: (change_value(field.contents()), *kinds_of(field))}
    for key, kinds in list_writable().items():
        for kind in kinds:
            if f"{start}{key}" not in own:
                yield f"new {start}{key} ({kind})", {f"{start}{key}": (SAMPLES[kind], *TYPES[kind])}


def read_here(file: Path) -> dict[str, Any] | None:
    """Return the settings of a file; None if it is refused."""
    try:
        return read_settings(Fields(file))[1]
    except ModelLoadError:
        return None


def compare(file: Path, plain: dict[str, Any], before: torch.Tensor, near: float) -> str | None:
    """Return what is wrong with the reading of a variant, or None. plain, before: of the file without a change. near:
    the largest difference of equal logits."""
    settings, outcome = read_here(file), Path(f"{file}.npz")
    if settings is None or not outcome.exists():
        return None
    theirs = torch.from_numpy(np.load(outcome)["logits"])
    followed = differ(theirs, before)[0] > NEAR
    if settings | {LENGTHS: 0} == plain | {LENGTHS: 0}:
        return "llama.cpp uses it, and tailrace does not" if followed else None
    try:
        error, others = differ(logits_here(file, "dequantized", IDS), theirs)
    except Exception as failure:  # refused later, by the size of a tensor
        return None if isinstance(failure, ModelLoadError) else f"{type(failure).__name__}: {failure!s:.80}"
    return f"other logits than llama.cpp's ({error:.0e}, {others:.0%})" if error > near else None


def judge_file(model: str, file: Path, python: str, ids: Path) -> list[str]:
    """Return the variants of a model's file that are read wrongly, each with the reason."""
    run_there = [python, str(HERE / "greedy.py"), str(ids), "0"]
    subprocess.run([*run_there, str(file)], check=True)
    plain, before = read_here(file), Path(f"{file}.npz")
    if plain is None or not before.exists():
        return [f"{file.name}: refused, or llama.cpp does not run it"]
    logits, wrong = torch.from_numpy(np.load(before)["logits"]), list[str]()
    near = max(NEAR, OFTEN * differ(logits_here(file, "dequantized", IDS), logits)[0])
    variants = {file.with_suffix(f".{number}.gguf"): each for number, each in enumerate(list_variants(file))}
    for path, (_, changes) in variants.items():
        rewrite(file, path, changes)
    subprocess.run([*run_there, *(str(path) for path in variants if read_here(path) is not None)], check=True)
    for path, (name, changes) in variants.items():
        known = any(f"{model}: {field}".endswith(end) for field in changes for end in KNOWN)
        if not known and (reason := compare(path, plain, logits, near)) is not None:
            wrong.append(f"{name}: {reason}")
        for left in path.parent.glob(f"{path.stem}.*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    return wrong


def main(source: str, python: str, names: list[str]) -> int:
    """Exit code 1 if a field is read wrongly."""
    found, work = [], Path(tempfile.mkdtemp(prefix="gguf-fields-"))
    try:
        ids = work / "ids.npy"
        np.save(ids, IDS)
        folders = {name: work / f"m{number}" for number, name in enumerate(names or POPULAR)}
        for name, folder in folders.items():
            make_folder(name, folder)
        run(python, str(HERE / "converter.py"), source, "f32", *map(str, folders.values()))
        for name, folder in folders.items():
            wrong = judge_file(name, Path(f"{folder}.f32.gguf"), python, ids)
            print(f"{name}: {len(wrong)} wrong", *wrong, sep="\n  ", flush=True)
            found += wrong
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
