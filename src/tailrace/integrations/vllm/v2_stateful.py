"""Mirostat and adaptive-p in vLLM's V2 runner: what they have learnt stays on the device, as the tokens do.

The request's slot has the methods after the stateful one, and a slot of `fronts` has those before it. The stateful
method stands between them, in torch. Its formulas are those of sampling/methods/mirostat.py and adaptive_p.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch

from tailrace.integrations.vllm.v2_history import make_column
from tailrace.kernels.constants import ADAPTIVE_PEAK, ADAPTIVE_SHARPNESS, ADAPTIVE_WIDTH, TOLERANCE
from tailrace.kernels.transfer import there
from tailrace.params import FIELDS, SamplingParams
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.methods.mirostat import CANDIDATES
from tailrace.sampling.pipeline import refinements_of
from tailrace.sampling.sampler import BackendName
from tailrace.sampling.slot import Slot

LN2 = math.log(2.0)
# so that a front lists its tokens
LISTED = {"logprobs": 0, "logprobs_mode": "processed", "return_sampling_mask": False}
MANY = 8192  # states; beyond it the older ones of ended requests are dropped. Some requests are preempted and come back


class Split(NamedTuple):
    """A stateful request's refinements. learner: its method, a key of LEARNERS. front, tail: the fields that the parts
    before and after it have at neutral values. begin: the state's first values."""

    learner: str
    front: dict[str, Any]
    tail: dict[str, Any]
    begin: dict[str, float]


def split_refinements(params: SamplingParams) -> Split | None:
    """Return the parts before and after the stateful method; None if the request has no such method."""
    methods = refinements_of(params)
    for place, method in enumerate(methods):
        if method.begin is not None:
            front, tail = (list_neutral([one.name for one in part]) for part in (methods[:place], methods[place + 1 :]))
            learner = f"mirostat {params.mirostat}" if method.name == "mirostat" else method.name
            return Split(learner, front, tail, method.begin(params))
    return None


def list_neutral(kept: Collection[str]) -> dict[str, Any]:
    """Return the fields of all refinements but these with their neutral values. The dynamic temperature reads the plain
    one."""
    read = {*kept, *(["temperature"] if "dynatemp" in kept else [])}
    return {name: field.default for name, field in FIELDS.items() if field.refinement and field.refinement not in read}


class Learner(NamedTuple):
    """A stateful method on R rows.

    - apply(logits, state, params): float32 [R, V], −inf for removed tokens → the logits that the next methods see, and
      those whose probabilities the method learns from.
    - learn(state, logprob, params): the next state. logprob: float64 [R, 1], of the drawn tokens.

    A state is a dict of float64 [R, 1], as `Refinement.begin` names its values.
    """

    apply: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    learn: Callable[..., dict[str, torch.Tensor]]


def read_column(params: Sequence[SamplingParams], name: str, device: torch.device) -> torch.Tensor:
    """Return a field of these requests, float64 [R, 1]."""
    return make_column([getattr(one, name) for one in params], device, torch.float64)


def keep_unsurprising(
    logits: torch.Tensor, state: dict[str, torch.Tensor], params: Sequence[SamplingParams]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply mirostat 2."""
    distance = logits.double() - logits.double().amax(1, keepdim=True)
    depth = distance.exp().sum(1, keepdim=True).log() - state["mirostat_mu"] * LN2
    kept = distance >= (depth - TOLERANCE).clamp(max=0.0)
    likeliest = torch.zeros_like(kept).scatter_(1, logits.argmax(1, keepdim=True), True)
    kept = kept.where(depth <= TOLERANCE, likeliest)
    found = logits.where(kept, -torch.inf)
    return found, found


def keep_by_exponent(
    logits: torch.Tensor, state: dict[str, torch.Tensor], params: Sequence[SamplingParams]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply mirostat 1. Of equal logits the smaller id comes first."""
    values, ids = logits.double().sort(dim=1, descending=True, stable=True)
    top = values[:, :CANDIDATES]
    i = torch.arange(top.shape[1] - 1, dtype=torch.float64, device=logits.device)
    steps = torch.log((i + 2) / (i + 1)).where(top[:, 1:].isfinite(), 0.0)
    falls = (top[:, :-1] - top[:, 1:]).where(steps > 0, 0.0)
    exponent = (steps * falls).sum(1, keepdim=True) / (steps * steps).sum(1, keepdim=True).clamp(min=1e-300)
    epsilon, vocab = exponent - 1.0, logits.shape[1]
    log_vocab = math.log(vocab)
    near = epsilon.abs() <= 1e-12
    share = (-torch.expm1(-epsilon * log_vocab) / epsilon.where(~near, 1.0)).where(~near, log_vocab)
    log_k = (state["mirostat_mu"] * LN2 - share.log()) / exponent
    every = (exponent <= 0.0) | (log_k >= log_vocab)
    k = log_k.clamp(max=log_vocab).exp().trunc().clamp(min=1.0).where(~every, float(vocab))
    places = torch.arange(vocab, dtype=torch.float64, device=logits.device)
    kept = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, places < k)
    found = logits.where(kept, -torch.inf)
    return found, found


def learn_surprise(
    state: dict[str, torch.Tensor], logprob: torch.Tensor, params: Sequence[SamplingParams]
) -> dict[str, torch.Tensor]:
    """Move μ against the surprise of the drawn tokens."""
    tau, eta = (read_column(params, name, logprob.device) for name in ("mirostat_tau", "mirostat_eta"))
    return {"mirostat_mu": state["mirostat_mu"] - eta * (-logprob / LN2 - tau)}


