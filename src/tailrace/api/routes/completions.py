"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from tailrace.api.aggregate import fold_completion
from tailrace.api.best_of import best_of
from tailrace.api.body import BodyReader
from tailrace.api.chunks import UsageReporter, Work, add_progress, dump_params, make_chunk_head, split_delta
from tailrace.api.explanations import encode_records, size_of
from tailrace.api.logprobs import CompletionLogprobsWriter, prompt_logprobs
from tailrace.api.negative_prompt import negative_of_text
from tailrace.api.prepare import (
    UNLIMITED,
    Additions,
    PreparedRequest,
    Prompts,
    TokenLimit,
    prepare_request,
    start_request,
)
from tailrace.api.prompt_length import check_length
from tailrace.api.received import Received, answers
from tailrace.api.resumption import answer_resumably, check_stream_fields
from tailrace.api.sampling import check_scores, num_logprobs
from tailrace.api.sampling_masks import mask_size, written_masks
from tailrace.api.schema.common import PromptLogprobEntries
from tailrace.api.schema.completions import COMPLETION_REFUSED, Completion, CompletionChoice, CompletionRequest
from tailrace.api.service import Service
from tailrace.api.streaming import make_response
from tailrace.api.structured import check_no_options, constraint_of, to_grammar
from tailrace.errors import ParameterError
from tailrace.params import NEUTRAL
from tailrace.text.output import Delta

READER = BodyReader(CompletionRequest, COMPLETION_REFUSED)

MAX_PROMPTS = 1024
TURN_CHARS = 64  # the cost of a prompt, whatever its length, in characters
MAX_CHOICES = 2048  # per request: prompts times n or best_of

Prompt = str | list[int]


@answers(READER)
async def create_completion(received: Received[CompletionRequest]) -> Response:
    """A completion of each prompt, streamed or whole."""
    ask, service = received.ask, received.service
    check_stream_fields(received)
    prompts = prompts_of(ask.prompt)
    prepared = await prepare_texts(received, ask, prompts)
    fold, top = fold_completion, ask.logprobs
    if ask.best_of is not None and not ask.use_beam_search and ask.best_of != prepared.params.n:
        n = prepared.params.n
        check_best_of(ask, ask.best_of, n)
        fold = best_of(n, ask.best_of, keep_logprobs=top is not None)
        params = msgspec.structs.replace(prepared.params, n=ask.best_of, logprobs=top or 0)
        prepared = prepared._replace(params=params)
    check_report_size(ask, prepared)
    origin = received.origin("text_completion", ask)
    generation = start_request(service, ask, f"cmpl-{origin.request_id}", prepared, origin)
    echoes = await decode_prompts(received, prompts) if ask.echo else None
    chunks = CompletionChunks(service, ask, generation, echoes).stream()
    chunks = add_progress(service, ask, generation, chunks, Completion)
    if ask.resumable:
        return await answer_resumably(received, generation, chunks)
    return await make_response(received.request, generation, chunks, fold, ask.streamed)


async def prepare_texts(received: Received[Any], ask: CompletionRequest, prompts: list[Prompt]) -> PreparedRequest:
    """The request as the engine takes it.

    Raises:
        RequestError: naming the field.
    """
    ids = await encode_prompts(received, ask, prompts)
    negative = await negative_of_text(received, ask, ask.add_special_tokens is not False)
    asked = None if ask.max_tokens == UNLIMITED else ask.max_tokens
    limit, most = TokenLimit(1 if only_echo(ask) else asked, "max_tokens"), received.service.config
    top = None if ask.logprobs is None else num_logprobs(ask.logprobs, most.max_logprobs, "logprobs")
    return await prepare_request(
        received, ask, Prompts(ids, "prompt", negative), limit, top, lambda: make_completion_additions(ask)
    )


def make_completion_additions(ask: CompletionRequest) -> Additions:
    """The grammar, and the logprobs of a prompt that is echoed with logprobs.

    Raises:
        ParameterError: naming the field.
    """
    fields: dict[str, Any] = {}
    if only_echo(ask):
        check_only_echo(ask)
    if ask.echo and ask.logprobs is not None:
        for name in ("prompt_logprob_start", "prompt_logprobs_temperature"):
            if (value := getattr(ask, name)) is not None and value != NEUTRAL[name]:
                text = f"{name} can't be had with echo and logprobs, which are the whole prompt's"
                raise ParameterError(text, name, mentions=["logprobs"])
        fields["prompt_logprobs"] = max(ask.logprobs, ask.prompt_logprobs or 0)
    constraint = constraint_of(ask)
    if constraint is None:
        check_no_options(ask)
        return fields, "grammar"
    if only_echo(ask):
        text = f"{constraint.field} has no effect with max_tokens 0"
        raise ParameterError(text, constraint.field, mentions=["max_tokens"])
    return {**fields, "grammar": to_grammar(ask, constraint)}, constraint.field


