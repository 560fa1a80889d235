"""A GGUF file → a folder in Hugging Face's layout, converted once and kept in the cache. A model in several files
(NAME-00001-of-00003.gguf) is read as one; any of them names it.

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

FORMAT = 7  # of converted folders; raising it makes older ones unused
MAGIC = b"GGUF"
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
SAMPLE_BYTES = 1 << 20  # read at both ends for the key: headers and metadata are at the front
Precision = tuple[str, str]  # the dtype, and what becomes of matrices: "dequantized", "quantized" or a type of blocks


def convert_gguf(path: Path, cache_dir: Path, precision: Precision, progress: Progress, label: str) -> Path:
    """The converted folder of a GGUF file, made the first time. Later calls take milliseconds.

    Raises:
        ModelLoadError: the file is not GGUF, another part of it is missing, or transformers can't convert it.
    """
    check_gguf(path)
    for part in list_parts(path):
        check_gguf(part)
    target = converted_folder(path, cache_dir, precision, label)
    return make_once(
        target,
        lambda folder: run_converter(path, folder, precision, progress, label),
        on_wait=lambda: progress.start_stage(f"waiting for another process that converts {label}"),
    )


def check_gguf(path: Path) -> None:
    """Raise ModelLoadError unless `path` is a GGUF file."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise ModelLoadError(f"{path} can't be read: {error}") from error
    if magic != MAGIC:
        refuse_stand_in(path)
        raise ModelLoadError(f"{path} is a file but not a GGUF file; a model is a GGUF file, a folder or a hub id")


def name_model(path: Path) -> str:
    """Return the name of the model in a file, or in several: without the part's number."""
    return SHARD.sub("", path.name) if count_parts(path)[1] > 1 else path.stem


def count_parts(path: Path) -> tuple[int, int]:
    """Return which part of a model a file is by its name, from 1 on, and how many parts there are."""
    named = SHARD.search(path.name)
    return (int(named[1]), int(named[2])) if named else (1, 1)


def list_parts(path: Path) -> list[Path]:
    """Return the files that the model of `path` is split into, the first one first.

    Raises:
        ModelLoadError: the name says that there are several, and one is not beside it.
    """
    number, parts = count_parts(path)
    if parts < 2:
        return [path]
    if not 1 <= number <= parts:
        raise ModelLoadError(f"{path}: its name says that it is part {number} of {parts}")
    files = [path.with_name(SHARD.sub(f"-{each:05}-of-{parts:05}.gguf", path.name)) for each in range(1, parts + 1)]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelLoadError(
            f"{path} is part {number} of {parts} of a model, and {missing[0]}{others} not found beside it: put all "
            "parts into one folder"
        )
    return files


def converted_folder(path: Path, cache_dir: Path, precision: Precision, label: str) -> Path:
    """The folder of the conversion. Its name depends on each file's size, time and both ends, precision and FORMAT."""
    dtype = precision[0] if precision[1] == "dequantized" else "-".join(precision)
    digest = hashlib.blake2b(digest_size=8)
    for part in list_parts(path):
        stat = part.stat()
        digest.update(f"{FORMAT} {dtype} {stat.st_size} {stat.st_mtime_ns}".encode())
        with part.open("rb") as file:
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
