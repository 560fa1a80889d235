"""exllamav3's own `Job` and `Sampler` on a CPU: empty objects replace its compiled kernels, and its package is not
initialised, which would load models' code."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from unittest.mock import MagicMock

KERNELS = ("exllamav3.ext", "exllamav3.exllamav3_ext")


class Empty(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> MagicMock:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


found = find_spec("exllamav3")
assert found is not None
package = ModuleType("exllamav3")
package.__path__ = list(found.submodule_search_locations or ())
sys.modules["exllamav3"] = package
for name in KERNELS:
    sys.modules[name] = Empty(name)
