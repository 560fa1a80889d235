"""Aphrodite's own batch and Sampler on a CPU: no memory is pinned for a device that does not exist."""

import sys

import aphrodite.v1.worker.gpu_input_batch  # noqa: F401, so that all modules below exist
import pytest

from tailrace.integrations import aphrodite as plugin
from tailrace.integrations.aphrodite import sampler as ours

for name, module in list(sys.modules.items()):
    if name.startswith("aphrodite.") and getattr(module, "PIN_MEMORY", False):
        module.PIN_MEMORY = False

plugin.register()


@pytest.fixture(autouse=True)
def no_errors(request):
    """No error in tailrace hides behind Aphrodite's own sampler."""
    ours.errors.clear()
    yield
    assert not ours.errors or "planted" in request.node.name
