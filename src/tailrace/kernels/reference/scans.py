"""Scans along sequences, in torch: token by token, all sequences of the batch side by side."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from tailrace.kernels.scans import ChannelScan, Convolution, HeadScan
from tailrace.kernels.walk import Walk

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def scan_sequences(memory: torch.Tensor, walk: Walk, step: Step, out: torch.Tensor) -> None:
    """Walk along all sequences: step(states [n, …], rows [n]) changes the states in place and returns out[rows]."""
    states = memory[walk.read]
    states[walk.fresh] = 0.0
    for moment in walk.moments:
        active = states[: len(moment.rows)]
        out[moment.rows] = step(active, moment.rows)
        if len(moment.kept):
            memory[moment.to] = active[moment.kept]


def scan_heads(given: HeadScan, memory: torch.Tensor, walk: Walk) -> torch.Tensor:
    heads = given.value.shape[1]
    group = heads // given.key.shape[1]
    q, k = (x.repeat_interleave(group, 1).float() for x in (given.query, given.key))
    if given.normalize:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, v, factor = q * given.scale, given.value.float(), given.factor.unsqueeze(-1)
    decay = given.decay.exp().view(len(v), heads, -1, 1)
    out = torch.empty_like(v)

    def step_state(state: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        now = k[rows].unsqueeze(-1)
        state *= decay[rows]
        value = v[rows] - (state * now).sum(-2) if given.delta else v[rows]
        state += now * (value * factor[rows]).unsqueeze(-2)
        return (state * q[rows].unsqueeze(-1)).sum(-2)

    scan_sequences(memory, walk, step_state, out)
    return (out if given.skip is None else out + v * given.skip[:, None]).to(given.dtype)


def scan_channels(given: ChannelScan, memory: torch.Tensor, walk: Walk) -> torch.Tensor:
    b, c, rate = given.b.float(), given.c.float(), given.rate.T
    inner = given.step * given.x.float()
    out = torch.empty_like(inner)

    def step_state(state: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        state *= (rate * given.step[rows].unsqueeze(-2)).exp()
        state += inner[rows].unsqueeze(-2) * b[rows].unsqueeze(-1)
        return (state * c[rows].unsqueeze(-1)).sum(-2)

    scan_sequences(memory, walk, step_state, out)
    return out


def convolve(given: Convolution, memory: torch.Tensor, walk: Walk) -> torch.Tensor:
    width = given.weight.shape[1]
    seen, left, to, before, fresh = walk.make_window(width)
    earlier = memory[before]
    earlier[fresh] = 0
    inputs = torch.cat([given.x, earlier.flatten(0, 1)])
    memory[to] = inputs[left]
    wide, taps = inputs.float(), given.weight.float()
    out = wide[seen[:, 0]] * taps[:, 0]
    for k in range(1, width):
        out += wide[seen[:, k]] * taps[:, k]
    if given.bias is not None:
        out += given.bias.float()
    out = out.to(given.x.dtype)
    return F.silu(out) if given.silu else out
