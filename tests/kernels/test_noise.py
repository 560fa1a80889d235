"""Philox against the vectors of its authors, Gumbel noise against its law, and both backends against each other."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.backends import DEVICES
from tailrace import kernels
from tailrace.kernels.dispatch import find

# From the Random123 distribution's known-answer tests: counter, key, output of philox4x32-10.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
@pytest.mark.parametrize("backend", ["reference", "gpu"])
def test_philox_known_answers(backend, counter, key, expected):
    packed = key[0] | key[1] << 32
    signed = packed - 2**64 if packed >= 2**63 else packed
    device = DEVICES[backend]
    out = find("philox", backend)(
        torch.tensor([signed], device=device), tuple(torch.tensor([c], device=device) for c in counter)
    )
    assert tuple(int(word) for word in out) == expected


@pytest.mark.few(8)
@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1, -(2**63), 123456789012345])
@pytest.mark.parametrize("position", [0, 1, 2**31, 2**40 + 5])
def test_backends_agree(key, position):
    ids = torch.cat([torch.arange(5000), torch.tensor([2**31, 2**32 - 1])])
    expected = find("gumbel", "reference")(key, position, ids, 3)
    exact = find("words", "reference")(key, position, 3, ids)
    for backend in ("cpu", "gpu"):
        there = ids.to(DEVICES[backend])
        torch.testing.assert_close(
            find("gumbel", backend)(key, position, there, 3).cpu(), expected, rtol=1e-6, atol=1e-6
        )
        assert torch.equal(find("words", backend)(key, position, 3, there).cpu(), exact)
        assert find("gumbel", backend)(key, position, there[:0], 3).shape == (0,)


def test_every_part_of_the_counter_matters_and_neighbours_do_not():
    ids = torch.arange(100)
    base = kernels.gumbel(5, 7, ids, 0)
    assert torch.equal(kernels.gumbel(5, 7, ids.flip(0), 0).flip(0), base)
    assert torch.equal(kernels.gumbel(5, 7, ids[40:41], 0), base[40:41])
    for other in ((6, 7, 0), (5, 8, 0), (5, 7, 1), (5 + 2**32, 7, 0), (5, 7 + 2**32, 0)):
        assert not (kernels.gumbel(other[0], other[1], ids, other[2]) == base).any()


def tail_score(noise: torch.Tensor) -> float:
    """z-score of the number of draws above the level that one in 2^20 exceeds."""
    level = -math.log(-math.log1p(-(2.0**-20)))
    expected = noise.numel() * 2.0**-20
    return (int((noise > level).sum()) - expected) / math.sqrt(expected)


def test_gumbel_has_its_law_tails_included():
    noise = torch.cat([kernels.gumbel(seed, 11, torch.arange(2**20), 0) for seed in range(8)])
    assert noise.isfinite().all()
    u = torch.exp(-torch.exp(-noise.double()))  # its distribution function: uniform
    counts = torch.histc(u.float(), 256, 0, 1).double()
    expected = noise.numel() / 256
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi2 - 255) < 5 * math.sqrt(2 * 255)  # alpha about 6e-7
    assert abs(tail_score(noise)) < 5


def test_coarse_uniforms_are_caught():
    """The planted fault: 16-bit uniforms (as 24-bit ones do further out) have no tail."""
    u = (torch.randint(0, 2**16, (2**22,), generator=torch.Generator().manual_seed(0)).double() + 0.5) / 2**16
    assert abs(tail_score(-torch.log(-torch.log(u)))) > 1.9
    assert not (-torch.log(-torch.log(u)) > -math.log(-math.log1p(-(2.0**-20)))).any()
