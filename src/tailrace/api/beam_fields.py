"""The fields of a beam search, the same for chats and completions, and the fields that can't be combined with one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.api.beam_search import BeamRequest, BeamSearch
from tailrace.api.sampling import own_fields
from tailrace.errors import ParameterError
from tailrace.params import FIELDS, SamplingParams, find_idle

if TYPE_CHECKING:
    from tailrace.api.request_record import RequestOrigin
    from tailrace.api.schema.chat import ChatRequest
    from tailrace.api.schema.completions import CompletionRequest
    from tailrace.api.service import Service

# fields of requests alone that a beam search can't use → the values at which they ask for nothing
NOT_WITH_BEAMS: dict[str, tuple[Any, ...]] = {
    "top_logprobs": (),
    "echo": (),
    "preset": (),
    "return_sampling_params": (),
    "return_progress": (),
    "cfg_scale": (1.0,),
}
NO_NOISE = 0.0  # a temperature that a search has anyway: it draws nothing
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
    check_fields(ask)
    width, n = params.n if ask.best_of is None else ask.best_of, params.n
    if n > MAX_BEAMS or width > MAX_BEAMS or width < n:
        field, value, least = ("n", n, 1) if n > MAX_BEAMS else ("best_of", width, n)
        raise ParameterError(
            f"{field} must be an integer in [{least}, {MAX_BEAMS}] with use_beam_search, got {value}", field
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


def check_fields(ask: ChatRequest | CompletionRequest) -> None:
    """Raise ParameterError, naming the field, for a field of the request that a beam search would ignore."""
    for name, nothing in NOT_WITH_BEAMS.items():
        if (given := getattr(ask, name, None)) and given not in nothing:
            raise ParameterError(f"{name} can't be had with use_beam_search", name)
    named = {name: field.http_name or name for name, field in FIELDS.items() if field.http}
    own = own_fields(ask)
    given = {name: value for name in named if (value := own.get(name, getattr(ask, named[name], None))) is not None}
    if "seed" not in own:  # given as "none"
        given.pop("seed", None)
    idle = find_idle(given.keys(), given)
    for name, value in given.items():
        nothing = value is False or value in ((), [], {}, "") or FIELDS[name].neutral(value)
        if FIELDS[name].beams or nothing or name in idle or (name == "temperature" and value == NO_NOISE):
            continue
        raise ParameterError(f"{named[name]} can't be had with use_beam_search", named[name])


def check_no_beams(ask: ChatRequest | CompletionRequest) -> None:
    """Raise ParameterError for fields of beam search in a request without one, unless it turns the search off."""
    if ask.use_beam_search is False:
        return
    for name, given in (
        ("length_penalty", ask.length_penalty not in (None, 1.0)),
        ("early_stopping", ask.early_stopping),
    ):
        if given:
            raise ParameterError(f"{name} has no effect without use_beam_search", name)
