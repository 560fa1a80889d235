"""`python -m gguf_judge SOURCE PYTHON [name…]`: judges the tiny models, and writes the table of docs/gguf.md if all are
judged. SOURCE: llama.cpp's tree; PYTHON: of an environment with llama-cpp-python, transformers and sentencepiece.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gguf_judge.models import MODELS, VOCAB, make_folder
from runners.quantized_file import convert_here
from tailrace.config import ModelConfig
from tailrace.models.gguf_fields import Fields
from tailrace.runners.flat_batch import FlatTokens
from tailrace.runners.load_transformers import load_transformers

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "gguf.md"
BEGIN, END = "<!-- judged: begin -->", "<!-- judged: end -->"
LENGTH = 4200  # tokens: behind the original context of every scaling
NEAR = 0.005  # of log-probabilities; a router's near tie may fall to either side, and changes tokens behind it
MOST = 0.9  # of the tokens
ALIKE = 0.4  # the share of likeliest tokens that blocks change: Q8_0 alone changes a quarter of a random mixture's
IDS = np.random.default_rng(0).integers(0, VOCAB - 3, LENGTH)


def run(*command: str) -> None:
    """Run a program of the other environment; what it says is for the reader."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout.strip() or "", done.stderr.strip().splitlines()[-1] if done.returncode else "", flush=True)


def logits_here(file: Path, weights: str, ids: np.ndarray = IDS) -> torch.Tensor:
    """Of the file, converted and served here."""
    folder = file.with_suffix(f".{weights}")
    folder.mkdir()
    with contextlib.redirect_stderr(io.StringIO()):
        convert_here(file, folder, ("float32", weights))
    config: Any = ModelConfig(model=str(file), weights=weights, dtype="float32", device="cpu")  # type: ignore[arg-type]
    runner, blocks, flat = load_transformers(config, folder, block_size=16), -(-len(ids) // 16), FlatTokens()
    runner.allocate_states(1, len(ids), 0)
    runner.allocate(blocks)
    flat.add(ids.tolist(), len(ids))
    flat.wanted = list(range(len(ids)))
    return runner.forward(flat.make_batch(np.arange(blocks, dtype=np.int32)[None], 16, slots=[0])).float()


def differ(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """The largest difference of a token's log-probabilities, of most tokens; other likeliest tokens' share."""
    gap = (one.log_softmax(-1) - other.log_softmax(-1)).abs().amax(-1)
    return float(gap.quantile(MOST)), float((one.argmax(-1) != other.argmax(-1)).float().mean())


def judge(file: Path, blocks: Path, wanted: torch.Tensor) -> list[str]:
    """The cells of a row: floats, blocks, llama.cpp."""
    cells = []
    for one, weights in ((file, "dequantized"), (blocks, "quantized")):
        try:
            error, others = differ(logits_here(one, weights), wanted)
            good = error < NEAR if one is file else others < ALIKE
            cells.append("equal" if good else f"WRONG ({error:.0e}, {others:.0%})")
        except Exception as failure:  # whatever stands in the way is the outcome
            cells.append(f"WRONG ({type(failure).__name__}: {failure!s:.80})")
    theirs = Path(f"{file}.npy")
    if not theirs.exists():
        return [*cells, "does not run it"]
    error, others = differ(torch.from_numpy(np.load(theirs)), wanted)
    return [*cells, "equal" if error < NEAR else f"differs ({others:.0%})"]


def main(source: str, python: str, names: list[str]) -> int:
    """Exit code 1 if a file becomes another model."""
    rows, work = [], Path(tempfile.mkdtemp(prefix="gguf-judge-"))
    try:
        ids, folders, wanted = work / "ids.npy", {}, {}
        np.save(ids, IDS)
        for number, name in enumerate(names or MODELS):
            folders[name] = work / f"m{number}"  # llama.cpp goes by some models' names
            model = make_folder(name, folders[name])
            with torch.no_grad():
                wanted[name] = model(torch.from_numpy(IDS)[None]).logits[0]
        for kind in ("f32", "q8_0"):
            run(python, str(HERE / "converter.py"), source, kind, *map(str, folders.values()))
        for name, folder in folders.items():
            file, blocks = Path(f"{folder}.f32.gguf"), Path(f"{folder}.q8_0.gguf")
            run(python, str(HERE / "llama.py"), str(ids), str(file))
            architecture = Fields(file).architecture
            rows.append(f"| `{architecture}` | {name} | {' | '.join(judge(file, blocks, wanted[name]))} |")
            print(rows[-1], flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if not names:
        write_table(rows)
    return int(any("WRONG" in row for row in rows))


def write_table(rows: list[str]) -> None:
    """Put the rows into the page."""
    head = [
        "| architecture | tiny model | floats | blocks (Q8_0) | llama.cpp itself |",
        "| --- | --- | --- | --- | --- |",
    ]
    before, rest = PAGE.read_text().split(BEGIN)
    table = "\n".join([*head, *rows])
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
