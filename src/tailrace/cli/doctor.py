"""tailrace doctor: what is here and what is missing. Exit code 1 if something essential is."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from tailrace import __version__
from tailrace.config import load
from tailrace.models import default

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "msgspec", "pyzmq", "starlette", "uvicorn", "gguf", "accelerate")
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    problems: list[str] = []
    line("tailrace", f"{__version__} on Python {platform.python_version()}, {platform.platform()}")
    for package in PACKAGES:
        try:
            line(package, metadata.version(package))
        except metadata.PackageNotFoundError:
            line(package, "MISSING")
            problems.append(f"the package {package} is not installed")
    line("cpu", cpu())
    line("devices", devices())
    problems += kernels()
    cache()
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if problems else 0


def line(name: str, value: str) -> None:
    """One row of the report."""
    print(f"{name:<14}{value}")


def cpu() -> str:
    """Model, usable cores, and the instruction sets our kernels know."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    lines = dict(part.split(":", 1) for part in info.splitlines() if ":" in part)
    fields = {name.strip(): value.strip() for name, value in lines.items()}
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    has = [feature for feature in FEATURES if feature in flags]
    cores = len(os.sched_getaffinity(0))
    return f"{fields.get('model name', platform.machine())}, {cores} cores, {' '.join(has) or 'no vector sets we know'}"


def devices() -> str:
    """Where a model can run."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(["cpu", *(f"cuda:{i} ({name})" for i, name in enumerate(gpus))])


def kernels() -> list[str]:
    """Operations per backend, and what is wrong with the compiled ones."""
    from tailrace.kernels.dispatch import BACKENDS, OPERATIONS

    for name, operations in BACKENDS.items():
        holes = [operation for operation in OPERATIONS if operation not in operations]
        line(f"kernels/{name}", "all" if not holes else f"all but {', '.join(holes)}")
    try:
        native = importlib.import_module("tailrace._cpu")
    except ImportError as error:
        return [f"the C++ kernels are not built ({error}); run make install"]
    line("bf16 products", "in hardware" if native.has_bf16() else "emulated")
    return []


def cache() -> None:
    """The cache folder, and what is in it."""
    folder = Path(load().model.cache_dir)
    line("cache", str(folder))
    for kind in ("default", "converted"):
        for path in sorted(folder.glob(f"{kind}/*")):
            if path.suffix != ".lock":
                size = sum(f.stat().st_size for f in path.rglob("*")) if path.is_dir() else path.stat().st_size
                line("", f"{kind}/{path.name}  {size / 2**20:.0f} MiB")
    here = (folder / "default" / Path(default.MEMBER).name).is_file()
    line("default model", f"{default.NAME}, {'fetched' if here else 'not fetched yet'}")
