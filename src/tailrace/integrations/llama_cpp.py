"""tailrace in llama-cpp-python: `llm(prompt, temperature=0, logits_processor=LogitsProcessorList([processor]))`.

llama-cpp-python's chain of samplers has processors first, then its grammar, and its own choice last. So the processor
draws, and its result leaves a greedy choice only one token. It knows nothing of llama.cpp's types: it gets an array of
ids and one of scores.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from tailrace import kernels
from tailrace.kernels.constants import DRAW_STREAM
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, request_key
from tailrace.sampling.reference import compute_distribution

BELOW = 1e4  # distance of removed tokens below the others, if a grammar follows


class TailraceLlamaProcessor:
    """A processor that draws a token: its score becomes 0, all others −inf. Use it with `temperature=0`, so that
    llama.cpp adds no draw of its own. One object may serve several calls, one after the other.

    Args:
        params: all parameters that `Slots.add` accepts. `seed` makes the tokens repeatable. Without a seed the calls
            differ.
        eos_token_ids: for min_tokens and the methods that read EOS. Pass `[llm.token_eos()]`.
        handled_by_caller: fields of SamplingParams that the caller acts on, as for `Slots.add`.
        grammar: set it if the call also has a `grammar`, which removes tokens afterwards. Then each token that can be
            drawn gets its log-probability plus its noise. The largest score is an exact draw from the tokens that the
            grammar leaves (Gumbel-max). All other tokens get a score about 10,000 lower. If the grammar leaves only
            those, the likeliest of them wins. This uses the reference sampler and takes milliseconds per token.

    Raises:
        ParameterError: (a ValueError) in the call, for fields that `Slots.add` refuses.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        eos_token_ids: Sequence[int] = (),
        handled_by_caller: Collection[str] = (),
        grammar: bool = False,
    ) -> None:
        self.params, self.eos_token_ids, self.grammar = params, tuple(eos_token_ids), grammar
        self.handled_by_caller = handled_by_caller
        self._seen = np.empty(0, dtype=np.intc)  # the ids of the last call
        self._slots: Slots | None = None
        self._sampler: Sampler | None = None
        self._key = 0

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Draw a token and return the scores that select it, float32 [V].

        input_ids: whole numbers [T], the prompt and the output so far. scores: float32 [V], possibly a strided field of
        records; not modified.
        """
        slots, sampler = self._follow_ids(input_ids, len(scores))
        logits = torch.from_numpy(np.ascontiguousarray(scores, dtype=np.float32))[None]
        if self.grammar:
            return self._perturb_logits(logits[0], slots, len(input_ids))
        sampled = sampler(logits, Rows.plain([0], [0], [len(input_ids)]))
        drawn = int(sampled.token_ids[0, 0])
        if drawn < 0:
            raise RuntimeError("the scores can't be sampled from: NaN, +inf, or nothing but −inf")
        chosen = np.full(len(scores), -np.inf, dtype=np.float32)
        chosen[drawn] = 0.0
        return chosen

    def _perturb_logits(self, logits: torch.Tensor, slots: Slots, position: int) -> np.ndarray:
        kept = compute_distribution(logits, slots[0])
        values = (logits - logits.max()).clamp(min=-BELOW / 2) - BELOW
        noise = 0.0 if self.params.greedy else kernels.gumbel(self._key, position, kept.ids, DRAW_STREAM)
        values[kept.ids] = (kept.logits.double().log_softmax(0) + noise).float()
        return values.numpy()

    def _follow_ids(self, input_ids: np.ndarray, vocab_size: int) -> tuple[Slots, Sampler]:
        """Update the slot to these ids. Another prompt starts a new sequence."""
        slots, sampler, seen = self._slots, self._sampler, self._seen
        again = slots is not None and len(input_ids) == len(seen) + 1 and np.array_equal(input_ids[:-1], seen)
        self._seen = np.array(input_ids)
        if again and slots is not None and sampler is not None and slots.vocab_size == vocab_size:
            slots.commit([0], [[int(input_ids[-1])]])
            return slots, sampler
        slots = Slots(1, vocab_size)
        self._key = request_key(self.params.seed, 0)
        slots.add(
            0,
            self.params,
            prompt=input_ids.tolist(),
            key=self._key,
            eos_token_ids=self.eos_token_ids,
            handled_by_caller={*self.handled_by_caller, "seed"},
        )
        self._slots, self._sampler = slots, Sampler(slots)
        return self._slots, self._sampler
