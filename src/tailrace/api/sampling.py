"""A request's fields → SamplingParams: names, nulls, defaults, strings that become ids, the room left in the context.

Ranges are params.py's; here are only those that are narrower over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.api.negative_prompt import guidance_scale
from tailrace.api.presets import PRESETS
from tailrace.api.prompt_length import too_long
from tailrace.api.sampler_lists import read_refinements
from tailrace.api.schema.common import PLAIN, GenerateRequest
from tailrace.api.token_fields import encode_prediction, logit_bias
from tailrace.errors import ParameterError, format_json
from tailrace.explain.record import ExplainOptions
from tailrace.params import FIELDS, NEUTRAL, SamplingParams, check_range, find_idle, find_void
from tailrace.request.fields import RANDOM_SEED
from tailrace.text.stop_regex import compile_request_patterns
from tailrace.text.stop_strings import stop_search
from tailrace.text.token_phrases import encode_biased_phrases, encode_words, find_breaker_ids
from tailrace.wire.messages import encoder

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

TEXTS = ("stop", "stop_regex", "banned_regex")  # one string or several
VOCABULARY_CHARS = 10_000  # looking through the vocabulary, or an alphabet, costs as much as so many characters


def sampling_params(
    request: GenerateRequest,
    tokenizer: Tokenizer,
    defaults: Mapping[str, float | int],
    **others: Any,
) -> SamplingParams:
    """The parameters as the engine takes them, built and checked once.

    Args:
        defaults: fields that a request may leave out. others: fields of SamplingParams that do not come from a field of
            the same name: max_tokens (see `output_limit`), logprobs, the grammar, ….

    Raises:
        ParameterError: naming the field.
    """
    given = given_fields(request, defaults)
    biases, sequences = logit_bias(request.logit_bias or {}, tokenizer)
    converted: dict[str, Any] = {
        "logit_bias": biases,
        "sequence_bias": sequences + encode_biased_phrases(request.sequence_bias or (), tokenizer),
        "bad_words": encode_words(request.bad_words or (), tokenizer),
        "dry_sequence_breakers": find_breaker_ids(
            request.dry_sequence_breakers, tokenizer, given.get("dry_multiplier")
        ),
        "prediction": encode_prediction(getattr(request, "prediction", None), tokenizer),  # of chats and completions
    }
    params = SamplingParams(**(given | converted | others))
    stop_search(params)  # refuses patterns that cannot be served; the automaton is cached for the request's streams
    if compile_request_patterns("banned_regex", params.banned_regex, params.n).any_character:
        raise ParameterError("banned_regex matches every character: nothing could be written", "banned_regex")
    return params


# fields that may be others when an output is explained: those that the sampler acts on, but what the noise depends on
CHANGEABLE = frozenset(
    name
    for name, field in FIELDS.items()
    if field.kind in ("edit", "reshape", "truncation", "draw") and not field.instead and field.http
) - {"seed", "forced_token_ids"}


def change_params(
    params: SamplingParams, request: GenerateRequest, names: Iterable[str], tokenizer: Tokenizer
) -> SamplingParams:
    """The parameters with the fields of these names as the request has them.

    Raises:
        ParameterError: naming the field.
    """
    for name in names:
        if name not in CHANGEABLE and name != "preset":
            raise ParameterError(f"{name} can't be another: only preset and {', '.join(sorted(CHANGEABLE))} can", name)
    given = given_fields(request, {})
    biases, sequences = logit_bias(request.logit_bias or {}, tokenizer)
    if request.logit_bias is not None:
        given["logit_bias"] = biases
    if sequences or request.sequence_bias is not None:
        given["sequence_bias"] = sequences + encode_biased_phrases(request.sequence_bias or (), tokenizer)
    if request.bad_words is not None:
        given["bad_words"] = encode_words(request.bad_words, tokenizer)
    if request.dry_sequence_breakers is not None or given.get("dry_multiplier"):
        given["dry_sequence_breakers"] = find_breaker_ids(
            request.dry_sequence_breakers, tokenizer, given.get("dry_multiplier")
        )
    before = {name: value for name in FIELDS if (value := getattr(params, name)) != NEUTRAL[name]}
    idle = find_idle(given, before | given)
    return msgspec.structs.replace(params, **(given | {name: NEUTRAL[name] for name in idle}))


def given_fields(request: GenerateRequest, defaults: Mapping[str, float | int]) -> dict[str, Any]:
    """The fields that need no tokenizer: what the request gives, and where it gives nothing, its preset or the model's
    defaults. Fields of a method that is turned off are left out, whatever their values.

    Raises:
        ParameterError: see own_fields and starting_point.
    """
    own = own_fields(request)
    given = starting_point(request.preset, defaults, own) | own
    for name in find_idle(own, given):
        del given[name]
    return given


def own_fields(request: GenerateRequest) -> dict[str, Any]:
    """What the request gives itself.

    Raises:
        ParameterError: see guidance_scale.
    """
    own: dict[str, Any] = {name: value for name in PLAIN if (value := getattr(request, name)) is not None}
    own |= {name: as_tuple(value) for name in TEXTS if (value := getattr(request, name)) is not None}
    if (scale := guidance_scale(request)) is not None:
        own["guidance_scale"] = scale
    if request.explain:
        own["explain"] = ExplainOptions() if request.explain is True else request.explain
    if (order := own.get("sampler_order")) is not None:
        own["sampler_order"] = tuple(read_refinements("sampler_order", list(order), own))
    if own.get("seed") == RANDOM_SEED:
        del own["seed"]
    return own


def estimate_effort(request: GenerateRequest, size: int) -> int:
    """Return the cost of making parameters of a request of this size, in characters of the request."""
    looks = request.dry_sequence_breakers or request.dry_multiplier or request.banned_regex
    return max(size, VOCABULARY_CHARS if looks else 0)


def as_tuple(words: str | list[str] | None) -> tuple[str, ...]:
    """One, some or none."""
    return (words,) if isinstance(words, str) else tuple(words or ())


def starting_point(preset: str | None, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the request did not give: of its preset, else of the model; none that would contradict what it
    gave.

    Raises:
        ParameterError: there is no such preset.
    """
    if preset is not None and preset not in PRESETS:
        raise ParameterError(f"preset must be one of {', '.join(PRESETS)}, got {format_json(preset)}", "preset")
    start = dict(defaults if preset is None else PRESETS[preset])
    void = find_void(start, given)
    return {name: value for name, value in start.items() if name not in void}


