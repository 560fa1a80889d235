"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.access_log import origin_of
from tailrace.api.beam_fields import beam_request, check_no_beams
from tailrace.api.best_of import best_of
from tailrace.api.body import BodyReader
from tailrace.api.chunks import UsageOf, Work, effective, head, pieces
from tailrace.api.fold import fold_completion
from tailrace.api.front_end import service_for
from tailrace.api.generate import Generation
from tailrace.api.guidance import longest, of_text
from tailrace.api.lengths import check_length
from tailrace.api.logprobs import CompletionLogprobsWriter, prompt_logprobs
from tailrace.api.respond import request_id, respond
from tailrace.api.sampling import check_copies, check_scores, effort, num_logprobs, output_limit, sampling_params
from tailrace.api.schema.common import PromptLogprobEntries
from tailrace.api.schema.completions import COMPLETION_REFUSED, Completion, CompletionChoice, CompletionRequest
from tailrace.api.service import Service, service_of
from tailrace.api.structured import Constraint, asked, check_unasked, compose
from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.text.output import Delta

READER = BodyReader(CompletionRequest, COMPLETION_REFUSED)

MAX_PROMPTS = 1024
TURN_CHARS = 64  # a prompt of its own costs as much as so many characters
MAX_CHOICES = 2048  # of one request: prompts times n or best_of

Prompt = str | list[int]


async def create_completion(request: Request) -> Response:
    """A completion of each prompt, streamed or whole."""
    ask = await READER.read(request)
    service = service_for(request, ask.model)
    info = service.supervisor.check()
    prompts = prompts_of(ask.prompt)
    ids = await encode(request, ask, prompts)
    negative = await of_text(request, ask.negative_prompt, ask.add_special_tokens is not False)
    taken, taker = longest(max(map(len, ids)), negative, "prompt")
    limit = output_limit(taken, info.max_model_len, 1 if only_echo(ask) else ask.max_tokens, "max_tokens", taker)
    top = None if ask.logprobs is None else num_logprobs(ask.logprobs, service.config.max_logprobs, "logprobs")
    if ask.prompt_logprobs is not None:
        num_logprobs(ask.prompt_logprobs, service.config.max_logprobs, "prompt_logprobs")

    def prepared() -> tuple[SamplingParams, Constraint | None]:
        params = sampling_params(
            ask, service.tokenizer, service.defaults, max_tokens=limit, logprobs=top, negative_prompt=negative
        )
        wanted = asked(ask)
        field = "prompt"
        if wanted is None:
            check_unasked(ask)
        else:
            if only_echo(ask):
                raise ParameterError(f"{wanted.field} has no effect with max_tokens 0", wanted.field)
            params, field = msgspec.structs.replace(params, grammar=compose(ask, wanted)), wanted.field
        if ask.echo and top is not None:
            params = msgspec.structs.replace(params, prompt_logprobs=max(top, ask.prompt_logprobs or 0))
        check_copies(params, len(prompts), field)
        return params, wanted

    params, wanted = await service.turns.run(request, prepared, effort(ask, request.state.size))
    if only_echo(ask):
        check_only_echo(ask)
    id, origin = f"cmpl-{request_id(request, ask)}", origin_of(request, "text_completion", ask)
    if ask.use_beam_search:
        if wanted is not None:
            raise ParameterError(f"{wanted.field} can't be had with use_beam_search", wanted.field)
        if len(ids) > 1:
            raise ParameterError("prompt must be one prompt with use_beam_search", "prompt")
        search = beam_request(service, ask, id, ids[0], params, origin)
        return await respond(request, search, chunks(service, ask, search, None), fold_completion, ask.streamed)
    check_no_beams(ask)
    fold = fold_completion
    if ask.best_of is not None and ask.best_of != params.n:
        check_best_of(ask, ask.best_of, params.n)
        fold = best_of(params.n, ask.best_of, keep_logprobs=top is not None)
        params = msgspec.structs.replace(params, n=ask.best_of, logprobs=top or 0)
    if params.prompt_logprobs is not None:
        scored = "echo" if ask.prompt_logprobs is None else "prompt_logprobs"
        check_scores(sum(map(len, ids)) * params.n * (params.prompt_logprobs + 1), scored)
    if len(prompts) * params.n > MAX_CHOICES:
        raise ParameterError(
            f"prompt: {len(prompts)} prompts with {params.n} choices each are more than {MAX_CHOICES} choices", "prompt"
        )
    generation = Generation(service, id, ids, params, origin, "grammar" if wanted is None else wanted.field)
    echoes = await echoed(request, prompts) if ask.echo else None
    return await respond(request, generation, chunks(service, ask, generation, echoes), fold, ask.streamed)


