"""Logits and parameters of each row → token ids, for engines that keep the state of their requests themselves.

The kernels and the tokens are those of `Sampler`: a row's token is a function of its logits, its parameters, its seed
and its position. The kernels' form of a set of parameters is made once and kept.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, cast, overload

import numpy as np
import torch

from tailrace.errors import ParameterError
from tailrace.kernels.cpu.program import ProgramRecord
from tailrace.kernels.cpu.sample import PlainStep
from tailrace.kernels.plain import is_plain, make_plain
from tailrace.kernels.proposals import shown
from tailrace.kernels.rows import Rows
from tailrace.kernels.types import readable
from tailrace.params import FIELDS as DECLARED
from tailrace.params import NEUTRAL, SamplingParams, check_range
from tailrace.sampling.backends import BackendName, name_for
from tailrace.sampling.programs import RowProgram, program_of
from tailrace.sampling.row_values import PerRow, make_row_keys, on_host, parse_positions, parse_values
from tailrace.sampling.validation import check_kind, checked_size

RECORD_WORDS = ctypes.sizeof(ProgramRecord) // 8
MAX_KEPT = 4096  # sets of parameters whose programs are kept: 2.1 KB each


class RowFields(TypedDict, total=False):
    """Fields of `SamplingParams` that can differ per row. A missing field is neutral."""

    temperature: PerRow
    top_k: PerRow
    top_p: PerRow
    min_p: PerRow
    top_a: PerRow
    typical_p: PerRow
    epsilon_cutoff: PerRow
    eta_cutoff: PerRow
    top_n_sigma: PerRow


class CallFields(RowFields, total=False):
    """The fields per row, and those that are the same for all rows."""

    sampler_order: Sequence[str]


FIELDS = tuple(RowFields.__annotations__)
KNOWN = frozenset(FIELDS)
WHOLE = {name: (limits := DECLARED[name].range) is not None and limits.whole for name in FIELDS}


class Given(NamedTuple):
    """The checked arguments of a call besides the fields. position: int64 [R]. keys: int64 [R]. top: number of
    alternatives to report."""

    position: torch.Tensor
    keys: np.ndarray
    bitmask: torch.Tensor | None
    top: int | None


class RowLogprobs(NamedTuple):
    """Logprobs of R rows with n alternatives each: log-softmax of the model's own logits, in nats. If a row's id is −1,
    its values are undefined.

    - logprobs: float64 [R], of the sampled tokens.
    - ranks: int64 [R], 1 is the likeliest.
    - top_ids: int64 [R, n], the likeliest tokens in order.
    - top_logprobs: float64 [R, n].
    """

    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor


@overload
def sample(
    logits: torch.Tensor,
    *,
    seed: PerRow | None = None,
    position: PerRow | None = None,
    logprobs: None = None,
    bitmask: torch.Tensor | None = None,
    backend: Literal["cpu", "gpu"] | None = None,
    **fields: Unpack[CallFields],
) -> torch.Tensor: ...
@overload
def sample(
    logits: torch.Tensor,
    *,
    seed: PerRow | None = None,
    position: PerRow | None = None,
    logprobs: int,
    bitmask: torch.Tensor | None = None,
    backend: Literal["cpu", "gpu"] | None = None,
    **fields: Unpack[CallFields],
) -> tuple[torch.Tensor, RowLogprobs]: ...
def sample(
    logits: torch.Tensor,
    *,
    seed: PerRow | None = None,
    position: PerRow | None = None,
    logprobs: int | None = None,
    bitmask: torch.Tensor | None = None,
    backend: Literal["cpu", "gpu"] | None = None,
    **fields: Unpack[CallFields],
) -> torch.Tensor | tuple[torch.Tensor, RowLogprobs]:
    """Sample a token from each row of logits. Keeps nothing between calls.

        ids = sample(logits, temperature=[0.0, 0.8], top_p=0.95, seed=[1, 2], position=lengths)
        ids, found = sample(logits, temperature=0.7, top_k=torch.tensor([40, 0]), logprobs=5)

    `seed`, `position` and each field are a number for all rows, or R numbers as a list, an array or a tensor. Tensors
    may be on a GPU. Then the host waits for one copy of all of them; numbers on the host avoid this wait. A row with
    temperature 0 takes its largest logit, whatever the other fields are. A float32 tensor's 0.8 counts as 0.800000012.

    Args:
        logits: [R, V] of bf16, f16 or f32, rows may be strided; not modified.
        seed: 64-bit integers, the keys of the rows' noise. A single seed gives row r `request_key(seed, r)`, so that
            equal rows differ. None draws fresh ones.
        position: int in [0, 2^63 − 1]: the index of the sampled token in its sequence. Needed with `seed`: a seed has
            the same noise at the same position again.
        logprobs: number of alternatives to report besides each row's token. None: no report.
        bitmask: int32 [R, ⌈V / 32⌉], contiguous, on any device. Bit i of word i // 32 stands for token i; 0 bans the
            token.
        backend: None selects the kernels of the logits' device.
        fields: those of `CallFields`. Ranges and meaning are those of `SamplingParams`. `sampler_order` holds for all
            rows.

    Returns:
        int64 [R] on the device of the logits. A row that can't be sampled from (NaN, +inf, or nothing but −inf) has −1;
        other rows are not affected. With `logprobs` also a `RowLogprobs`.

    Raises:
        ParameterError: (a ValueError) with the field and the row. Also for logits of another dtype or shape.
    """
    check_kind("logits", logits, torch.Tensor)
    logits = make_plain("logits", logits)
    if logits.dim() != 2:
        raise ParameterError(f"logits must be [R, V], got {tuple(logits.shape)}", "logits")
    count, vocab = logits.shape
    top = None if logprobs is None else checked_size("logprobs", logprobs, 0, vocab)
    run = BACKENDS[name_for(backend, logits.device, tuple(BACKENDS))]
    order = fields.pop("sampler_order", ())
    if not isinstance(order, (list, tuple)):
        raise ParameterError(f"sampler_order must be a list of names, got {order!r:.100}", "sampler_order")
    order = tuple(order)
    if logits.is_cuda:
        moved = on_host({"seed": seed, "position": position, **fields})
        seed, position = moved.pop("seed"), moved.pop("position")
        fields = cast(CallFields, moved)
    place = parse_positions(position, seed is not None, count)
    given = Given(place, make_row_keys(seed, count), checked_bitmask(bitmask, count, vocab), top)
    return run(logits, given, programs_of(cast(dict[str, Any], fields), count, (order, top)))


def checked_bitmask(bitmask: torch.Tensor | None, count: int, vocab: int) -> torch.Tensor | None:
    """Raise ParameterError unless the bitmask has the bits of `count` rows."""
    shape = (count, -(-vocab // 32))
    if bitmask is not None and not (
        isinstance(bitmask, torch.Tensor)
        and is_plain(bitmask)
        and bitmask.dtype == torch.int32
        and bitmask.shape == shape
        and bitmask.is_contiguous()
    ):
        raise ParameterError(f"bitmask must be contiguous int32 {list(shape)}, got {shown(bitmask)}", "bitmask")
    return bitmask


def rows_of(count: int, position: torch.Tensor, bitmask: torch.Tensor | None) -> Rows:
    """Return the sampler's row for each row of logits, each with its own program."""
    each, start, none = get_columns(count)
    mask = None if bitmask is None else each
    return Rows(slot=each, source=each, position=position, start=start, draft=none, mask=mask, masks=bitmask)