def output_limit(num_prompt: int, max_model_len: int, asked: int | None, field: str, prompt_field: str) -> int:
    """How many tokens may follow the prompt: what was asked for, or the rest of the context.

    Args:
        num_prompt: tokens of the (longest) prompt. field, prompt_field: what the client calls them.

    Raises:
        ContextLengthError: not even one fits. ParameterError: more were asked for than fit.
    """
    rest = max_model_len - num_prompt
    if rest < 1:
        raise too_long(num_prompt, max_model_len, prompt_field)
    if asked is None:
        return rest
    check_range("max_tokens", asked, field)
    if asked > rest:
        raise ParameterError(
            f"{field} must be an integer in [1, {rest}], got {asked}: the model's context is {max_model_len} tokens, "
            f"of which the prompt takes {num_prompt}",
            field,
        )
    return asked


def num_logprobs(asked: int, limit: int, field: str) -> int:
    """`asked` itself.

    Raises:
        ParameterError: it is not in 0 … limit.
    """
    if not 0 <= asked <= limit:
        raise ParameterError(f"{field} must be an integer in [0, {limit}], got {asked}", field)
    return asked


MAX_SCORES = 1_000_000


def check_scores(count: int, field: str) -> None:
    """Raise ParameterError, naming the field, if an answer would hold too many logprobs of prompts."""
    if count > MAX_SCORES:
        raise ParameterError(f"{field}: {count} logprobs of all prompts and choices are more than {MAX_SCORES}", field)


MAX_SHOWN_TOKENS = 2_000_000  # of all records of an answer that is gathered; each takes about 170 bytes of JSON


def check_records(options: ExplainOptions | None, tokens: int, field: str) -> None:
    """Raise ParameterError, naming the field, if the records of so many tokens would be too large an answer."""
    if options is None:
        return
    each = 2 * options.top + len(options.ids) + 3  # at most: the model's, those that may be drawn; token and rivals
    if tokens * each > MAX_SHOWN_TOKENS:
        less = "fewer positions" if field == "positions" else "fewer output tokens or choices, or streamed"
        raise ParameterError(
            f"{field}: records of {tokens:,} tokens that show up to {each} each are {tokens * each:,} tokens in one "
            f"answer, more than {MAX_SHOWN_TOKENS:,}: ask for a smaller explain.top, {less}",
            field,
        )


MAX_COPIES = (
    16 << 20
)  # bytes of parameters in one request: each of its prompts carries them to the engine, between two steps


def check_copies(params: SamplingParams, prompts: int, field: str) -> None:
    """Raise ParameterError, naming the field, where so many prompts, each with the parameters, are too much to send."""
    if prompts > 1 and (total := len(encoder.encode(params)) * prompts) > MAX_COPIES:
        raise ParameterError(
            f"{field}: {prompts} prompts with {total // prompts} bytes of parameters each are {total}, more than "
            f"{MAX_COPIES}; send fewer prompts at once",
            field,
        )
