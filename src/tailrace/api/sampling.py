"""A request's fields → SamplingParams: names, nulls, defaults, strings that become ids, the room left in the context.

Ranges are params.py's; here are only those that are narrower over HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.api.guidance import guidance_scale
from tailrace.api.lengths import too_long
from tailrace.api.presets import PRESETS
from tailrace.api.schema.common import MAX_TOKEN_ID, GenerateRequest
from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.ranges import MAX_PHRASE, TRUNCATIONS, check_entries, check_range, number
from tailrace.text.stop_regex import patterns
from tailrace.text.stop_strings import matcher
from tailrace.wire.messages import encoder

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

MAX_API_BIAS = 100.0
MAX_BAD_WORD_CHARS = 1000
MAX_WORDS_CHARS = 32_768  # of a list of words, which become token ids
MAX_BREAKERS = 64
VOCABULARY_CHARS = 10_000  # looking through the vocabulary, or an alphabet, costs as much as so many characters
NUMBER = re.compile(r"[-+]?[0-9][0-9.]*")  # a key of logit_bias that must be a token id; any other is text

# the same name and meaning on both sides; null is the default of SamplingParams
SAME = (
    "n",
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "smoothing_factor",
    "smoothing_curve",
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "top_a",
    "typical_p",
    "tfs_z",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_n_sigma",
    "top_h",
    "p_less",
    "p_less_norm",
    "min_k",
    "min_k_tau",
    "xtc_probability",
    "xtc_threshold",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "repetition_penalty",
    "penalty_last_n",
    "repetition_scope",
    "penalty_scope",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "normalize_logits",
    "encoder_repetition_penalty",
    "exponential_decay_length_penalty",
    "banned_ignore_case",
    "processors",
    "watermark",
    "prompt_logprobs",
    "repetition_detection",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "logprobs_mode",
    "report_entropy",
    "speculation",
)
LISTS = (
    "banned_strings",
    "forced_token_ids",
    "logprob_token_ids",
    "sampler_order",
    "stop_token_ids",
)  # the same, as tuples
TEXTS = ("stop", "stop_regex", "banned_regex")  # one string or several
DRY_BREAKERS = ("\n", ":", '"', "*")  # what every implementation has by default


def sampling_params(
    request: GenerateRequest,
    tokenizer: Tokenizer,
    defaults: Mapping[str, float | int],
    **others: Any,
) -> SamplingParams:
    """The parameters as the engine takes them, built and checked once.

    Args:
        defaults: fields that a request may leave out. others: fields of SamplingParams that do not come from a field of the same name:
            max_tokens (see `output_limit`), logprobs, the grammar, ….

    Raises:
        ParameterError: naming the field.
    """
    given = given_fields(request, defaults)
    biases, sequences = logit_bias(request.logit_bias or {}, tokenizer)
    converted: dict[str, Any] = {
        "logit_bias": biases,
        "sequence_bias": sequences + sequence_bias(request.sequence_bias or (), tokenizer),
        "bad_words": bad_words(request.bad_words or (), tokenizer),
        "dry_sequence_breakers": breakers(request, tokenizer, bool(given.get("dry_multiplier"))),
    }
    params = SamplingParams(**(given | converted | others))
    matcher(
        params
    )  # refuses patterns that can't be served; the automaton is cached, and the request's text streams find it there
    if patterns("banned_regex", params.banned_regex, params.n).any_character:
        raise ParameterError("banned_regex matches every character: nothing could be written", "banned_regex")
    return params


def given_fields(request: GenerateRequest, defaults: Mapping[str, float | int]) -> dict[str, Any]:
    """The fields that need no tokenizer: what the request gives, and where it gives nothing, its preset or the model's defaults.

    Raises:
        ParameterError: see guidance_scale and starting_point.
    """
    given: dict[str, Any] = {name: value for name in SAME if (value := getattr(request, name)) is not None}
    given |= {name: tuple(value) for name in LISTS if (value := getattr(request, name)) is not None}
    given |= {name: several(value) for name in TEXTS if (value := getattr(request, name)) is not None}
    if request.allowed_token_ids is not None:
        given["allowed_token_ids"] = tuple(request.allowed_token_ids)
    if (scale := guidance_scale(request)) is not None:
        given["guidance_scale"] = scale
    return starting_point(request.preset, defaults, given) | given


def effort(request: GenerateRequest, size: int) -> int:
    """What it costs to make parameters of a request of this size, in characters of it."""
    looks = request.dry_sequence_breakers or request.dry_multiplier or request.banned_regex
    return max(size, VOCABULARY_CHARS if looks else 0)


def several(words: str | list[str] | None) -> tuple[str, ...]:
    """One, some or none."""
    return (words,) if isinstance(words, str) else tuple(words or ())


def starting_point(preset: str | None, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the request did not give: of its preset, else of the model; none that would contradict what it gave.

    Raises:
        ParameterError: there is no such preset.
    """
    if preset is not None and preset not in PRESETS:
        raise ParameterError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}", "preset")
    start = dict(defaults if preset is None else PRESETS[preset])
    if given.get("mirostat"):
        start = {name: value for name, value in start.items() if name not in TRUNCATIONS}
    return start


