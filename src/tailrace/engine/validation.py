"""The checks that a Submit must pass. A request that can never be served is refused at once, with an error that names
the field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.config import SchedulerConfig
from tailrace.engine.token_bytes import TokenBytes
from tailrace.errors import ContextLengthError, ParameterError, RequestError, format_json, nest_error
from tailrace.grammar.service import Grammars
from tailrace.params import SamplingParams
from tailrace.sampling import processors
from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.wire.messages import Replay, Submit

OUTPUT = "output_token_ids"  # the endpoint's name of the field


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of requests.

    - max_len: positions that fit the model's context and the whole KV cache.
    - scheduler: the operator's limits.
    - cache_len: positions of the KV cache.
    - block_size: positions of one of its blocks.
    """

    vocab_size: int
    max_len: int
    scheduler: SchedulerConfig
    cache_len: int
    block_size: int

    def check(self, submit: Submit) -> None:
        """Raise the client's error if the request can never be served.

        Raises:
            RequestError, ParameterError, ContextLengthError
        """
        if not submit.prompt:
            raise RequestError("prompt must have at least one token", "prompt")
        if bad := next((t for t in submit.prompt if not 0 <= t < self.vocab_size), None):
            raise ParameterError(f"prompt: token id {bad} is not in 0 … {self.vocab_size - 1}", "prompt")
        submit.params.check_vocab(self.vocab_size)
        submit.params.scored_places(len(submit.prompt))
        for name in submit.params.processors:
            processors.find_processor(name)
        if submit.params.n > (most := self.scheduler.max_num_seqs):
            raise ParameterError(
                f"n must be at most {most} (max_num_seqs; best_of counts as n), got {submit.params.n}", "n"
            )
        if len(submit.prompt) >= self.max_len:
            raise ContextLengthError(
                f"the prompt has {len(submit.prompt)} tokens; with at least one of output it must fit {self.max_len}",
                "prompt",
            )
        if submit.params.guided:
            self._check_guided(submit)
        room, forced = self.limit_length(submit) - len(submit.prompt), len(submit.params.forced_token_ids)
        if forced > room:
            raise ParameterError(
                f"forced_token_ids must have at most {room} entries, the room for output, got {forced}",
                "forced_token_ids",
            )
        if submit.replay is not None:
            self._check_replay(submit, submit.replay)

    def _check_replay(self, submit: Submit, replay: Replay) -> None:
        """Raise ParameterError or ContextLengthError for an output that can't be explained."""
        if submit.params.bans:
            name = "banned_strings" if submit.params.banned_strings else "banned_regex"
            raise ParameterError(
                f"{name}: what was taken back before a token came is not known afterwards; ask with explain while it "
                f"is generated",
                name,
            )
        if bad := next((t for t in replay.output if not 0 <= t < self.vocab_size), None):
            raise ParameterError(f"output_token_ids: token id {bad} is not in 0 … {self.vocab_size - 1}", OUTPUT)
        if len(submit.prompt) + len(replay.output) > self.max_len:
            raise ContextLengthError(
                f"the prompt has {len(submit.prompt)} tokens and the output {len(replay.output)}: together they must "
                f"fit {self.max_len}",
                OUTPUT,
            )
        for place in replay.positions:
            if not 0 <= place < len(replay.output):
                raise ParameterError(
                    f"positions must be integers in [0, {len(replay.output) - 1}], got {place}", "positions"
                )
        if not replay.positions:
            raise ParameterError("positions must not be empty", "positions")
        replay.options.check_vocab(self.vocab_size)
        if replay.what_if is not None:
            try:
                replay.what_if.check_vocab(self.vocab_size)
            except ParameterError as error:
                raise nest_error("what_if", error) from error

    def _check_guided(self, submit: Submit) -> None:
        """Raise ParameterError or ContextLengthError for a pair that can never be computed."""
        n = submit.params.n
        for setting, most, need in (
            ("max_num_seqs", self.scheduler.max_num_seqs, 2 * n),
            (
                "max_num_batched_tokens",
                self.scheduler.max_num_batched_tokens,
                2,
            ),  # a sequence and its other step together
        ):
            if most < need:
                raise ParameterError(
                    f"guidance_scale: {n} sequences and their unconditional ones need {setting} to be at least {need}, "
                    f"and it is {most} here; leave guidance_scale out{' or ask for a smaller n' if n > 1 else ''}",
                    "guidance_scale",
                )
        if self.limit_output(submit) < 1:
            raise ContextLengthError(
                f"the prompt has {len(submit.prompt)} tokens and the negative prompt {len(negative_prompt(submit))}; "
                f"with at least one of output each must fit {self.max_len}, and both together {self.cache_len}",
                "negative_prompt",
            )

    def limit_output(self, submit: Submit) -> int:
        """Return the number of output tokens that the context has room for."""
        left = self.max_len - len(submit.prompt)
        if not submit.params.guided:
            return left
        other = len(negative_prompt(submit))
        together = self.cache_len - 2 * (self.block_size - 1) - len(submit.prompt) - other
        return min(left, self.max_len - other, together // 2)

    def limit_length(self, submit: Submit) -> int:
        """Return the most positions that the request may reach: max_tokens, or the context's end."""
        asked, left = submit.params.max_tokens, self.limit_output(submit)
        return len(submit.prompt) + (left if asked is None else min(left, asked))


def check_served(params: SamplingParams, grammars: Grammars | None, token_bytes: TokenBytes) -> None:
    """Raise ParameterError for fields that need the bytes of tokens, if these are unknown."""
    if params.grammar is not None and grammars is None:
        raise ParameterError(
            "grammar: this model is served without a tokenizer that grammars could be matched on", "grammar"
        )
    after = params.grammar is not None and params.grammar.after is not None
    for name, asked in (
        ("banned_strings", params.banned_strings),
        ("banned_regex", params.banned_regex),
        ("thinking_token_budget", params.thinking is not None and params.thinking.max_tokens is not None),
        ("grammar", after),
    ):
        if asked and not token_bytes.token_bytes:
            raise ParameterError(f"{name}: the bytes of this model's tokens are not known", name)
    form = "" if params.thinking is None else params.thinking.tool_format
    if form and form not in TOOL_FORMATS:
        raise ParameterError(
            f"thinking_token_budget: there is no tool format {format_json(form)}; there are {', '.join(TOOL_FORMATS)}",
            "thinking_token_budget",
        )


def negative_prompt(submit: Submit) -> list[int]:
    """Return the prompt that guidance leads away from: the request's own, or the last token of the prompt."""
    return list(submit.params.negative_prompt) or submit.prompt[-1:]


def adapter_number(adapters: Sequence[str], name: str) -> int:
    """Return an adapter's place among the runner's, from 1 on; 0 for no name.

    Raises:
        ParameterError: no adapter has this name.
    """
    if name and name not in adapters:
        raise ParameterError(f"model: there is no adapter {format_json(name, 200)}", "model")
    return adapters.index(name) + 1 if name else 0
