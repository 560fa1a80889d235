"""A GGUF file becomes a Hugging Face folder, once: dequantised by transformers, kept in the user's cache folder.

The folder is made under a temporary name and renamed when it is whole and on disk, under a lock; so two starts at once make one, and
a kill halfway leaves only a temporary folder that the next start removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError

FORMAT = 1  # counted up when the conversion changes: older folders are then made anew
WORK = "tmp-"


def convert(file: Path, config: ModelConfig, progress: bool) -> Path:
    """The converted folder of a GGUF file, made if it is not there. Keyed by the file's place, size and time of change.

    Raises:
        ModelLoadError: the file can't be converted; the message ends with what transformers said.
    """
    file = file.resolve()
    stat = file.stat()
    identity = f"{file}|{stat.st_size}|{stat.st_mtime_ns}|{config.dtype}|{FORMAT}"
    root = Path(config.cache_dir) / "converted"
    target = root / f"{file.stem}-{config.dtype}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if target.is_dir():
            return target
        work = root / f"{WORK}{target.name}"
        shutil.rmtree(work, ignore_errors=True)  # what a killed conversion left; the lock says nobody is at it
        if progress:
            print(f"converting {file.name} to {config.dtype}, once", file=sys.stderr, flush=True)
        run(file, work, config.dtype, progress)
        sync(work)
        work.rename(target)
    return target


def run(file: Path, work: Path, dtype: str, progress: bool) -> None:
    """Convert in a process of its own, so that this one stays light and a crash there is an error here."""
    task = json.dumps({"file": str(file), "folder": str(work), "dtype": dtype, "progress": progress and sys.stderr.isatty()})
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.models.dequantise", task],
        stderr=None if progress else subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(work, ignore_errors=True)
        said = (done.stdout or done.stderr or "").strip().splitlines()
        raise ModelLoadError(f"{file}: {said[-1] if said else f'conversion ended with code {done.returncode}'}")


def sync(folder: Path) -> None:
    """To disk, so that the rename can't survive a power cut that the contents don't."""
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
