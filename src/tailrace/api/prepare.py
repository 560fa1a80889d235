"""The steps that the generating endpoints share, from the body of a request to a generation that can be read.

1. `read_request` (received.py): the body, decoded once; the service of its model; whether the engine can take
   requests.
2. The endpoint makes token ids of its prompt. `prepare_chat` does it for messages, /v1/completions for strings and ids.
3. `prepare_request`: checks of limits and logprobs; SamplingParams, built and checked once.
4. `start_request`: a Generation, or a BeamRequest if the request asks for a beam search.

Knows no HTTP beyond reading the request. An error names the field that is at fault as its endpoint calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tailrace.api.beam_fields import beam_request, check_no_beams
from tailrace.api.beam_search import BeamRequest
from tailrace.api.channels import Channels, channel_fields, channels_of
from tailrace.api.chat_prompt import encode_chat
from tailrace.api.generation import Generation
from tailrace.api.negative_prompt import find_longer_prompt, negative_of_chat
from tailrace.api.prompt_length import check_uncut
from tailrace.api.received import Received
from tailrace.api.request_record import RequestOrigin
from tailrace.api.sampling import (
    check_copies,
    check_records,
    estimate_effort,
    num_logprobs,
    output_limit,
    sampling_params,
)
from tailrace.api.schema.chat import ChatRequest
from tailrace.api.schema.common import GenerateRequest
from tailrace.api.schema.completions import CompletionRequest
from tailrace.api.service import Service
from tailrace.api.thinking_fields import check_budget, closes_thoughts, wish_of, with_thinking
from tailrace.api.tool_choice import UNENFORCED, ToolChoice, chat_grammar, is_strict
from tailrace.errors import ParameterError
from tailrace.params import SamplingParams

# what an endpoint adds to the sampling fields: fields of SamplingParams, and the field of the request that the grammar
# came in
Additions = tuple[Mapping[str, Any], str]


BUDGET, CONTROL = "thinking_token_budget", "reasoning_control"
# a field whose plain use needs no grammar → what of it does
GUIDED_CALLS = {"tools": "tools: a forced call, strict tools, a choice among tools and one call at most"}
UNNAMED = 256  # tokens that a sequence without a named limit reserves; what it uses beyond is settled at its end
UNLIMITED = -1  # a limit of tokens in chats and completions: none, as in llama.cpp and LM Studio


class Prompts(NamedTuple):
    """A request's prompts as token ids.

    field: what the client calls the prompt. negative: the negative prompt of classifier-free guidance; () for none.
    """

    token_ids: list[list[int]]
    field: str
    negative: tuple[int, ...] = ()


class TokenLimit(NamedTuple):
    """How many tokens the client allows, and what it calls the limit; None: the model's default, or as many as the
    context has room for.

    ends_with_context: the limit may be more than that.
    """

    max_tokens: int | None
    field: str
    ends_with_context: bool = False

    def within(self, room: int, default: int | None = None) -> int | None:
        """The limit, where the context has room for so many tokens. default: of the model, where the client names
        none."""
        named = self.max_tokens is not None
        most = self.max_tokens if named else default
        return most if most is None or (named and not self.ends_with_context) else min(most, max(room, 1))


class PreparedRequest(NamedTuple):
    """What the engine is given. limit: the client's, of tokens. grammar_field, prompt_field: what the client calls the
    grammar and the prompt."""

    prompts: list[list[int]]
    params: SamplingParams
    limit: TokenLimit
    grammar_field: str = "grammar"
    prompt_field: str = "prompt"


class ChatInput(NamedTuple):
    """A conversation as /v1/chat/completions has it, wherever it came in, and what its endpoint calls its fields.

    tools: as they were given, in the form of Chat or of Responses.
    """

    ask: ChatRequest
    choice: ToolChoice
    tools: list[dict[str, Any]] | None
    limit: TokenLimit
    messages_field: str = "messages"
    format_field: str = "response_format"


async def prepare_request(
    received: Received[Any],
    ask: GenerateRequest,
    prompts: Prompts,
    limit: TokenLimit,
    logprobs: int | None,
    additions: Callable[[], Additions],
) -> PreparedRequest:
    """The request as the engine takes it. The parameters are made on the work queue: some take long.

    Args:
        logprobs: alternatives to report per token; None is no logprobs. additions: called there as well.

    Raises:
        ParameterError: naming the field. ContextLengthError: the prompt leaves no room for an answer.
    """
    service = received.service
    num_prompt, prompt_field = find_longer_prompt(max(map(len, prompts.token_ids)), prompts.negative, prompts.field)
    named = 0 if limit.ends_with_context else limit.max_tokens or 0
    check_uncut(ask, num_prompt, prompt_field, named, limit.field)
    most = service.client.model.max_model_len
    default = service.defaults.get("max_tokens")
    asked = limit.within(most - num_prompt, None if default is None else int(default))
    max_tokens = output_limit(num_prompt, most, asked, limit.field, prompt_field)
    if ask.prompt_logprobs is not None:
        num_logprobs(ask.prompt_logprobs, service.config.max_logprobs, "prompt_logprobs")

    def build_request() -> PreparedRequest:
        more, grammar_field = additions()
        given = {"max_tokens": max_tokens, "logprobs": logprobs, "negative_prompt": prompts.negative, **more}
        params = sampling_params(ask, service.tokenizer, service.defaults, **given)
        field = prompts.field if params.grammar is None else grammar_field
        check_copies(params, len(prompts.token_ids), field)
        for ids in prompts.token_ids:
            params.scored_places(len(ids))
        return PreparedRequest(prompts.token_ids, params, limit, grammar_field, prompts.field)

    return await received.run(build_request, estimate_effort(ask, received.size))


async def prepare_chat(
    received: Received[Any], chat: ChatInput, logprobs: int | None = None
) -> tuple[PreparedRequest, Channels]:
    """A chat as the engine takes it, and the channels of its answer.

    Raises:
        RequestError: see `prepare_request`, encode_chat, channel_fields and chat_grammar.
    """
    service = received.service
    wish, with_tools = wish_of(chat.ask), chat.choice.mode != "none"
    check_budget(service, wish)
    ask = with_thinking(service.tokenizer, chat.ask)
    closed = closes_thoughts(service, wish)
    if closed:
        ask.thinking_token_budget = 0
        ask.reasoning_budget_message = ask.reasoning_budget_message or ""  # the server's words are for thoughts
    field = wish.off_field if closed else wish.budget_field
    if ask.reasoning_control and ask.thinking_token_budget is None:
        field = CONTROL
    if field != BUDGET:
        received.names[BUDGET] = field
    prompt = await encode_chat(received, ask, with_tools, chat.messages_field)
    negative = await negative_of_chat(received, ask, with_tools)
    channels = channels_of(service, ask, prompt)
    ends = {BUDGET: ask.thinking_token_budget is not None, CONTROL: ask.reasoning_control}
    if ask.use_beam_search and channels.thought is not None and any(ends.values()):
        field = next(name for name, wanted in ends.items() if wanted)
        raise ParameterError(f"{field} can't be had with use_beam_search", field)

    def make_chat_additions() -> Additions:
        fields = channel_fields(service, ask, channels)
        grammar, field = chat_grammar(service, ask, chat.choice, chat.tools, channels, chat.format_field)
        if with_tools and grammar is None and any(map(is_strict, chat.tools or ())):
            received.warn(UNENFORCED)
            service.warn_once(UNENFORCED)
        return {**fields, "grammar": grammar}, field

    prompts = Prompts([prompt], chat.messages_field, negative)
    return await prepare_request(received, ask, prompts, chat.limit, logprobs, make_chat_additions), channels


def check_gathered(prepared: PreparedRequest) -> None:
    """Raise ParameterError if an answer that is gathered would have too many records of why its tokens came."""
    params = prepared.params
    check_records(params.explain, len(prepared.prompts) * params.n * (params.max_tokens or 0), "explain")


def reserve_tokens(origin: RequestOrigin, prepared: PreparedRequest, sequences: int) -> None:
    """Reserve what the request may use, or about that if it names no limit of tokens. sequences: of each prompt.

    Raises:
        ParameterError: the request would never be within the limit. RateLimitError: the user has fewer tokens left.
    """
    admission = origin.admission
    if admission is None or not (most := admission.rates.tokens):
        return
    prompt_tokens, outputs = sum(map(len, prepared.prompts)), sequences * len(prepared.prompts)
    length = prepared.params.max_tokens or 0
    room = (most - prompt_tokens) // outputs
    if room < min(1, length):
        raise ParameterError(
            f"{prepared.prompt_field}: {prompt_tokens} tokens of prompts and {outputs} outputs are more than the "
            f"{most} tokens that a user has per minute (--tokens-per-minute)",
            prepared.prompt_field,
        )
    limit = prepared.limit
    if limit.max_tokens is None:
        length = min(length, UNNAMED, room)
    if length > room:
        raise ParameterError(
            f"{limit.field} must be at most {room} for {prompt_tokens} tokens of prompts and {outputs} outputs: a user "
            f"has {most} tokens per minute (--tokens-per-minute), got {length}",
            limit.field,
        )
    admission.reserve(prompt_tokens + outputs * length)


def start_generation(service: Service, id: str, prepared: PreparedRequest, origin: RequestOrigin) -> Generation:
    """The generation of a request that is prepared.

    Raises:
        ParameterError: a whole answer would have too many records of why its tokens came; or see reserve_tokens.
        RateLimitError: see reserve_tokens.
    """
    if not origin.streamed:
        check_gathered(prepared)
    reserve_tokens(origin, prepared, prepared.params.n)
    return Generation(service, id, prepared.prompts, prepared.params, origin, prepared.grammar_field)


def start_request(
    service: Service, ask: ChatRequest | CompletionRequest, id: str, prepared: PreparedRequest, origin: RequestOrigin
) -> Generation | BeamRequest:
    """The generation, or the beam search that the request asks for.

    Raises:
        ParameterError: fields that only one of the two takes; or see start_generation. RateLimitError: see
            reserve_tokens.
    """
    if not ask.use_beam_search:
        check_no_beams(ask)
        return start_generation(service, id, prepared, origin)
    if prepared.params.grammar is not None:
        raise ParameterError(
            f"{GUIDED_CALLS.get(prepared.grammar_field, prepared.grammar_field)} can't be had with use_beam_search",
            prepared.grammar_field,
        )
    if len(prepared.prompts) > 1:
        raise ParameterError("prompt must be one prompt with use_beam_search", "prompt")
    found = beam_request(service, ask, id, prepared.prompts[0], prepared.params, origin)
    reserve_tokens(origin, prepared, found.width)
    return found
