"""The extras of the package: the modules that each brings, and one clear error if a module is missing.

The core (sampling, verification, kernels, text) needs torch, numpy and msgspec alone. Any other import goes through
`require_extra`. tests/test_extras.py compares this table with pyproject.toml, and every import of the package with
this table.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

from tailrace.errors import MissingExtraError

# extra → the modules that it brings, by the names they are imported by
EXTRAS: dict[str, tuple[str, ...]] = {
    "text": ("tokenizers", "jinja2"),
    "grammar": ("llguidance",),
    "serve": (
        "transformers",
        "huggingface_hub",
        "accelerate",
        "safetensors",
        "gguf",
        "filelock",
        "tqdm",
        "zmq",
        "starlette",
        "uvicorn",
        "httptools",
        "httpx",
        "prometheus_client",
        "pythonjsonlogger",
        "cryptography",
    ),
    "conform": ("tailrace_conform",),
    "otel": ("opentelemetry.sdk",),
    "gpu": ("triton",),
}
# extra → the folder and the wheel of a distribution of its own in this repository
DISTRIBUTIONS = {"conform": ("./packages/conform", "tailrace_conform-….whl")}


def require_extra(extra: str) -> AbstractContextManager[None]:
    """Wrap the imports of modules that an extra brings: `with require_extra("text"): import tokenizers`.

    Raises:
        MissingExtraError: (an ImportError) a module of the extra is not installed; the message says what installs it.
    """
    if missing := list_missing_modules(extra):
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(f"{', '.join(missing)} {verb} not installed, and needed here: {install_hint(extra)}")
    return nullcontext()


def install_hint(extra: str) -> str:
    """Return what installs an extra. No package index has tailrace: it comes from its source folder or a wheel."""
    folder, wheel = DISTRIBUTIONS.get(extra, (f"'.[{extra}]'", f"'tailrace-….whl[{extra}]'"))
    return f"pip install {folder} in the source folder of tailrace, or {wheel} with its wheel"


def list_missing_modules(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [module for module in EXTRAS[extra] if not is_installed(module)]


def is_installed(module: str) -> bool:
    """Return True if the module can be found. Only the packages around the module are imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