class CompletionChunks:
    """The answer as it comes: per choice the echoed prompt, then text, then the finish reason; at the end the usage.

    Args:
        echoes: the prompts as text, where they are to be echoed.
    """

    def __init__(self, service: Service, ask: CompletionRequest, generation: Work, echoes: list[str] | None) -> None:
        self._service, self._ask, self._generation, self._echoes = service, ask, generation, echoes
        self._with_ids = bool(ask.return_token_ids)
        self._begun: set[int] = set()  # choices
        self._writers: dict[int, CompletionLogprobsWriter] = {}  # per choice, where logprobs are asked for
        self._prompt_logprobs: dict[int, PromptLogprobEntries] = {}  # per prompt, as its first choice has them

    async def stream(self) -> AsyncGenerator[Completion, None]:
        """The chunks.

        Raises:
            TailraceError: see Generation.deltas.
        """
        ask, generation = self._ask, self._generation
        shared, usage = make_chunk_head(self._service, generation.id), UsageReporter(ask, generation)
        async with aclosing(generation.deltas()) as deltas:
            async for index, delta in deltas:
                if index not in self._begun:
                    params_used = UNSET if self._begun else dump_params(ask, generation)
                    self._begun.add(index)
                    choice = await self._first_of(index)
                    if choice is not None or params_used is not UNSET:
                        choices = [choice or CompletionChoice(index, "")]
                        yield Completion(**shared, choices=choices, usage=usage.so_far(), sampling_params=params_used)
                for piece in split_delta(only_end(delta) if only_echo(ask) else delta, self._with_ids):
                    choice = await self._make_choice(index, piece)
                    yield Completion(**shared, choices=[choice], usage=usage.so_far())
        if usage.has_last_chunk:
            yield Completion(**shared, choices=[], usage=usage.at_end(), timings=usage.timings)

    async def _first_of(self, index: int) -> CompletionChoice | None:
        """The first chunk of a choice: the echoed prompt, its ids and its logprobs. None if none is asked for."""
        ask, generation, params = self._ask, self._generation, self._generation.params
        p = index // params.n
        prompt, entries = generation.prompts[p], generation.prompt_logprobs(p)
        if params.logprobs is not None:
            labels = self._service.labels_for(ask)
            self._writers[index] = CompletionLogprobsWriter(labels, params.alternatives or 0, params.report_entropy)
        fields: dict[str, Any] = {"token_ids": [], "prompt_token_ids": prompt} if self._with_ids else {}
        if ask.prompt_logprobs is not None and entries is not None:
            if p not in self._prompt_logprobs:
                work = partial(prompt_logprobs, self._service.labels, prompt, entries, ask.prompt_logprobs)
                size = len(entries) * (ask.prompt_logprobs + 1)
                self._prompt_logprobs[p] = await generation.run(work, size)
            fields["prompt_logprobs"] = self._prompt_logprobs[p]
        if (named := generation.named_logprobs(p)) is not None:
            fields["prompt_token_id_logprobs"] = named
        if self._echoes is not None and ask.logprobs is not None and entries is not None:
            write = partial(self._writers[index].write_prompt, prompt, entries, not given_as_ids(ask.prompt))
            fields["logprobs"] = await generation.run(write, len(entries) * (ask.logprobs + 1))
        if self._echoes is None and not fields:
            return None
        return CompletionChoice(index, "" if self._echoes is None else self._echoes[p], **fields)

    async def _make_choice(self, index: int, piece: Delta) -> CompletionChoice:
        """One piece of a choice's text, or its end."""
        logprobs = self._writers[index].write(piece) if piece.logprobs and index in self._writers else None
        stop_reason = UNSET if piece.finish_reason is None else piece.stop_reason
        ids = list(piece.token_ids) if self._with_ids else UNSET
        choice = CompletionChoice(index, piece.text, logprobs, piece.finish_reason, stop_reason, ids)
        run = self._generation.run
        if piece.explanations:
            records = await run(partial(encode_records, self._service.labels, piece), size_of(piece))
            choice = msgspec.structs.replace(choice, explanations=records)
        if piece.survivors:
            mask = await run(partial(written_masks, piece), mask_size(piece))
            choice = msgspec.structs.replace(choice, sampling_mask=mask)
        return choice


