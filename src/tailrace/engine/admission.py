"""What can never be served is refused at once: the checks a Submit must pass, each naming the field at fault."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.config import SchedulerConfig
from tailrace.errors import ContextLengthError, OverloadedError, ParameterError, RequestError
from tailrace.sampling import processors
from tailrace.wire.messages import Submit


@dataclass(frozen=True, slots=True)
class Limits:
    """vocab_size; max_len: positions that fit the model's context and the whole KV cache; scheduler: the operator's limits."""

    vocab_size: int
    max_len: int
    scheduler: SchedulerConfig

    def check(self, submit: Submit, waiting: int) -> None:
        """Raise the error that tells the client why not; `waiting` is the length of the waiting line.

        Raises:
            RequestError, ParameterError, ContextLengthError, OverloadedError
        """
        if not submit.prompt:
            raise RequestError("prompt must have at least one token", "prompt")
        if bad := next((t for t in submit.prompt if not 0 <= t < self.vocab_size), None):
            raise ParameterError(f"prompt: token id {bad} is not in 0 … {self.vocab_size - 1}", "prompt")
        submit.params.check_vocab(self.vocab_size)
        for name in submit.params.processors:
            processors.find(name)
        if submit.params.n > self.scheduler.max_num_seqs:
            raise ParameterError(
                f"n must be at most {self.scheduler.max_num_seqs} (max_num_seqs), got {submit.params.n}", "n"
            )
        if len(submit.prompt) >= self.max_len:
            raise ContextLengthError(
                f"the prompt has {len(submit.prompt)} tokens; with at least one of output it must fit {self.max_len}",
                "prompt",
            )
        if waiting >= self.scheduler.max_waiting:
            raise OverloadedError(f"{waiting} requests are waiting; try again later")

    def length(self, submit: Submit) -> int:
        """The most positions the request may reach: max_tokens, or the context's end."""
        if submit.params.max_tokens is None:
            return self.max_len
        return min(self.max_len, len(submit.prompt) + submit.params.max_tokens)
