"""Fixtures that every room's tests may use."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; servers that tests start inherit it

import pytest
import torch

if not torch.cuda.is_available():  # before Triton is imported: the GPU's kernels then run on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")

from tailrace import kernels
from tailrace.base.memory_trim import freeze_objects
from tailrace.config import ModelConfig
from tailrace.models import resolve

if TYPE_CHECKING:
    from tailrace.runners.base import ModelRunner

pytest_plugins = ["budget", "cpu_seconds", "examples", "few"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-update", action="store_true", help="write tests/api/golden anew instead of comparing")


def pytest_collection_finish() -> None:
    """What is imported and collected stays: the garbage collector need not walk through it again and again."""
    freeze_objects()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """One thread again, whatever the test before has asked for: tensors are small here, and a second thread's waiting
    costs ten times what it brings. Tests of threads ask for more."""
    torch.set_num_threads(1)
    kernels.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The default model's folder in the user's own cache: fetched and converted by the first test that asks."""
    return resolve(ModelConfig(), progress=False).folder


@pytest.fixture(scope="session")
def reference_of(model_folder: Path) -> Callable[[str], Any]:
    """transformers' default model in a dtype, loaded once."""
    from transformers import AutoModelForCausalLM

    return cache(lambda dtype: AutoModelForCausalLM.from_pretrained(model_folder, dtype=getattr(torch, dtype)).eval())


@pytest.fixture(scope="session")
def runner_of(model_folder: Path) -> Callable[[str], ModelRunner]:
    """Our runner of the default model in a dtype, loaded once. Who makes an engine of it ends the one before."""
    from tailrace.runners import load_runner

    return cache(lambda dtype: load_runner(ModelConfig(dtype=dtype, threads=1), model_folder, block_size=16))


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A function that finds a TCP port of 127.0.0.1 nobody listens on."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    return find
