"""The programs of all slots on the device: one record per slot, read by the kernels field by field."""

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
SCALE = tl.constexpr(3)  # double: 1 / mass temperature, of what the scan weighs
MASS_TEMPERATURE = tl.constexpr(4)  # double; 0: no stage needs the mass of the scan
LOGPROBS = tl.constexpr(5)  # alternatives to report; −1: no logprobs
REPETITION = tl.constexpr(6)  # double, and so the next two
FREQUENCY = tl.constexpr(7)
PRESENCE = tl.constexpr(8)
REPEATS = tl.constexpr(9)  # how often a draft counts as repeated, and for presence and frequency, for the rows after it
COUNTS = tl.constexpr(10)
NUM_STAGES = tl.constexpr(11)
NUM_EXEMPT = tl.constexpr(12)
EXEMPT = tl.constexpr(13)
STAGE = tl.constexpr(13 + MAX_EXEMPT)  # kind, k, then a, b, c as doubles
STAGE_FIELDS = tl.constexpr(5)
FIELDS = 13 + MAX_EXEMPT + 5 * MAX_STAGES

# of FLAGS
GREEDY = tl.constexpr(1)
PLAIN = tl.constexpr(2)  # nothing but temperatures
ALLOWED = tl.constexpr(4)  # some ids may not come
SHIFTED = tl.constexpr(8)  # to some something is added
PENALISED = tl.constexpr(16)  # some have a tally
PROCESSED = tl.constexpr(32)  # what is reported is the distribution drawn from
ENTROPY = tl.constexpr(64)
NUCLEUS = tl.constexpr(128)  # temperatures, and behind them top-p alone
SURVIVORS = tl.constexpr(256)  # the ids that are left at the end are reported
TOUCHED = tl.constexpr(8 | 16)
EDITED = tl.constexpr(4 | 8 | 16)

# of WANTS: what the scan finds per block
MASS = tl.constexpr(1)  # Σ e^d, d = (l − the block's max) · scale
MOMENTS = tl.constexpr(2)  # Σ d e^d and Σ d² e^d
SIGMA = tl.constexpr(4)  # number, Σ d and Σ d² of the finite ones, d = l − the block's max
RAW = tl.constexpr(8)  # maximum and mass before the edits, scale 1; with MOMENTS_RAW its moments
MOMENTS_RAW = tl.constexpr(16)
SQUARES = tl.constexpr(32)  # with MASS, and never with MOMENTS: Σ e^2d
RICH = tl.constexpr(2 | 4 | 8 | 16 | 32)  # more than maxima and mass


@triton.jit
def number(record, field):
    """A field that holds a double."""
    return tl.load(record + field).to(tl.float64, bitcast=True)


def has(program: Program) -> bool:
    """Whether the kernels have all that a program's stages ask for."""
    return (
        not program.unsupported
        and program.exempt.size <= MAX_EXEMPT
        and all(STAGES[stage.kind].on_gpu for stage in program.stages)
    )


def record(program: Program, edits: int, penalty: Penalty | None) -> list[int]:
    """The fields. edits: the flags of what there is to edit. penalty: of the edits."""
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
    """The record of a slot whose rows are drawn elsewhere: the cheapest there is."""
    return [0, GREEDY.value, 0, 0, 0, -1, *[0] * (FIELDS - 6)]


def is_lean(fields: list[int]) -> bool:
    """Nothing is edited, and the scan finds maxima and mass alone."""
    return not fields[FLAGS.value] & EDITED.value and not fields[WANTS.value] & RICH.value


def bits(value: float) -> int:
    """Those of a double, as an int64."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def wanted(program: Program) -> tuple[int, float]:
    """What the scan must find, and the temperature of the mass (0: no stage needs it)."""
    wants, temperature = stages_want(program.stages)
    if (program.logprobs is not None or program.entropy) and not program.processed:
        wants |= RAW.value | MOMENTS_RAW.value * program.entropy
    return wants, temperature


def stages_want(stages: list[Stage] | tuple[Stage, ...]) -> tuple[int, float]:
    """What the stages must know of the whole row in order to decide; 0: nothing of its mass."""
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
    """Raise ValueError for a vocabulary whose masses the fixed-point sums can't hold (candidates.UNIT)."""
    if vocab >= 1 << 19:
        raise ValueError(f"the GPU's kernels take vocabularies below {1 << 19:,}, got {vocab:,}")
