"""A GGUF file → a folder in Hugging Face's layout, converted once and kept in the cache.

`python -m tailrace.models.convert` does the work in a process of its own, so that this process never imports torch.
This file recognises GGUF files but does not read them.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from tailrace.base.stand_ins import refuse_stand_in
from tailrace.errors import ModelLoadError
from tailrace.models.child import run_child
from tailrace.models.progress import Progress
from tailrace.models.store import make_once

FORMAT = 5  # of converted folders; raising it makes older ones unused
MAGIC = b"GGUF"
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
JOIN = "join all parts first (llama-gguf-split --merge FIRST_PART JOINED)"
SAMPLE_BYTES = 1 << 20  # read at both ends for the key: headers and metadata are at the front
Precision = tuple[str, str]  # the dtype, and what becomes of matrices: "dequantized", "quantized" or a type of blocks


def convert_gguf(path: Path, cache_dir: Path, precision: Precision, progress: Progress, label: str) -> Path:
    """The converted folder of a GGUF file, made the first time. Later calls take milliseconds.

    Raises:
        ModelLoadError: the file is not GGUF, is one part of several, or transformers can't convert it.
    """
    check_gguf(path)
    target = converted_folder(path, cache_dir, precision, label)
    return make_once(
        target,
        lambda folder: run_converter(path, folder, precision, progress, label),
        on_wait=lambda: progress.start_stage(f"waiting for another process that converts {label}"),
    )


def check_gguf(path: Path) -> None:
    """Raise ModelLoadError unless `path` is one whole GGUF file."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise ModelLoadError(f"{path} can't be read: {error}") from error
    if magic != MAGIC:
        refuse_stand_in(path)
        raise ModelLoadError(f"{path} is a file but not a GGUF file; a model is a GGUF file, a folder or a hub id")
    if (part := SHARD.search(path.name)) and int(part[2]) > 1:
        raise ModelLoadError(split_error(path, int(part[1]), int(part[2])))


def split_error(path: Path, number: int, parts: int) -> str:
    """What to do with one part of a model, and which parts are missing."""
    names = [SHARD.sub(f"-{each:05}-of-{parts:05}.gguf", path.name) for each in range(1, parts + 1)]
    missing = [name for name in names if not (path.parent / name).exists()]
    others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    lacks = f"; {missing[0]}{others} not found beside it" if missing else ""
    return f"{path} is part {number} of {parts} of a GGUF file{lacks}: {JOIN}"


def converted_folder(path: Path, cache_dir: Path, precision: Precision, label: str) -> Path:
    """The folder of the conversion. Its name depends on the file's size, time and both ends, precision and FORMAT."""
    dtype = precision[0] if precision[1] == "dequantized" else "-".join(precision)
    stat = path.stat()
    digest = hashlib.blake2b(f"{FORMAT} {dtype} {stat.st_size} {stat.st_mtime_ns}".encode(), digest_size=8)
    with path.open("rb") as file:
        digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(0, stat.st_size - SAMPLE_BYTES))
        digest.update(file.read(SAMPLE_BYTES))
    readable = re.sub(r"[^\w.-]+", "-", label)
    return cache_dir / "models" / f"{readable}-{dtype}-{digest.hexdigest()}"


def run_converter(path: Path, folder: Path, precision: Precision, progress: Progress, label: str) -> dict[str, Any]:
    """Convert in a child process, show its progress, and raise its errors. The child ends when this process does."""
    progress.start_stage(f"converting {label} to {' '.join(precision)} (once)")
    problem = run_child("tailrace.models.convert", [str(path), str(folder), *precision], progress, label)
    if problem is not None:
        raise ModelLoadError(f"{path} can't be converted: {problem}")
    return {"source": str(path), "dtype": precision[0], "weights": precision[1], "format": FORMAT}
