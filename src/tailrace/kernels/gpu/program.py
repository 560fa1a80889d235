"""The programs of all slots on the device: one record per slot, whose fields the kernels read one by one."""

from __future__ import annotations

import struct

import triton
import triton.language as tl

from tailrace.kernels.program import MAX_STAGES, STAGE_NUMBERS, STAGES, Penalty, Program, Stage

MAX_EXEMPT = 8  # ids that XTC never removes

# Fields of a record, all int64; those marked "double" hold a double's bits.
KEY = tl.constexpr(0)
FLAGS = tl.constexpr(1)
WANTS = tl.constexpr(2)
SCALE = tl.constexpr(3)  # Double: 1 / mass temperature, by which the scan multiplies distances.
MASS_TEMPERATURE = tl.constexpr(4)  # Double. At 0 no stage needs the mass from the scan.
LOGPROBS = tl.constexpr(5)  # Number of alternatives to report; −1: no logprobs.
REPETITION = tl.constexpr(6)  # Double, as are the next two.
FREQUENCY = tl.constexpr(7)
PRESENCE = tl.constexpr(8)
REPEATS = tl.constexpr(9)  # what a draft adds, for the rows after it, to its number of repeats
COUNTS = tl.constexpr(10)  # and to the number that presence and frequency use
NUM_STAGES = tl.constexpr(11)
NUM_EXEMPT = tl.constexpr(12)
EXEMPT = tl.constexpr(13)
STAGE = tl.constexpr(13 + MAX_EXEMPT)  # kind, k, then a, b, c as doubles
STAGE_FIELDS = tl.constexpr(5)
FIELDS = 13 + MAX_EXEMPT + 5 * MAX_STAGES

# Flags (FLAGS).
GREEDY = tl.constexpr(1)
PLAIN = tl.constexpr(2)  # the stages are temperatures only
ALLOWED = tl.constexpr(4)  # some ids are banned
SHIFTED = tl.constexpr(8)  # some ids have numbers added
PENALISED = tl.constexpr(16)  # some ids have a tally
PROCESSED = tl.constexpr(32)  # reports describe the distribution drawn from
ENTROPY = tl.constexpr(64)
NUCLEUS = tl.constexpr(128)  # temperatures, then top-p as the last stage
SURVIVORS = tl.constexpr(256)  # the ids that survive are reported
TOUCHED = tl.constexpr(8 | 16)
EDITED = tl.constexpr(4 | 8 | 16)

# What the scan computes per block (WANTS).
MASS = tl.constexpr(1)  # `Σ e^d`, d = (l − the block's max) · scale.
MOMENTS = tl.constexpr(2)  # `Σ d e^d` and `Σ d² e^d`.
SIGMA = tl.constexpr(4)  # Number, Σ d and Σ d² of the finite logits, d = l − the block's max.
RAW = tl.constexpr(8)  # Maximum and mass before the edits, scale 1; with MOMENTS_RAW also moments.
MOMENTS_RAW = tl.constexpr(16)
SQUARES = tl.constexpr(32)  # with MASS, never with MOMENTS: Σ e^2d
RICH = tl.constexpr(2 | 4 | 8 | 16 | 32)  # anything besides maxima and mass


@triton.jit
def number(record, field):
    """Return a field that holds a double."""
    return tl.load(record + field).to(tl.float64, bitcast=True)


def has(program: Program) -> bool:
    """Return whether the kernels support all that a program asks for."""
    return (
        not program.unsupported
        and program.exempt.size <= MAX_EXEMPT
        and all(STAGES[stage.kind].on_gpu for stage in program.stages)
    )


def record(program: Program, edits: int, penalty: Penalty | None) -> list[int]:
    """Return the fields of a program. edits: the flags of the slot's edits. penalty: the penalty among them, if any."""
    wants, temperature = wanted(program)
    kinds = [stage.kind for stage in program.stages if stage.kind != "temperature"]
    nucleus = kinds == ["top_p"] and program.stages[-1].kind == "top_p"
    flags = (
        GREEDY.value * program.greedy
        | PLAIN.value * (not kinds)
        | NUCLEUS.value * nucleus
        | edits
        | PROCESSED.value * program.processed
        | ENTROPY.value * program.entropy
        | SURVIVORS.value * program.survivors
    )
    strength = (1.0, 0.0, 0.0) if penalty is None else (penalty.repetition, penalty.frequency, penalty.presence)
    exempt = [*program.exempt.tolist(), *[-1] * (MAX_EXEMPT - program.exempt.size)]
    assert has(program)
    fields = [
        program.key,
        flags,
        wants,
        bits(min(1.0 / temperature, 1e30) if temperature else 1.0),
        bits(temperature),
        -1 if program.logprobs is None else program.logprobs,
        *map(bits, strength),
        *program.weights,
        len(program.stages),
        program.exempt.size,
        *exempt,
    ]
    for stage in program.stages:
        fields += [STAGE_NUMBERS[stage.kind], stage.k, bits(stage.a), bits(stage.b), bits(stage.c)]
    return [*fields, *[0] * (FIELDS - len(fields))]


def idle() -> list[int]:
    """Return the cheapest record, for a slot whose rows are drawn elsewhere."""
    return [0, GREEDY.value, 0, 0, 0, -1, *[0] * (FIELDS - 6)]


def is_lean(fields: list[int]) -> bool:
    """Return whether nothing is edited and the scan computes only maxima and mass."""
    return not fields[FLAGS.value] & EDITED.value and not fields[WANTS.value] & RICH.value


def bits(value: float) -> int:
    """Return the bits of a double as an int64."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def wanted(program: Program) -> tuple[int, float]:
    """Return what the scan must compute, and the temperature of the mass (0: no stage needs the mass)."""
    wants, temperature = stages_want(program.stages)
    if (program.logprobs is not None or program.entropy) and not program.processed:
        wants |= RAW.value | MOMENTS_RAW.value * program.entropy
    return wants, temperature


def stages_want(stages: list[Stage] | tuple[Stage, ...]) -> tuple[int, float]:
    """Return what the stages need to know of the whole row, and the temperature of its mass (0: no stage needs it)."""
    wants = SIGMA.value if any(stage.kind == "top_n_sigma" for stage in stages) else 0
    temperature = 1.0
    for stage in stages:
        needs = STAGES[stage.kind].needs
        if needs in ("depth", "everything"):
            break
        if stage.kind == "temperature":
            temperature *= stage.a
        else:
            more = {"moments": MOMENTS.value, "squares": SQUARES.value}.get(needs, 0)
            return wants | MASS.value | more, temperature
    return wants, 0.0


def check(vocab: int) -> None:
    """Raise ValueError for a vocabulary so large that the fixed-point sums could overflow (candidates.UNIT)."""
    if vocab >= 1 << 19:
        raise ValueError(f"the GPU's kernels take vocabularies below {1 << 19:,}, got {vocab:,}")