def check_report_size(ask: CompletionRequest, prepared: PreparedRequest) -> None:
    """Raise ParameterError where all prompts and choices together are too many."""
    params, prompts = prepared.params, prepared.prompts
    if params.prompt_logprobs is not None:
        field = "echo" if ask.prompt_logprobs is None else "prompt_logprobs"
        check_scores(sum(map(len, prompts)) * params.n * (params.prompt_logprobs + 1), field)
    if rows := params.prompt_logprob_token_ids:
        check_scores(len(prompts) * params.n * sum(map(len, rows)), "prompt_logprob_token_ids")
    if len(prompts) * params.n > MAX_CHOICES:
        raise ParameterError(
            f"prompt: {len(prompts)} prompts with {params.n} choices each are more than {MAX_CHOICES} choices", "prompt"
        )


def check_best_of(ask: CompletionRequest, best: int, n: int) -> None:
    """Raise ParameterError for a value of best_of, or a combination, that can't be served."""
    if ask.echo and ask.logprobs is not None:
        raise ParameterError("best_of can't be had with echo and logprobs together", "best_of", ["logprobs"])
    if best < n:
        raise ParameterError(f"best_of must be at least n ({n}), got {best}", "best_of", ["n"])
    if best > 1024:
        raise ParameterError(f"best_of must be an integer in [{n}, 1024], got {best}", "best_of")
    if ask.streamed:
        raise ParameterError("best_of can't be streamed: the best are known only at the end", "best_of")


def prompts_of(given: str | list[Any]) -> list[Prompt]:
    """The prompts: one or several, each a string or token ids.

    Raises:
        ParameterError: none, too many, or strings and ids mixed up.
    """
    if isinstance(given, str):
        return [given]
    if not given:
        raise ParameterError("prompt must not be empty", "prompt")
    kinds = {type(item) for item in given}
    if len(kinds) > 1:
        raise ParameterError(
            "prompt must be a string, token ids, a list of strings or a list of lists of token ids", "prompt"
        )
    if kinds == {int}:
        return [given]
    if len(given) > MAX_PROMPTS:
        raise ParameterError(f"prompt must hold at most {MAX_PROMPTS} prompts, got {len(given)}", "prompt")
    return given


def given_as_ids(prompt: Any) -> bool:
    """The prompt was given as token ids; then every id is part of the text."""
    return isinstance(prompt, list) and not isinstance(prompt[0], str)


async def encode_prompts(received: Received[Any], ask: CompletionRequest, prompts: list[Prompt]) -> list[list[int]]:
    """Token ids of each prompt.

    Raises:
        ContextLengthError: one is too long, whatever its tokens are.
    """
    service, special = received.service, ask.add_special_tokens is not False

    def encode_each() -> list[list[int]]:
        return [
            service.tokenizer.encode(prompt, add_special_tokens=special) if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]

    for prompt in prompts:
        if isinstance(prompt, str):
            check_length(service, prompt, "prompt")
    return await received.run(encode_each, max(received.size, TURN_CHARS * len(prompts)))


async def decode_prompts(received: Received[Any], prompts: list[Prompt]) -> list[str]:
    """The prompts as text: as given, or decoded from their ids."""
    service = received.service

    def decode_each() -> list[str]:
        return [prompt if isinstance(prompt, str) else service.tokenizer.decode(prompt) for prompt in prompts]

    return await received.run(decode_each, sum(len(prompt) for prompt in prompts if isinstance(prompt, list)))


# ---- max_tokens 0: the prompt alone, with its logprobs


def only_echo(ask: CompletionRequest) -> bool:
    """Only the prompt is wanted. The engine samples one token all the same, which is not shown."""
    return ask.max_tokens == 0 and bool(ask.echo)


def check_only_echo(ask: CompletionRequest) -> None:
    """Raise ParameterError for fields that need an output."""
    of_an_output = ("logprob_token_ids", "explain", "return_sampling_mask", "forced_token_ids")
    for name in ("prediction", "min_tokens", "best_of", "use_beam_search", *of_an_output):
        if getattr(ask, name):
            raise ParameterError(f"{name} can't be had with max_tokens 0", name, mentions=["max_tokens"])


def only_end(delta: Delta) -> Delta:
    """The end of a delta without its text; the reason is that no token was asked for."""
    if delta.finish_reason is None:
        return Delta()
    return Delta(finish_reason="length" if delta.finish_reason == "stop" else delta.finish_reason)
