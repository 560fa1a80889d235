"""The logits processor that draws the tokens of transformers' continuous batching.

transformers passes the step's requests first, and their logits afterwards. A request keeps its slot while it runs. Its
tokens are those of transformers' own record, so preemptions need no care.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

import msgspec
import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState, RequestStatus

from tailrace.params import SamplingParams
from tailrace.sampling import KeySource, Rows, Sampler, Slots, request_key, token_for_each

PARAMS = "tailrace"  # the keyword under which a request carries its parameters and EOS ids
FIRST_SLOTS = 64


@dataclass(eq=False)
class RunningRequest:
    """A request with its slot, and the number of output tokens that the slot has."""

    state: ref[RequestState]
    slot: int
    known: int


class BatchSampler(ContinuousBatchingLogitsProcessor):
    """transformers' own kind of processor. It gives each row's drawn token the score 0, and all others −inf.

    - defaults: the parameters of the generation config. reports: logprobs of the drawn tokens are wanted.
    - logprobs: float32 [rows], of the last step's tokens, of the distribution that they were drawn from.
    """

    supported_kwargs: dict[str, type] = {PARAMS: tuple}  # noqa: RUF012, transformers'
    ignored_kwargs: tuple[str, ...] = ()
    handled = ("max_tokens", "ignore_eos", "stop_token_ids", "seed")  # by the manager, and by the keys

    def __init__(self, defaults: SamplingParams, *, reports: bool = False) -> None:
        self.defaults, self.reports = defaults, reports
        self.logprobs = torch.empty(0)
        self._requests: list[RequestState] = []
        self._followed: dict[str, RunningRequest] = {}
        self._slots = Slots(0, 1)
        self._sampler = Sampler(self._slots)

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Fill transformers' storage of arguments, which this processor does not use."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[FutureRequestState]) -> torch.Tensor:
        """Note the requests of the next step's rows."""
        self._requests = [future.state for future in requests_with_new_token]
        return torch.zeros(len(self._requests), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Draw a token for each request. Return scores [R, V] that select these tokens.

        A step that computes only a first part of a prompt has a row without a request. Such a row stays unchanged.
        """
        count = len(self._requests)
        if not count:
            return scores
        self._make_room(scores.shape[1])
        slots = [self._follow_request(state) for state in self._requests]
        positions = [self._slots[slot].num_prompt + self._slots[slot].num_output for slot in slots]
        sampled = self._sampler(scores[:count], Rows.plain(slots, list(range(count)), positions))
        ids, _ = token_for_each(sampled.token_ids, scores, list(range(count)))
        if self.reports:
            found = [entries[0].logprob if entries else 0.0 for entries in sampled.logprobs]
            self.logprobs = torch.tensor(found, dtype=torch.float32)
        chosen = scores.clone()
        chosen[:count].fill_(-torch.inf).scatter_(1, ids.to(scores.device), 0.0)
        return chosen

    def _make_room(self, vocab_size: int) -> None:
        """Free the slots of requests that have ended, and make more slots if the step's requests need them."""
        for name, one in list(self._followed.items()):
            state = one.state()
            if state is None or state.status >= RequestStatus.FINISHED:
                self._slots.remove(one.slot)
                del self._followed[name]
        size = len(self._slots.slots)
        if self._slots.vocab_size == vocab_size and size >= len(self._followed) + len(self._requests):
            return
        source = self._slots.default_keys if size else KeySource.shared(torch.initial_seed())
        running = [state for one in self._followed.values() if (state := one.state()) is not None]
        for state in running:
            self._follow_request(state)  # so that the state of its methods is of all its tokens
        before, followed = self._slots, self._followed
        wanted = max(FIRST_SLOTS, 2 * (len(followed) + len(self._requests)))
        self._slots, self._followed = Slots(wanted, vocab_size, default_keys=source), {}
        self._sampler = Sampler(self._slots)
        for state in running:
            entry = before[followed[state.request_id].slot]
            self._add_request(state, key=entry.key, sequence_state=entry.sequence_state)

    def _follow_request(self, state: RequestState) -> int:
        """Return the slot of a request, which has all its tokens."""
        one = self._followed.get(state.request_id)
        if one is None:
            return self._add_request(state)
        one.state = ref(state)  # another one if transformers began the request again, with all its tokens
        output = split_tokens(state)[1]
        if len(output) > one.known:
            self._slots.commit([one.slot], [output[one.known :]])
            one.known = len(output)
        return one.slot

    def _add_request(self, state: RequestState, **kept: Any) -> int:
        params, eos_token_ids = state.logit_processor_kwargs.get(PARAMS) or (self.defaults, tuple(state._eos_token_ids))
        if self.reports:
            params = msgspec.structs.replace(params, logprobs=0, logprobs_mode="processed")
        slot, (prompt, output) = self._slots.slots.index(None), split_tokens(state)
        if params.seed is not None and not kept:
            kept = {"key": request_key(params.seed, 0)}
        size = self._slots.vocab_size
        self._slots.add(
            slot,
            params,
            prompt=[id for id in prompt if 0 <= id < size],
            output=output,
            eos_token_ids=eos_token_ids,
            handled_by_caller=self.handled,
            **kept,
        )
        self._followed[state.request_id] = RunningRequest(ref(state), slot, len(output))
        return slot


def split_tokens(state: RequestState) -> tuple[list[int], list[int]]:
    """Return a request's prompt and its output. A request that began again has a part of the output in its prompt."""
    first = state._true_initial_tokens or len(state.initial_tokens)
    return state.initial_tokens[:first], state.initial_tokens[first:] + state.generated_tokens
