"""One step's rows, frozen: which logits row belongs to which slot and position. Built once, at the start of the step.

Symbols: N requests in the step, S slots, K drafts at most, R = Σ(kᵢ + 1) rows, L logits rows, V vocabulary.
Plain decoding verifies zero drafts: every request has one row, R = N. All tensors are contiguous, on the CPU. Numbers
out of range are found by their readers.

(More than 300 lines: three ways to make the one record, each with its checks.)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, repeat
from operator import add
from typing import Any, get_args

import torch

from tailrace.errors import ParameterError
from tailrace.kernels.plain import is_plain
from tailrace.kernels.proposals import Proposals, check_distributions, given, of_request, shown
from tailrace.request.options import Rule

RULES: tuple[Rule, ...] = get_args(Rule)
PLACES = {rule: place for place, rule in enumerate(RULES)}
TRUTH = frozenset({bool})
DTYPES = {"q": torch.int64, "i": torch.int32}


@dataclass(frozen=True, slots=True)
class Guidance:
    """The rows' classifier-free guidance: before any edit their logits become l_u + scale · (l_c − l_u).

    l_c is the row of logits at `source`, l_u the one at `companion` (sampling/guidance.py).

    - companion: int64 [R], the other row of logits; −1: the row is not guided.
    - scale: float32 [R], ≥ 0; ignored for rows that are not guided.

    Raises:
        ParameterError: (a ValueError) a tensor is not of this dtype, of one dimension, contiguous and on the CPU.
    """

    companion: torch.Tensor
    scale: torch.Tensor

    def __post_init__(self) -> None:
        for name, part, dtype in (("companion", self.companion, torch.int64), ("scale", self.scale, torch.float32)):
            check_column(name, part, dtype)

    @staticmethod
    def of(companion: Sequence[int], scale: Sequence[float]) -> Guidance:
        """Make the guidance of these rows.

        Raises:
            ParameterError: the lists are not whole numbers and as many numbers.
        """
        n = length("companion", companion)
        try:
            given = list(scale)
            if not TRUTH.isdisjoint(map(type, given)):
                raise TypeError("a truth value is none")
            scales = torch.tensor(given, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ParameterError(f"scale must hold {n} numbers: {error}", "scale") from error
        if scales.shape != (n,):
            raise ParameterError(f"scale must hold {n} numbers, got {tuple(scales.shape)}", "scale")
        return Guidance(tensor(whole("companion", companion, n)), scales)

    def part(self, rows: slice) -> Guidance:
        """Return the guidance of these rows alone."""
        return Guidance(self.companion[rows], self.scale[rows])


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one step.

    - slot: int64 [R], the row's entry in Slots.
    - source: int64 [R], the row's logits. Several rows may share them (n > 1 right after the shared prefill).
    - position: int64 [R], index within prompt + output of the token that this row decides. It is the noise's counter.
    - start: int64 [N + 1]. Request i owns rows start[i] … start[i + 1] − 1: its drafts in order, then the bonus row.
    - draft: int64 [R], the draft token that this row verifies; −1 on bonus rows.
    - width: K + 1.
    - rule: int32 [N], how drafts are verified, as an index of RULES; None: all exact.
    - proposals: float32 [R, V], the distributions that the drafts were drawn from. Or one entry per request: [k, V] for
      its k drafts, None if they are one-hot. None: all are one-hot.
    - mask: int64 [R], the row's place in `masks`; −1: no mask. None: no row has one.
    - masks: int32 [M, ⌈V / 32⌉], contiguous. Bit i of word i // 32 stands for token i. If it is 0, the logit becomes
      −inf before any other edit.
    - counted: each position follows the tokens that the slot has counted (sampling/slots.py). `position` is ignored.
    - guidance: of all R rows; None: no row is guided.
    - position_there: int64 [R], on the device of the logits. It replaces `position`, which then only has to be valid,
      for engines whose host does not know how many drafts were accepted.

    Raises:
        ParameterError: (a ValueError) a tensor is not of this dtype, contiguous and on the CPU.
    """

    slot: torch.Tensor
    source: torch.Tensor
    position: torch.Tensor
    start: torch.Tensor
    draft: torch.Tensor
    width: int = 1
    rule: torch.Tensor | None = None
    proposals: Proposals | None = None
    mask: torch.Tensor | None = None
    masks: torch.Tensor | None = None
    counted: bool = False
    guidance: Guidance | None = None
    position_there: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name, part in (
            ("slot", self.slot),
            ("source", self.source),
            ("position", self.position),
            ("start", self.start),
            ("draft", self.draft),
        ):
            check_column(name, part, torch.int64)
        if (rule := self.rule) is not None and (
            getattr(rule, "dtype", None) is not torch.int32
            or not is_plain(rule)
            or not rule.is_contiguous()
            or not rule.is_cpu
        ):
            raise ParameterError(f"rule must be contiguous int32 [N] on the CPU, got {shown(rule)}", "rule")
        if self.proposals is not None:
            object.__setattr__(self, "proposals", given(self.proposals))
        if self.guidance is not None and not isinstance(self.guidance, Guidance):
            raise ParameterError(f"guidance must be a Guidance, got {shown(self.guidance)}", "guidance")
        if (there := self.position_there) is not None and (
            getattr(there, "dtype", None) is not torch.int64 or not is_plain(there) or there.shape != self.slot.shape
        ):
            raise ParameterError(
                f"position_there must be int64 {list(self.slot.shape)}, got {shown(there)}", "position_there"
            )

    @staticmethod
    def plain(
        slot: Sequence[int],
        source: Sequence[int],
        position: Sequence[int] | None = None,
        *,
        mask: Sequence[int] | None = None,
        masks: torch.Tensor | None = None,
        guidance: Guidance | None = None,
    ) -> Rows:
        """Make the rows of a step without drafts: one per request.

        position: None uses the number of tokens that each slot has counted; then a slot may occur only once. The same
        position has the same noise again, in this step or a later one.

        Raises:
            ParameterError: the arguments are not lists of whole numbers of one length.
        """
        n = length("slot", slot)
        slots = tensor(whole("slot", slot, n))
        return Rows(
            slot=slots,
            source=tensor(whole("source", source, n)),
            position=slots if position is None else tensor(whole("position", position, n)),
            counted=position is None,
            start=torch.arange(n + 1),
            draft=torch.full((n,), -1, dtype=torch.int64),
            mask=None if mask is None else tensor(whole("mask", mask, n)),
            masks=masks,
            guidance=guidance,
        )

    @staticmethod
    def drafted(
        slot: Sequence[int],
        position: Sequence[int] | None,
        drafts: Sequence[Sequence[int]],
        rule: Sequence[Rule] | Rule | None = None,
        proposals: torch.Tensor | Sequence[torch.Tensor | None] | None = None,
        *,
        source: Sequence[int] | None = None,
        mask: Sequence[int] | None = None,
        masks: torch.Tensor | None = None,
        guidance: Guidance | None = None,
        trusted: bool = False,
    ) -> Rows:
        """Make the rows of a step that verifies drafts.

        (More than six parameters: the columns of Rows, most of them optional.)

        Args:
            slot, position: of each request. The position is that of its first row. None as for `plain`.
            drafts: of each request, possibly none.
            rule: of each request, or one for all. None is "exact" for all.
            proposals: as in Rows. Bonus rows are ignored.
            source: the logits row of each request's first row. Its other rows follow. None: row r has logits row r.
            mask, masks, guidance: of each row, as in Rows.
            trusted: the proposals are known to be distributions. They are not checked, which would read all of them.

        Raises:
            ParameterError: the lists of whole numbers have different lengths, a rule is unknown, or a draft's proposal
                holds NaN, a negative number, or does not add up to 1 within 1e-3.
        """
        n = length("drafts", drafts)
        try:
            counts = [len(d) + 1 for d in drafts]
        except TypeError as error:
            raise ParameterError(f"drafts must hold {n} lists of token ids: {error}", "drafts") from error
        start = array("q", accumulate(counts, initial=0))
        owners = chain.from_iterable(map(repeat, whole("slot", slot, n), counts))
        first = start[:-1] if source is None else whole("source", source, n)
        draft = tensor(whole("drafts", list(chain.from_iterable((*d, -1) for d in drafts)), start[-1]))
        dense = None if proposals is None else given(proposals)
        if dense is not None and trusted is not True:
            check_distributions(dense, draft, start)
        slots = tensor(array("q", owners))
        return Rows(
            slot=slots,
            source=spread(first, counts),
            position=slots if position is None else spread(whole("position", position, n), counts),
            start=tensor(start),
            draft=draft,
            width=max(counts, default=1),
            rule=None if rule is None else rules(rule, n),
            proposals=dense,
            mask=None if mask is None else tensor(whole("mask", mask, start[-1])),
            masks=masks,
            counted=position is None,
            guidance=guidance,
        )

    def on_host(self) -> Rows:
        """Return the rows with their positions on the host. It waits for the device if they are there."""
        if self.position_there is None:
            return self
        return replace(self, position=self.position_there.cpu(), position_there=None)

    @property
    def num_requests(self) -> int:
        """N."""
        return self.start.numel() - 1

    @property
    def num_rows(self) -> int:
        """R."""
        return self.slot.numel()

    @property
    def owners(self) -> torch.Tensor:
        """int64 [N], the slot of each request."""
        return self.slot if self.width == 1 else self.slot[self.start[:-1]]

    def of(self, request: int) -> Rows:
        """Return the rows of one request."""
        first, last = int(self.start[request]), int(self.start[request + 1])
        part = slice(first, last)
        return Rows(
            slot=self.slot[part],
            source=self.source[part],
            position=self.position[part],
            start=torch.tensor([0, last - first]),
            draft=self.draft[part],
            width=last - first,
            rule=None if self.rule is None else self.rule[request : request + 1],
            proposals=None if (q := self.proposals_of(request)) is None else (q,),
            mask=None if self.mask is None else self.mask[part],
            masks=self.masks,
            guidance=None if self.guidance is None else self.guidance.part(part),
            position_there=None if self.position_there is None else self.position_there[part],
        )

    def proposals_of(self, request: int) -> torch.Tensor | None:
        """Return the distributions [k, V] that this request's drafts were drawn from; None: they are one-hot."""
        return of_request(self.proposals, self.start, request)

    def rule_of(self, request: int) -> Rule:
        """Return the rule by which this request's drafts are verified."""
        return "exact" if self.rule is None else RULES[int(self.rule[request])]


