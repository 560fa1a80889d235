"""The parts of a sampling program: edits of single entries, and stages over the tokens that survive.

They are plain data that every backend reads. sampling/methods makes a program from a request's parameters; the backends
carry it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

if TYPE_CHECKING:
    from tailrace._cpu import Counts, Said


@dataclass(frozen=True, slots=True)
class Mask:
    """An edit that sets tokens whose bit is 0 to −inf. words: uint32 [⌈V / 32⌉]; bit i of word i // 32 stands for token
    i.
    """

    words: np.ndarray


@dataclass(frozen=True, slots=True)
class Ban:
    """An edit that sets tokens to −inf. ids: uint32 [n], ascending, distinct."""

    ids: np.ndarray


@dataclass(frozen=True, slots=True)
class Add:
    """An edit that adds values, float32 [n], to the logits of ids, uint32 [n], ascending, distinct."""

    ids: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class Penalty:
    """An edit that penalises the tokens of `counts`, in float32; each operation is rounded on its own.

    If a token was repeated, its logit l becomes l / repetition for l > 0, else l · repetition. If it then counts c > 0
    times, frequency · c + presence is subtracted. fixed: the counts don't grow with the sequence.
    """

    counts: Counts
    repetition: float
    frequency: float
    presence: float
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Lift:
    """An edit that turns the logits l of ids, uint32 [n], ascending, distinct, into l + |l| · factor. float32, each
    operation is rounded on its own."""

    ids: np.ndarray
    factor: float


@dataclass(frozen=True, slots=True)
class Dense:
    """An edit by any function of the whole row, float32 [V]. The function changes the row in place or returns another
    one.

    No kernel supports it: such a row falls back to the reference sampler.
    """

    apply: Callable[[torch.Tensor], torch.Tensor | None]


Edit = Mask | Ban | Add | Penalty | Lift | Dense

StageKind = Literal[
    "temperature",
    "dynamic_temperature",
    "quadratic",
    "min_p",
    "top_k",
    "top_p",
    "top_a",
    "typical",
    "epsilon",
    "eta",
    "top_n_sigma",
    "xtc",
    "p_less",
    "tail_free",
    "top_h",
    "min_k",
    "mirostat",
    "mirostat_1",
    "adaptive",
    "tournament",
]
Needs = Literal["nothing", "depth", "mass", "squares", "moments", "everything"]


@dataclass(frozen=True, slots=True)
class StageInfo:
    """The properties of a kind of stage.

    needs: what the stage must know of the row before it can decide; csrc/sample/program.h explains each.
    on_gpu: the GPU's kernels have the stage. Without it, rows that ask for the stage fall back.
    slow: the stage may take milliseconds if many tokens are left."""

    needs: Needs
    on_gpu: bool = True
    slow: bool = False


# In the order of their numbers. csrc/sample/program.h has the same kinds and needs, kernels/gpu/refine.py the same
# numbers. Both are compared with this table when they are loaded.
STAGES: dict[StageKind, StageInfo] = {
    "temperature": StageInfo("nothing"),
    "dynamic_temperature": StageInfo("everything"),
    "quadratic": StageInfo("everything"),
    "min_p": StageInfo("depth"),
    "top_k": StageInfo("depth"),
    "top_p": StageInfo("mass"),
    "top_a": StageInfo("mass"),
    "typical": StageInfo("moments"),
    "epsilon": StageInfo("mass"),
    "eta": StageInfo("moments"),
    "top_n_sigma": StageInfo("depth"),
    "xtc": StageInfo("everything"),
    "p_less": StageInfo("squares"),
    "tail_free": StageInfo("depth", on_gpu=False, slow=True),
    "top_h": StageInfo("depth", on_gpu=False),
    "min_k": StageInfo("depth", on_gpu=False),
    "mirostat": StageInfo("mass", on_gpu=False),
    "mirostat_1": StageInfo("depth", on_gpu=False),
    "adaptive": StageInfo("everything", on_gpu=False, slow=True),
    "tournament": StageInfo("everything", on_gpu=False, slow=True),
}
STAGE_NUMBERS: dict[StageKind, int] = {kind: number for number, kind in enumerate(STAGES)}
MAX_EDITS, MAX_STAGES = 16, 32  # per program; csrc/sample/program.h


@dataclass(frozen=True, slots=True)
class Tournament:
    """The tournament of SynthID (sampling/watermark.py): `depth` layers, whose bits are keyed by the last `context`
    tokens.

    A token is not marked if the same context also occurs within the `recent` places before. keys, table: int64 [depth]
    and the sampling table, uint8, in transformers' scheme; otherwise `key` decides.
    """

    depth: int
    context: int
    recent: int
    key: int = 0
    keys: np.ndarray | None = None
    table: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One refinement: its kind and its parameters, as csrc/sample/refine.cpp and the files next to it read them."""

    kind: StageKind
    k: int = 0
    a: float = 0.0
    b: float = 0.0
    c: float = 0.0
    tournament: Tournament | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """The parts of a request's sampling that stay the same while the request has its slot.

    - stages: in the request's order.
    - exempt: uint32 ids that XTC never removes.
    - logprobs: how many alternatives are reported; None: no logprobs.
    - processed: logprobs describe the distribution that tokens are drawn from.
    - entropy: the entropy is reported.
    - unsupported: no kernels have all that the request needs. Its rows fall back to the reference sampler.
    - stateful: a stage has a state (`Programs.write_state`) that follows the drawn tokens.
    - counts: gets `weights` (repeated, counted) for each draft while the drafts after it are verified.
    - said: gets the draft itself.
    - survivors: the ids that are left at the end are reported.
    """

    key: int
    stages: Sequence[Stage]
    exempt: np.ndarray
    logprobs: int | None
    greedy: bool
    processed: bool
    entropy: bool
    unsupported: bool
    stateful: bool
    counts: Counts | None
    weights: tuple[int, int]
    said: Said | None = None
    survivors: bool = False


def ascending(ids: Iterable[int] | np.ndarray) -> np.ndarray:
    """Return token ids as a program has them: uint32, ascending, distinct."""
    return np.unique(np.asarray(ids if isinstance(ids, np.ndarray) else list(ids)).astype(np.uint32))


def mask_of(ids: np.ndarray, vocab_size: int) -> Mask:
    """Return the mask that lets only these ids through."""
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[ids] = 1
    return Mask(np.packbits(bits, bitorder="little").view(np.uint32))
