"""Weights lie in large pages, where the system has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tailrace.kernels.cpu.memory import lasting

SMAPS, SWITCH = Path("/proc/self/smaps"), Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_at(address: int) -> list[str]:
    """Of the mapping that has the address (proc_pid_smaps(5))."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            begin, end = (int(part, 16) for part in name.split("-"))
            inside = begin <= address < end
        elif inside and name == "VmFlags:":
            return rest.split()
    raise AssertionError("no mapping has the address")


@pytest.mark.skipif(not (SMAPS.exists() and SWITCH.exists()), reason="the system has no large pages, or does not say")
def test_large_pages_are_asked_for():
    found = lasting(64 << 20, torch.uint8)
    middle = found.data_ptr() + found.nbytes // 2
    assert "hg" in flags_at(middle)
    assert "hg" not in flags_at(torch.empty(64 << 20, dtype=torch.uint8).data_ptr() + (32 << 20))


@pytest.mark.parametrize("elements", [0, 1, 1 << 19, (2 << 20) + 1])
def test_sizes_without_a_whole_page_are_plain_memory(elements: int):
    found = lasting(elements, torch.float32)
    assert found.shape == (elements,)
    assert found.fill_(1).sum() == elements
