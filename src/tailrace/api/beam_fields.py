"""The fields of a beam search, the same for chats and completions, and the fields that can't be combined with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.api.beam_search import BeamRequest, BeamSearch
from tailrace.errors import ParameterError
from tailrace.params import FIELDS, NEUTRAL, SamplingParams

if TYPE_CHECKING:
    from tailrace.api.request_record import RequestOrigin
    from tailrace.api.schema.chat import ChatRequest
    from tailrace.api.schema.completions import CompletionRequest
    from tailrace.api.service import Service

# fields that a beam search replaces or can't use
NOT_WITH_BEAMS = (
    *(field.http_name or name for name, field in FIELDS.items() if not field.beams),
    *("top_logprobs", "echo", "preset", "return_sampling_params", "cfg_scale"),
)
MAX_BEAMS = 64
MAX_PENALTY = 10.0


def beam_request(
    service: Service,
    ask: ChatRequest | CompletionRequest,
    id: str,
    prompt: list[int],
    params: SamplingParams,
    origin: RequestOrigin,
) -> BeamRequest:
    """The search for the n best of `best_of` (default n) beams.

    Raises:
        ParameterError: fields that a beam search does not take, or out of range.
    """
    for name in NOT_WITH_BEAMS:
        given = getattr(ask, name, None)
        if not (given is None or given is False or given in ([], {}, "") or given == NEUTRAL.get(name)):
            raise ParameterError(f"{name} can't be had with use_beam_search", name)
    width, n = params.n if ask.best_of is None else ask.best_of, params.n
    if not n <= width <= MAX_BEAMS:
        field, least = ("n", 1) if ask.best_of is None else ("best_of", n)
        raise ParameterError(
            f"{field} must be an integer in [{least}, {MAX_BEAMS}] with use_beam_search, got {width}", field
        )
    penalty = 1.0 if ask.length_penalty is None else ask.length_penalty
    if not -MAX_PENALTY <= penalty <= MAX_PENALTY:
        raise ParameterError(
            f"length_penalty must be a number in [-{MAX_PENALTY:g}, {MAX_PENALTY:g}], got {penalty}", "length_penalty"
        )
    assert params.max_tokens is not None
    eos = frozenset(service.client.model.eos_token_ids)
    search = BeamSearch(width, params.max_tokens, eos, penalty, ask.early_stopping or False)
    return BeamRequest(service, id, prompt, params, search, origin)


def check_no_beams(ask: ChatRequest | CompletionRequest) -> None:
    """Raise ParameterError for fields of beam search in a request without one."""
    for name, given in (
        ("length_penalty", ask.length_penalty not in (None, 1.0)),
        ("early_stopping", ask.early_stopping),
    ):
        if given:
            raise ParameterError(f"{name} has no effect without use_beam_search", name)
