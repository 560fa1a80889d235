"""Find, fetch and convert a model; say what a front end must know of it. Imports no torch: the one step that needs it, the
conversion of a GGUF file, runs in a process of its own."""

from tailrace.models.describe import defaults, describe
from tailrace.models.registry import Registry
from tailrace.models.resolve import LocalModel, resolve

__all__ = ["LocalModel", "Registry", "defaults", "describe", "resolve"]
