"""tailrace in llama-cpp-python: a logits processor that draws, and a stopping criterion that passes its errors on.

llama-cpp-python's chain of samplers has processors first, then its grammar, and its own choice last. So the processor
draws, and its result makes a greedy choice take the token. It knows nothing of llama.cpp's types: it gets an array of
ids and one of scores.

llama-cpp-python calls a processor inside of C: an exception is printed and lost, and llama.cpp draws the token itself.
It asks stopping criteria from Python, whose exceptions reach the caller.

No score of the result is −inf. If a grammar left only scores of −inf, llama.cpp would take a token that the grammar
does not allow, and end the process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from tailrace.integrations.llama_cpp.refused_fields import LLAMA_CPP
from tailrace.integrations.refusals import check_fields
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, request_key
from tailrace.sampling.reference import compute_distribution, scores_of
from tailrace.sampling.validation import checked_ids

KEPT = 200.0  # distance of the other tokens that could have been drawn below the drawn one
REMOVED = 1e4  # distance of all other tokens


class TailraceLlamaProcessor:
    """A processor that draws a token: its score becomes 0, all others are at least 100 lower. Use it with
    `temperature=0`, so that llama.cpp adds no draw of its own. One object may serve several calls, one after the other.

    A call's `grammar` removes tokens after the processor. If it removes the drawn token, the largest remaining score is
    an exact draw from the remaining tokens (Gumbel-max with the noise of the draw). If it removes all tokens that could
    be drawn, the likeliest of the others is taken.

    Args:
        params: all parameters that `Slots.add` accepts, but those of `refused_fields.LLAMA_CPP`. `seed` makes the
            tokens repeatable. Without a seed the calls differ.
        eos_token_ids: for min_tokens and the methods that read EOS. Pass `[llm.token_eos()]`.
        handled_by_caller: fields of SamplingParams that the caller acts on, as for `Slots.add`.
        grammar: False if no call has a `grammar`. This saves the scores of the other tokens, a few milliseconds per
            token. A grammar that comes all the same is kept, but its draws are not exact: if the drawn token is not
            allowed, the likeliest allowed token is taken.

    Raises:
        ParameterError: (a ValueError) for a field that can't act here, and for an argument of another type.

    Example:
        >>> llm(prompt, temperature=0, logits_processor=LogitsProcessorList([processor]),
        ...     stopping_criteria=StoppingCriteriaList([processor.check_step]))  # doctest: +SKIP
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        eos_token_ids: Sequence[int] = (),
        handled_by_caller: Collection[str] = (),
        grammar: bool = True,
    ) -> None:
        check_fields(params, LLAMA_CPP, "llama-cpp-python", handled_by_caller)
        self.params, self.grammar = params, grammar
        self.eos_token_ids = checked_ids("eos_token_ids", eos_token_ids, 2**32)
        self.handled_by_caller = handled_by_caller
        self._seen = np.empty(0, dtype=np.intc)  # the ids of the last call
        self._slots: Slots | None = None
        self._sampler: Sampler | None = None
        self._drawn = -1
        self._error: Exception | None = None  # of the last call

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Draw a token and return the scores that select it, float32 [V], all finite.

        input_ids: whole numbers [T], the prompt and the output so far. scores: float32 [V], possibly a strided field of
        records; not modified.
        """
        self._error = None
        try:
            return self._draw(input_ids, scores)
        except Exception as error:
            self._error = error
            raise

    def check_step(self, input_ids: np.ndarray, scores: np.ndarray) -> bool:
        """Return False, which stops nothing. A stopping criterion of the call, asked after each token.

        Raises:
            ParameterError: `Slots.add` refuses a field with this model, for example a token id.
            RuntimeError: the scores can't be sampled from, or tailrace has not drawn the token.
        """
        if self._error is not None:
            raise self._error
        if not np.array_equal(input_ids, self._seen):
            raise RuntimeError(
                "llama-cpp-python has not asked tailrace for this token: leave out the call's logit_bias, with which "
                "it drops all processors, and the model's draft_model"
            )
        return False

    def _draw(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        slots, sampler = self._follow_ids(input_ids, len(scores))
        logits = torch.from_numpy(np.ascontiguousarray(scores, dtype=np.float32))[None]
        sampled = sampler(logits, Rows.plain([0], [0], [len(input_ids)]))
        self._drawn = drawn = int(sampled.token_ids[0, 0])
        if drawn < 0:
            raise RuntimeError("the scores can't be sampled from: NaN, +inf, or nothing but −inf")
        row = logits[0]
        chosen = (row - row.max()).clamp_(min=-REMOVED / 2) - REMOVED
        if self.grammar:
            kept = compute_distribution(row, slots[0], len(input_ids))
            scores_of_kept = scores_of(kept, slots[0], len(input_ids))
            chosen[kept.ids] = (scores_of_kept - scores_of_kept.max()).clamp_(min=-REMOVED / 4) - KEPT
        chosen[drawn] = 0.0
        return chosen.numpy()

    def _follow_ids(self, input_ids: np.ndarray, vocab_size: int) -> tuple[Slots, Sampler]:
        """Update the slot to these ids. Another prompt starts a new sequence."""
        slots, sampler, seen = self._slots, self._sampler, self._seen
        again = slots is not None and len(input_ids) == len(seen) + 1 and np.array_equal(input_ids[:-1], seen)
        self._seen = np.array(input_ids)
        if again and slots is not None and sampler is not None and slots.vocab_size == vocab_size:
            token = int(input_ids[-1])
            if self.grammar and slots[0].state and token != self._drawn:  # the grammar's choice
                slots[0].updates[:] = [slots[0].update_of(token)]
            slots.commit([0], [[token]])
            return slots, sampler
        slots = Slots(1, vocab_size)
        slots.add(
            0,
            self.params,
            prompt=input_ids.tolist(),
            key=request_key(self.params.seed, 0),
            eos_token_ids=self.eos_token_ids,
            handled_by_caller={*self.handled_by_caller, "seed"},
        )
        self._slots, self._sampler = slots, Sampler(slots)
        return self._slots, self._sampler