def breakers(request: GenerateRequest, tokenizer: Tokenizer, on: bool) -> tuple[int, ...]:
    """The ids of all tokens that hold one of the sequence breakers."""
    if request.dry_sequence_breakers is None:
        return tokenizer.ids_with(DRY_BREAKERS) if on else ()
    strings = request.dry_sequence_breakers
    if len(strings) > MAX_BREAKERS or any(not 0 < len(s) <= MAX_BAD_WORD_CHARS for s in strings):
        raise ParameterError(
            f"dry_sequence_breakers must hold at most {MAX_BREAKERS} strings of 1 to {MAX_BAD_WORD_CHARS} characters",
            "dry_sequence_breakers",
        )
    return tokenizer.ids_with(tuple(strings))


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
        raise ParameterError(f"{field}: {count} entries over all prompts and choices are more than {MAX_SCORES}", field)


MAX_COPIES = (
    16 << 20
)  # bytes of parameters in one request: each of its prompts carries them to the engine, between two steps


def check_copies(params: SamplingParams, prompts: int, field: str) -> None:
    """Raise ParameterError, naming the field, where so many prompts, each with the parameters, are too much to send."""
    if prompts > 1 and (total := len(encoder.encode(params)) * prompts) > MAX_COPIES:
        raise ParameterError(
            f"{field}: {prompts} prompts with {total // prompts} bytes of parameters each are {total}, more than {MAX_COPIES}; send fewer "
            "prompts at once",
            field,
        )


Sequences = tuple[tuple[tuple[int, ...], float], ...]


def logit_bias(by_name: dict[str, float], tokenizer: Tokenizer) -> tuple[dict[int, float], Sequences]:
    """JSON's string keys → biases of ids, and of the spellings of strings. Digits are a token id; anything else is text, whose every
    spelling (with and without a space before it) gets the bias on its last token.

    Raises:
        ParameterError: a key is neither, or a bias lies outside OpenAI's range.
    """
    biases: dict[int, float] = {}
    sequences: list[tuple[tuple[int, ...], float]] = []
    check_entries("logit_bias", len(by_name))
    texts = [key for key in by_name if not NUMBER.fullmatch(key)]
    check_entries("sequence_bias", len(texts), of="logit_bias")
    check_words(texts, "logit_bias")
    for key, bias in by_name.items():
        if not -MAX_API_BIAS <= bias <= MAX_API_BIAS:
            raise ParameterError(
                f"logit_bias must lie between {number(-MAX_API_BIAS)} and {number(MAX_API_BIAS)}, got {bias} for token {key[:100]}",
                "logit_bias",
            )
        if not NUMBER.fullmatch(key):
            sequences += [(spelling, bias) for spelling in spellings(key, tokenizer, "logit_bias")]
            continue
        if not key.isdigit() or len(key) > 10 or int(key) > MAX_TOKEN_ID:
            raise ParameterError(f"logit_bias: {key[:100]!r} is not a token id", "logit_bias")
        if int(key) in biases:
            raise ParameterError(f"logit_bias: token {int(key)} is there twice", "logit_bias")
        biases[int(key)] = bias
    check_entries("sequence_bias", len(sequences), of="logit_bias")
    return biases, tuple(sequences)


def sequence_bias(entries: Sequence[tuple[str | list[int], float]], tokenizer: Tokenizer) -> Sequences:
    """Each entry's ids, or its text's spellings, with their bias."""
    found: list[tuple[tuple[int, ...], float]] = []
    check_entries("sequence_bias", len(entries))
    check_words((what for what, _ in entries if isinstance(what, str)), "sequence_bias")
    for what, bias in entries:
        words = (tuple(what),) if isinstance(what, list) else spellings(what, tokenizer, "sequence_bias")
        found += [(word, bias) for word in words]
    return tuple(found)


def spellings(word: str, tokenizer: Tokenizer, field: str) -> tuple[tuple[int, ...], ...]:
    """A word's spellings as token ids.

    Raises:
        ParameterError: it is empty or too long to be one.
    """
    if not 0 < len(word) <= MAX_BAD_WORD_CHARS:
        raise ParameterError(f"{field} must hold strings of 1 to {MAX_BAD_WORD_CHARS} characters", field)
    found = tokenizer.bad_word_ids(word)
    if any(len(ids) > MAX_PHRASE for ids in found):
        raise ParameterError(f"{field} must hold words of at most {MAX_PHRASE} tokens", field)
    return found


def check_words(words: Iterable[str], field: str) -> None:
    """Raise ParameterError for more text than a list of words may hold in all."""
    if (total := sum(map(len, words))) > MAX_WORDS_CHARS:
        raise ParameterError(f"{field} must hold at most {MAX_WORDS_CHARS} characters in all, got {total}", field)


def bad_words(words: list[str] | tuple[str, ...], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word's spellings as token ids.

    Raises:
        ParameterError: a word is empty or too long to be one.
    """
    check_entries("bad_words", len(words))
    check_words(words, "bad_words")
    found = (spelling for word in words for spelling in spellings(word, tokenizer, "bad_words"))
    return tuple(dict.fromkeys(found))