@lru_cache(maxsize=64)
def get_columns(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return 0 … R − 1, 0 … R, and R times −1."""
    return torch.arange(count), torch.arange(count + 1), torch.full((count,), -1, dtype=torch.int64)


# ---- parameters → programs


class Kept(dict[tuple[Any, ...], RowProgram]):
    """Programs by the values of FIELDS, the order and the number of alternatives."""

    def __missing__(self, values: tuple[Any, ...]) -> RowProgram:
        if len(self) >= MAX_KEPT:
            self.clear()
        *given, order, top = values
        fields: dict[str, Any] = dict(zip(FIELDS, given, strict=True))
        for name, value in fields.items():
            check_range(name, value)
        if fields["temperature"] == 0.0:  # the other fields have no effect, and SamplingParams would refuse them
            fields = {"temperature": 0.0}
        self[values] = made = RowProgram.of(program_of(SamplingParams(**fields, sampler_order=order, logprobs=top)))
        return made


kept = Kept()


def programs_of(fields: dict[str, Any], count: int, shared: tuple[tuple[str, ...], int | None]) -> list[RowProgram]:
    """Return one program per row, or one for all rows. shared: the order, and the number of alternatives.

    Raises:
        ParameterError: a field does not exist, or a value is out of range.
    """
    if unknown := fields.keys() - KNOWN:
        raise ParameterError(f"fields must be out of {', '.join(FIELDS)}, got {min(unknown)}", min(unknown))
    given = [
        parse_values(name, fields[name], count, whole=WHOLE[name]) if name in fields else NEUTRAL[name]
        for name in FIELDS
    ]
    if not any(isinstance(column, list) for column in given):
        return [kept[(*given, *shared)]]
    spread = [column if isinstance(column, list) else [column] * count for column in (*given, *shared)]
    try:
        return [kept[row] for row in zip(*spread, strict=True)]
    except ParameterError as error:
        place = next(place for place, row in enumerate(zip(*spread, strict=True)) if row not in kept)
        raise ParameterError(f"{error} in row {place}", error.param) from None


# ---- the backends


def on_cpu(logits: torch.Tensor, given: Given, chosen: list[RowProgram]) -> Any:
    """Sample by one call of the CPU's kernels."""
    logits, count = readable(logits), logits.shape[0]
    bitmask = given.bitmask if given.bitmask is None else given.bitmask.cpu()
    each = b"".join([one.record for one in chosen])
    memory = np.frombuffer(bytearray(each if len(chosen) == count else each * count), dtype=np.int64)
    memory[::RECORD_WORDS] = given.keys  # the key is a record's first field
    out = PlainStep(logits, given.position, memory.ctypes.data, bitmask, given.top).run()
    ids = out.token_ids[:, 0]
    return ids if out.logprobs is None else (ids, row_logprobs(out.logprobs.numbers[:, 0], out.logprobs.ranks[:, 0]))


def row_logprobs(numbers: torch.Tensor, ranks: torch.Tensor) -> RowLogprobs:
    """Return the logprobs from the kernels' arrays: numbers float64 [R, 3 + n], ranks int64 [R, 1 + n]
    (kernels/output.py)."""
    return RowLogprobs(numbers[:, 0], ranks[:, 0], ranks[:, 1:], numbers[:, 3:])


def on_gpu(logits: torch.Tensor, given: Given, chosen: list[RowProgram]) -> Any:
    """Sample by a few launches. Nothing waits for the device."""
    from tailrace.sampling.backends.gpu_stateless import sample_rows  # imports Triton

    rows = rows_of(logits.shape[0], given.position, given.bitmask)
    ids, numbers, ranks = sample_rows(logits, rows, chosen, given.keys, given.top)
    return ids if given.top is None else (ids, row_logprobs(numbers, ranks))


BACKENDS: dict[BackendName, Any] = {"cpu": on_cpu, "gpu": on_gpu}
