"""The programs of all slots on the device: what pick reads."""

from __future__ import annotations

import torch

from tailrace.kernels.gpu.refine import HAVE
from tailrace.kernels.gpu.scan import MASS, SIGMA
from tailrace.kernels.program import MAX_STAGES, STAGES, Program, Stage

COMPLETES = ("min_p", "top_k", "top_n_sigma")  # after these the survivors are all there, and their mass is summed


class Table:
    """One entry per slot; written when a request joins.

    key int64 [S]; greedy int32 [S]; wants int32 [S], of the scan; mass_temperature float64 and scale float32 [S], its inverse;
    num_stages int32 [S]; kinds and ks int32, knobs float64 [S, MAX_STAGES].
    """

    def __init__(self, num_slots: int, device: torch.device | str) -> None:
        self.key = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.greedy = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.wants = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.mass_temperature = torch.zeros(num_slots, dtype=torch.float64, device=device)
        self.scale = torch.ones(num_slots, dtype=torch.float32, device=device)
        self.num_stages = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.kinds = torch.zeros((num_slots, MAX_STAGES), dtype=torch.int32, device=device)
        self.ks = torch.zeros((num_slots, MAX_STAGES), dtype=torch.int32, device=device)
        self.knobs = torch.zeros((num_slots, MAX_STAGES), dtype=torch.float64, device=device)

    def write(self, slot: int, program: Program) -> None:
        """The slot is taken by a program that `has` all."""
        wants, temperature = wanted(program.stages)
        n = len(program.stages)
        self.key[slot], self.greedy[slot], self.num_stages[slot] = program.key, int(program.greedy), n
        self.wants[slot], self.mass_temperature[slot] = wants, temperature
        self.scale[slot] = min(1.0 / temperature, 1e30) if temperature else 1.0
        self.kinds[slot, :n] = torch.tensor([STAGES.index(stage.kind) for stage in program.stages], dtype=torch.int32)
        self.ks[slot, :n] = torch.tensor([stage.k for stage in program.stages], dtype=torch.int32)
        self.knobs[slot, :n] = torch.tensor([stage.a for stage in program.stages], dtype=torch.float64)


def has(program: Program) -> bool:
    """Whether the kernels have all that a program without edits asks for."""
    return not program.rare and all(stage.kind in HAVE for stage in program.stages)


def wanted(stages: tuple[Stage, ...] | list[Stage]) -> tuple[int, float]:
    """What the scan must find so that the stages can decide, and the temperature of the mass (0: there is none)."""
    wants = SIGMA.value if any(stage.kind == "top_n_sigma" for stage in stages) else 0
    temperature = 1.0
    for stage in stages:
        if stage.kind in COMPLETES:
            break
        if stage.kind == "temperature":
            temperature *= stage.a
        else:
            return wants | MASS.value, temperature
    return wants, 0.0