def favour_target(
    logits: torch.Tensor, state: dict[str, torch.Tensor], params: Sequence[SamplingParams]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply adaptive-p."""
    target = read_column(params, "adaptive_target", logits.device)
    aim = (2.0 * target - state["adaptive_sum"] / state["adaptive_weight"]).clamp(0.0, 1.0)
    d = (logits.double().softmax(1) - aim).abs() / ADAPTIVE_WIDTH
    moved = (ADAPTIVE_PEAK - ADAPTIVE_SHARPNESS * d * d / (1.0 + d)).where(logits.isfinite(), -torch.inf)
    return (moved - moved.amax(1, keepdim=True)).float(), logits


def learn_average(
    state: dict[str, torch.Tensor], logprob: torch.Tensor, params: Sequence[SamplingParams]
) -> dict[str, torch.Tensor]:
    """Add the drawn tokens' probabilities to the average."""
    decay = read_column(params, "adaptive_decay", logprob.device)
    return {
        "adaptive_sum": logprob.exp() + decay * state["adaptive_sum"],
        "adaptive_weight": 1.0 + decay * state["adaptive_weight"],
    }


LEARNERS = {
    "mirostat 2": Learner(keep_unsurprising, learn_surprise),
    "mirostat 1": Learner(keep_by_exponent, learn_surprise),
    "adaptive_p": Learner(favour_target, learn_average),
}


class StatefulRequest(NamedTuple):
    """A request with such a method. name: its id in vLLM. learner: a key of LEARNERS. begin: its first state."""

    name: str
    params: SamplingParams
    learner: str
    begin: dict[str, float]


class Drawing(NamedTuple):
    """Rows of a step whose tokens one method learns from. places: of the rows among the step's draws. basis: float32
    [R, V]."""

    requests: list[StatefulRequest]
    places: list[int]
    state: dict[str, torch.Tensor]
    basis: torch.Tensor


class StatefulRequests:
    """The requests with such a method, by their index in vLLM.

    - fronts: the slots with the methods before the stateful one.
    - states: request id → float64 [values], on the device. A preempted request finds its state again.
    - drawing: the rows of the step that is being drawn.
    """

    def __init__(self, count: int, vocab: int, backend: BackendName | None) -> None:
        self.fronts = Slots(count, vocab)
        self.sampler = Sampler(self.fronts, backend)
        self.requests: dict[int, StatefulRequest] = {}
        self.states: dict[str, torch.Tensor] = {}
        self.drawing: list[Drawing] = []

    def add(self, index: int, request: StatefulRequest, front: SamplingParams, draws: Slot, resumed: bool) -> None:
        """Give the index to a request. front: the fields of the methods before the stateful one, and LISTED. draws: its
        slot. resumed: the request has run before."""
        self.fronts.add(index, front, prompt=(), key=draws.key, eos_token_ids=draws.eos_token_ids)
        self.requests[index] = request
        if not (resumed and request.name in self.states):
            self.states[request.name] = torch.tensor(list(request.begin.values()), dtype=torch.float64)

    def remove(self, index: int) -> None:
        """Drop the request with this index, but not its state."""
        if self.requests.pop(index, None) is not None:
            self.fronts.remove(index)

    def forget(self, live: Collection[str]) -> None:
        """Drop old states if there are too many. live: the ids of the requests that run."""
        if len(self.states) > MANY + len(live):
            for name in [name for name in list(self.states)[: MANY // 2] if name not in live]:
                del self.states[name]

    def apply(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Return the logits with other rows for these requests: what the later methods see."""
        self.drawing, owners = [], rows.owners.tolist()
        for name, learner in LEARNERS.items():
            places = [place for place, owner in enumerate(owners) if self._is_served_by(owner, name)]
            if not places:
                continue
            requests = [self.requests[owners[place]] for place in places]
            source, position = rows.source[places], rows.position[places]
            mine = Rows.plain([owners[place] for place in places], source.tolist(), position.tolist())
            state = self._stack_states(requests, logits.device)
            refined = self.sampler.refine(logits, mine)
            found, basis = learner.apply(refined, state, [one.params for one in requests])
            logits = logits.float().index_copy(0, there(source, logits.device), found)
            self.drawing.append(Drawing(requests, places, state, basis))
        return logits

    def learn(self, ids: torch.Tensor, learning: Sequence[bool]) -> None:
        """Update the states. ids: int64 [N], the step's draws. learning: whether a request keeps its draw, and was free
        to draw it."""
        for requests, places, state, basis in self.drawing:
            at = there(torch.tensor(places), ids.device)
            drawn = basis.double().log_softmax(1).gather(1, ids[at][:, None])
            free = there(torch.tensor([learning[place] for place in places]), ids.device)[:, None] & drawn.isfinite()
            learnt = LEARNERS[requests[0].learner].learn(state, drawn, [one.params for one in requests])
            rows = torch.cat([learnt[value].where(free, state[value]) for value in requests[0].begin], 1)
            for one, row in zip(requests, rows.unbind(), strict=True):
                del self.states[one.name]  # the order is that of use
                self.states[one.name] = row
        self.drawing = []

    def _is_served_by(self, index: int, learner: str) -> bool:
        return index in self.requests and self.requests[index].learner == learner

    def _stack_states(self, requests: Sequence[StatefulRequest], device: torch.device) -> dict[str, torch.Tensor]:
        """Return the states' values, float64 [R, 1] each. A new request's values still are on the host."""
        for one in requests:
            if self.states[one.name].device != device:
                self.states[one.name] = there(self.states[one.name], device)
        columns = torch.stack([self.states[one.name] for one in requests]).split(1, 1)
        return dict(zip(requests[0].begin, columns, strict=True))
