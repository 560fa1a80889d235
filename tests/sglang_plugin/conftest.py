"""SGLang's modules for a machine without a GPU: packages of vision, audio and CUDA that its imports name, and that no
sampler calls, are empty objects here."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

ABSENT = {"torchvision", "torchaudio", "sgl_kernel", "flashinfer"}


class Absent:
    """Finds them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None  # type: ignore

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        made = MagicMock(name=spec.name)
        made.__spec__, made.__path__, made.__name__, made.__version__ = spec, [], spec.name, "0"
        return made

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(Absent())  # type: ignore[arg-type]
