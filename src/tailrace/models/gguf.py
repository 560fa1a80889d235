"""A GGUF file → a folder in Hugging Face's layout, converted once and kept in the cache.

`python -m tailrace.models.convert` does the work in a process of its own, so that this process never imports torch.
This file recognises GGUF files but does not read them.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from tailrace.errors import ModelLoadError
from tailrace.models.child import run_child
from tailrace.models.progress import Progress
from tailrace.models.store import make_once

FORMAT = 1  # of converted folders; raising it makes older ones unused
MAGIC = b"GGUF"
SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
SAMPLE_BYTES = 1 << 20  # read at both ends for the key: headers and metadata are at the front
Precision = tuple[str, str]  # the dtype, and what becomes of matrices: "dequantized", "quantized" or a type of blocks


def convert(path: Path, cache_dir: Path, precision: Precision, progress: Progress, label: str) -> Path:
    """The converted folder of a GGUF file, made the first time. Later calls take milliseconds.

    Raises:
        ModelLoadError: the file is not GGUF, is one part of several, or transformers can't convert it.
    """
    check_gguf(path)
    target = converted_folder(path, cache_dir, precision, label)
    return make_once(
        target,
        lambda folder: run_converter(path, folder, precision, progress, label),
        on_wait=lambda: progress.stage(f"waiting for another process that converts {label}"),
    )


def check_gguf(path: Path) -> None:
    """Raise ModelLoadError unless `path` is one whole GGUF file."""
    if SHARD.search(path.name):
        raise ModelLoadError(
            f"{path.name} is one part of a split GGUF file: join them first (llama-gguf-split --merge)"
        )
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise ModelLoadError(f"{path} can't be read: {error}") from error
    if magic != MAGIC:
        raise ModelLoadError(f"{path} is a file but not a GGUF file; a model is a GGUF file, a folder or a hub id")


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
    """Convert in a child process, show its progress, raise what it reports. The child ends when this process does."""
    progress.stage(f"converting {label} to {' '.join(precision)} (once)")
    problem = run_child("tailrace.models.convert", [str(path), str(folder), *precision], progress, label)
    if problem is not None:
        raise ModelLoadError(f"{path} can't be converted: {problem}")
    return {"source": str(path), "dtype": precision[0], "weights": precision[1], "format": FORMAT}