def check_column(name: str, part: torch.Tensor | Any, dtype: torch.dtype) -> None:
    """Raise ParameterError unless `part` holds one number per row (or request), as the kernels read them."""
    if (
        getattr(part, "dtype", None) is not dtype
        or not is_plain(part)
        or part.dim() != 1
        or not part.is_contiguous()
        or not part.is_cpu
    ):
        raise ParameterError(f"{name} must be contiguous {str(dtype)[6:]} [n] on the CPU, got {shown(part)}", name)


def spread(first: Iterable[int], counts: Iterable[int]) -> torch.Tensor:
    """Return first[i], first[i] + 1, …, counts[i] numbers for each i: int64 [Σ counts]."""
    firsts = list(first)
    return tensor(array("q", chain.from_iterable(map(range, firsts, map(add, firsts, counts)))))


def tensor(numbers: array[int]) -> torch.Tensor:
    """Return a tensor over the same memory. Making a tensor from a list takes two to five times as long."""
    dtype = DTYPES[numbers.typecode]
    return torch.frombuffer(numbers, dtype=dtype) if numbers else torch.empty(0, dtype=dtype)


def whole(name: str, values: Sequence[int] | Any, n: int) -> array[int]:
    """Return a copy of a sequence, an array or a tensor as int64.

    Raises:
        ParameterError: it does not hold n whole numbers of 64 bits.
    """
    try:
        of_array = getattr(values, "tolist", None)
        given = list(values if of_array is None else of_array())
        if not TRUTH.isdisjoint(map(type, given)):
            raise TypeError("a truth value is none")
        made = array("q", given)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ParameterError(f"{name} must hold {n} whole numbers: {error}", name) from error
    if len(made) != n:
        raise ParameterError(f"{name} must hold {n} whole numbers, got {len(made)}", name)
    return made


def length(name: str, values: Sequence[Any]) -> int:
    """Return the length of a list. ParameterError: it is no list."""
    try:
        return len(values)
    except (TypeError, RuntimeError) as error:  # torch's for a tensor without sizes
        raise ParameterError(f"{name} must be a list, got {values!r:.100}", name) from error


def rules(names: Sequence[str], n: int) -> torch.Tensor:
    """Return the rules as indices of RULES, int32 [n].

    Raises:
        ParameterError: a rule is unknown, or there are not n.
    """
    if isinstance(names, str):
        return rules([names] * n, n)
    if length("rule", names) != n:
        raise ParameterError(f"rule must hold {n} names out of {', '.join(RULES)}, got {len(names)} names", "rule")
    try:
        return tensor(array("i", map(PLACES.__getitem__, names)))
    except (KeyError, TypeError) as error:
        unknown = next(name for name in names if name not in RULES)
        raise ParameterError(f"rule must hold {n} names out of {', '.join(RULES)}, got {unknown!r}", "rule") from error
