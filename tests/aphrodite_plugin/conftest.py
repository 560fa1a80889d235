"""Aphrodite's own batch and Sampler on a CPU: no memory is pinned for a device that does not exist."""

import sys

import aphrodite.v1.worker.gpu_input_batch  # noqa: F401, so that all modules below exist

for name, module in list(sys.modules.items()):
    if name.startswith("aphrodite.") and getattr(module, "PIN_MEMORY", False):
        module.PIN_MEMORY = False
