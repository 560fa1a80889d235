"""`tailrace doctor`: the state of this machine and this installation, as a list that a user can paste into a report.

It also works if only the library is installed. Exit code 1: something is missing without which no model can be served.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from tailrace.base.extras import EXTRAS, install_hint, list_missing_modules
from tailrace.cli.flags import add_config_flags, read_config
from tailrace.errors import MissingExtraError

FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")  # those that kernels use

Section = tuple[dict[str, Any], list[str]]  # what was found, and which essentials are missing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add flags for the form of the output and the cache folder."""
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    add_config_flags(parser, ("model",))


def run(args: argparse.Namespace) -> int:
    """Print every section. Return 1 if something essential is missing."""
    model = read_config(args).model
    cache, dtype = Path(model.cache_dir).expanduser(), model.dtype
    sections: dict[str, Callable[[], Section]] = {
        "versions": versions,
        "extras": extras,
        "machine": machine,
        "devices": devices,
        "kernels": kernels,
        "cache": lambda: cache_folder(cache, dtype),
    }
    found: dict[str, Any] = {}
    missing: list[str] = []
    for name, look in sections.items():
        found[name], lacks = look()
        missing += lacks
    found["missing"] = missing
    print(json.dumps(found, indent=2) if args.json else layout(found))
    return 1 if missing else 0


def versions() -> Section:
    """Find the versions of Python and of every package that tailrace or one of its extras requires."""
    found: dict[str, Any] = {"python": f"{platform.python_version()} ({sys.executable})"}
    found["tailrace"] = metadata.version("tailrace")
    missing = []
    for requirement in metadata.requires("tailrace") or ():
        package, of_extra = re.split(r"[^\w.-]", requirement)[0], "extra ==" in requirement
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "missing"
            if not of_extra:
                missing.append(f"package {package}")
    return found, missing


def extras() -> Section:
    """Find whether each extra is complete. serve is essential here, although the library works without it."""
    found = {
        extra: f"{', '.join(lacks)} missing" if (lacks := list_missing_modules(extra)) else "there" for extra in EXTRAS
    }
    needed = ("text", "grammar", "serve")
    return found, [f"extra serve: {install_hint('serve')}"] if any(map(list_missing_modules, needed)) else []


def machine() -> Section:
    """Describe the system, the processor and those of its features that kernels can use, and the memory."""
    info = cpu_info()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": platform.platform(),
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "cpu features": " ".join(feature for feature in FEATURES if feature in flags) or "unknown",
        "cores": cores,
        "memory": size(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
    }, []


def cpu_info() -> dict[str, str]:
    """Return the entries of the first processor in /proc/cpuinfo; {} if there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def devices() -> Section:
    """List the devices that torch can compute on."""
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways; this command reports them
        return {"torch": f"can't be imported: {error}"}, ["a torch that can be imported"]
    found: dict[str, Any] = {"cpu": f"{torch.get_num_threads()} threads"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = f"{properties.name}, {size(properties.total_memory)}"
    if not torch.cuda.is_available():
        found["cuda"] = "none"
    return found, []


def kernels() -> Section:
    """Find the state of each operation in each backend: present, absent, without its extra, or why it can't be
    loaded."""
    try:
        dispatch = import_module("tailrace.kernels.dispatch")
    except Exception as error:  # as above
        return {"kernels": f"can't be imported: {error}"}, ["the kernels"]
    found: dict[str, Any] = {}
    missing: list[str] = []
    for operation, (_, backends) in dispatch.OPERATIONS.items():
        states = {}
        for backend in dispatch.BACKENDS:
            states[backend] = "-"
            if backend in backends:
                try:
                    dispatch.find(operation, backend)
                    states[backend] = "yes"
                except MissingExtraError:
                    states[backend] = "extra missing"
                except Exception as error:  # as above
                    states[backend] = f"broken ({error})"
                    missing.append(f"kernel {operation} of backend {backend}")
        found[operation] = states
    return found, missing


def cache_folder(cache: Path, dtype: str) -> Section:
    """Describe the folder: whether it can be written, its contents, and whether the default model is ready."""
    try:
        from tailrace.models import DEFAULT_NAME
        from tailrace.models.default import default_gguf_path
        from tailrace.models.gguf import converted_folder
        from tailrace.models.store import MARKER, is_whole
    except MissingExtraError as error:
        return {"folder": f"can't be looked at: {error}"}, []
    parent = next(path for path in (cache, *cache.parents) if path.exists())
    writable = os.access(parent, os.W_OK)
    file = default_gguf_path(cache)
    converted = file.is_file() and is_whole(converted_folder(file, cache, (dtype, "dequantized"), DEFAULT_NAME))
    found: dict[str, Any] = {
        "folder": str(cache) if writable else f"{cache} (can't be written)",
        "default model": "ready" if converted else "downloaded" if file.is_file() else "fetched at first use",
    }
    for marker in sorted(cache.glob(f"*/*/{MARKER}")):
        files = [path for path in marker.parent.rglob("*") if path.is_file()]
        state = "" if is_whole(marker.parent) else " (damaged: it will be made anew)"
        found[str(marker.parent.relative_to(cache))] = size(sum(path.stat().st_size for path in files)) + state
    return found, [] if writable else [f"a cache folder that can be written: {cache}"]


def size(count: int) -> str:
    """Return a number of bytes as text."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def layout(found: dict[str, Any]) -> str:
    """Return the sections as aligned text."""
    lines: list[str] = []
    for section, entries in found.items():
        if section == "missing":
            continue
        lines.append(section)
        width = max(len(key) for key in entries)
        for key, value in entries.items():
            cells = "  ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
            lines.append(f"  {key:<{width}}  {cells}")
    missing = found["missing"]
    lines.append("missing: " + "; ".join(missing) if missing else "nothing essential is missing")
    return "\n".join(lines)
