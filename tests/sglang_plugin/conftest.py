"""SGLang on a machine without a GPU: its own settings, requests, batches and sampler in this process, and whole servers
in others (stand_ins/ has what they miss)."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

HERE = Path(__file__).parent
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
sys.path.insert(0, str(HERE / "stand_ins"))
if not any(type(finder).__name__ == "Absent" for finder in sys.meta_path):
    import importlib.util

    spec = importlib.util.spec_from_file_location("stand_ins", HERE / "stand_ins" / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))

from tiny_model import make_model  # noqa: E402


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny model with a tokenizer of bytes."""
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    return str(folder)


@pytest.fixture(scope="session")
def python_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH of a server. If tailrace is not installed, a folder declares its entry point."""
    parts = [str(HERE / "stand_ins"), *sys.path[1:]]
    if not any(one.name == "tailrace" for one in entry_points(group="sglang.srt.plugins")):
        folder = tmp_path_factory.mktemp("installed")
        (info := folder / "tailrace-0.dist-info").mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tailrace\nVersion: 0\n")
        (info / "entry_points.txt").write_text(
            "[sglang.srt.plugins]\ntailrace = tailrace.integrations.sglang:register\n"
        )
        parts.append(str(folder))
    return os.pathsep.join(part for part in parts if part)


@pytest.fixture(autouse=True)
def no_settings():
    """Each test begins without a server's settings."""
    from sglang.srt.runtime_context import reset_context

    yield
    reset_context()