async def chunks(
    service: Service, ask: CompletionRequest, generation: Work, echoes: list[str] | None
) -> AsyncGenerator[Completion, None]:
    """The answer as it comes: per choice the echoed prompt, then text, then the finish reason; at the end the usage.

    Raises:
        TailraceError: see Generation.deltas.
    """
    shared = head(service, generation.id)
    usage = UsageOf(ask, generation)
    params, with_ids = generation.params, bool(ask.return_token_ids)
    greeted: set[int] = set()
    writers: dict[int, CompletionLogprobsWriter] = {}
    shown: dict[int, PromptLogprobEntries] = {}
    async with aclosing(generation.deltas()) as deltas:
        async for index, delta in deltas:
            if index not in greeted:
                greeted.add(index)
                p = index // params.n
                if params.logprobs is not None:
                    writers[index] = CompletionLogprobsWriter(
                        service.labels, params.alternatives or 0, params.report_entropy
                    )
                told = effective(ask, generation) if len(greeted) == 1 else UNSET
                greeting: dict[str, Any] = (
                    {"token_ids": [], "prompt_token_ids": generation.prompts[p]} if with_ids else {}
                )
                ids, scores = generation.prompts[p], generation.prompt_logprobs(p)
                if ask.prompt_logprobs is not None and scores is not None:
                    if p not in shown:
                        work = partial(prompt_logprobs, service.labels, ids, scores, ask.prompt_logprobs)
                        shown[p] = await generation.answer(work, len(scores) * (ask.prompt_logprobs + 1))
                    greeting["prompt_logprobs"] = shown[p]
                if echoes is not None and ask.logprobs is not None and scores is not None:
                    spelt = frozenset() if given_as_ids(ask.prompt) else service.tokenizer.special_ids
                    written = partial(writers[index].write_prompt, ids, scores, spelt)
                    greeting["logprobs"] = await generation.answer(written, len(scores) * (ask.logprobs + 1))
                if echoes is not None or greeting or told is not UNSET:
                    choice = CompletionChoice(index, echoes[p] if echoes is not None else "", **greeting)
                    yield Completion(**shared, choices=[choice], usage=usage.so_far(), sampling_params=told)
            for piece in pieces(unsaid(delta) if only_echo(ask) else delta, with_ids):
                logprobs = None
                if piece.logprobs and index in writers:
                    logprobs = writers[index].write(piece)
                stop_reason = UNSET if piece.finish_reason is None else piece.stop_reason
                ids = list(piece.token_ids) if with_ids else UNSET
                choice = CompletionChoice(index, piece.text, logprobs, piece.finish_reason, stop_reason, ids)
                yield Completion(**shared, choices=[choice], usage=usage.so_far())
    if ask.reports_usage:
        yield Completion(**shared, choices=[], usage=usage.whole())


def check_best_of(ask: CompletionRequest, best: int, n: int) -> None:
    """Raise ParameterError for what best_of can't be."""
    if ask.echo and ask.logprobs is not None:
        raise ParameterError("best_of can't be had with echo and logprobs together", "best_of")
    if best < n:
        raise ParameterError(f"best_of must be at least n ({n}), got {best}", "best_of")
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
    """Token ids, or lists of them: then every id is part of the text."""
    return isinstance(prompt, list) and not isinstance(prompt[0], str)


async def encode(request: Request, ask: CompletionRequest, prompts: list[Prompt]) -> list[list[int]]:
    """Token ids of each prompt.

    Raises:
        ContextLengthError: one is too long, whatever its tokens are.
    """
    service, special = service_of(request), ask.add_special_tokens is not False

    def work() -> list[list[int]]:
        return [
            service.tokenizer.encode(prompt, add_special_tokens=special) if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]

    for prompt in prompts:
        if isinstance(prompt, str):
            check_length(service, prompt, "prompt")
    return await service.turns.run(request, work, max(request.state.size, TURN_CHARS * len(prompts)))


async def echoed(request: Request, prompts: list[Prompt]) -> list[str]:
    """The prompts as text: as they were given, or spelt from their ids."""
    service = service_of(request)

    def work() -> list[str]:
        return [prompt if isinstance(prompt, str) else service.tokenizer.decode(prompt) for prompt in prompts]

    return await service.turns.run(request, work, sum(len(prompt) for prompt in prompts if isinstance(prompt, list)))


# ---- max_tokens 0: the prompt alone, with its logprobs


def only_echo(ask: CompletionRequest) -> bool:
    """Nothing is to be said; one token is drawn all the same, and not shown."""
    return ask.max_tokens == 0 and bool(ask.echo)


def check_only_echo(ask: CompletionRequest) -> None:
    """Raise ParameterError for what needs something said."""
    for name in ("min_tokens", "best_of", "use_beam_search", "logprob_token_ids"):
        if getattr(ask, name):
            raise ParameterError(f"{name} can't be had with max_tokens 0", name)


def unsaid(delta: Delta) -> Delta:
    """Its end alone, which is that no more was asked for."""
    if delta.finish_reason is None:
        return Delta()
    return Delta(finish_reason="length" if delta.finish_reason == "stop" else delta.finish_reason)
