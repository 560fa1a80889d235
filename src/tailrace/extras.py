"""The extras of the package: which modules each brings, and one clear error where one is missing.

The core (sampling, verification, kernels, text) needs torch, numpy and msgspec alone. Whatever imports more stands
behind `needs`. tests/test_extras.py holds this table against pyproject.toml and every import of the package against
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
    ),
    "conform": ("httpx",),
    "otel": ("opentelemetry.sdk",),
    "gpu": ("triton",),
}


def needs(extra: str) -> AbstractContextManager[None]:
    """Stands around the imports of what an extra brings: `with needs("text"): import tokenizers`.

    Raises:
        MissingExtraError: (an ImportError) a module of the extra is not installed; the message says what installs it.
    """
    if missing := absent(extra):
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(
            f"{', '.join(missing)} {verb} not installed, and needed here: pip install 'tailrace[{extra}]'"
        )
    return nullcontext()


def absent(extra: str) -> list[str]:
    """The modules of an extra that are not installed."""
    return [module for module in EXTRAS[extra] if not installed(module)]


def installed(module: str) -> bool:
    """The module can be found. It is not imported, but for the packages that it lies in."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
