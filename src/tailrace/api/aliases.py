"""Names and forms that other servers have for fields of a request → ours, before the body is decoded.

RENAMED has names of the same meaning; the fields declare them. CONVERTED has functions for names, or values of our own
names, whose meaning must be translated. docs/api/sampling-fields.md lists both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import msgspec

from tailrace.api.sampler_lists import put_temperature_last, read_order, read_priority, read_samplers
from tailrace.errors import ParameterError, RequestError, format_json
from tailrace.params import FIELDS
from tailrace.request.field_checks import MAX_BIAS
from tailrace.request.fields import COUNT, RANDOM_SEED

Values = dict[str, Any]
# value, all values that may matter, the endpoint's fields → our fields
Converter = Callable[[Any, Mapping[str, Any], Collection[str]], Values]
E = TypeVar("E", bound=RequestError)

RENAMED = {alias: field.http_name or name for name, field in FIELDS.items() for alias in field.aliases}
RENAMED |= {"rid": "request_id", "grammar_string": "grammar"}
RENAMED |= {"max_context_length": "truncation_length", "n_ctx": "num_ctx"}
ELSEWHERE = {"max_tokens": "max_output_tokens"}  # a field → what it is where the endpoint has this one
DIGITS = re.compile(r"[0-9]+")


def read_n_probs(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """llama.cpp's number of likeliest tokens per token; 0 asks for none."""
    COUNT.check("n_probs", value)
    if not value:
        return {}
    return {"logprobs": True, "top_logprobs": value} if "top_logprobs" in fields else {"logprobs": value}


def read_logprobs(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """A chat's "no logprobs" in a completion, where it is a number."""
    return {"logprobs": None} if value is False and "echo" in fields else {}


def read_logit_bias(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """llama.cpp's pairs of a token, or text, and a bias; false bans the token."""
    if isinstance(value, dict) and False not in [bias for bias in value.values() if isinstance(bias, bool)]:
        return {}
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(is_pair(pair) for pair in pairs):
        raise ParameterError(
            "logit_bias must be an object of token ids or texts and numbers, or a list of such pairs", "logit_bias"
        )
    biases: dict[str, float] = {}
    banned: list[Any] = []
    for key, bias in pairs:
        if bias is False:
            banned.append([[int(key)] if DIGITS.fullmatch(str(key)) else key, -MAX_BIAS])
        else:
            biases[str(key)] = biases.get(str(key), 0.0) + bias
    return {"logit_bias": biases} | (
        {"sequence_bias": [*(given.get("sequence_bias") or ()), *banned]} if banned else {}
    )


def is_pair(pair: Any) -> bool:
    """Return whether this is a token id or text with a bias."""
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return False
    key, bias = pair
    number = isinstance(bias, int | float) and not isinstance(bias, bool)
    return isinstance(key, int | str) and not isinstance(key, bool) and (number or bias is False)


def read_breakers(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """A list as text: JSON, or what stands between its brackets."""
    if not isinstance(value, str):
        return {}
    text = value.strip()
    try:
        found = msgspec.json.decode(text if text.startswith("[") else f"[{text}]", type=list[str])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ParameterError(
            f"dry_sequence_breakers must be a list of strings, or one as JSON text, got {format_json(value)}",
            "dry_sequence_breakers",
        ) from error
    return {"dry_sequence_breakers": found or None}


def read_dynamic_temperature(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """text-generation-webui's switch: the temperature goes from one end to the other."""
    if value is not True or given.get("dynatemp_range") is not None:
        return {}
    ends = [
        given.get(f"dynatemp_{low}", given.get(f"dynatemp_{end}")) for low, end in (("low", "min"), ("high", "max"))
    ]
    low, high = (end if isinstance(end, int | float) and not isinstance(end, bool) else None for end in ends)
    if low is None or high is None or low > high:
        raise ParameterError(
            "dynamic_temperature needs dynatemp_range, or numbers dynatemp_low ≤ dynatemp_high", "dynamic_temperature"
        )
    return {"temperature": (low + high) / 2, "dynatemp_range": (high - low) / 2}


def read_do_sample(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """transformers' switch: false takes the likeliest token. Beams are the likeliest ones, too.

    Raises:
        ParameterError: a beam search that should draw.
    """
    if value is True and given.get("use_beam_search") is True:
        raise ParameterError("do_sample can't be had with use_beam_search", "do_sample")
    return {"temperature": 0.0} if value is False else {}


def read_penalty_range(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """text-generation-webui's window, where 0 is all; llama.cpp's name goes before it."""
    if value == 0 and any(name in given for name in ("penalty_last_n", *FIELDS["penalty_last_n"].aliases)):
        return {}
    return {"penalty_last_n": -1 if value == 0 else value}


def read_slope(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """Refuse koboldcpp's rep_pen_slope if it would change the repetition penalty.

    The slope has no effect at 0 or 1, without a penalty above 1, or if penalty_last_n is 0.

    Raises:
        ParameterError: the slope would have an effect.
    """
    penalty = given.get("repetition_penalty")
    on = isinstance(penalty, int | float) and penalty > 1 and given.get("penalty_last_n") != 0
    if value not in (0, 1) and on:
        raise ParameterError(
            "rep_pen_slope: not supported beside a repetition penalty; set it to 1 or leave it out", "rep_pen_slope"
        )
    return {}


def read_reasoning_format(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """llama.cpp's choice of where thoughts go."""
    if value not in ("none", "auto", "deepseek"):
        raise ParameterError(
            f"reasoning_format must be one of none, auto, deepseek, got {format_json(value)}", "reasoning_format"
        )
    return {"separate_reasoning": False} if value == "none" and "separate_reasoning" in fields else {}


def read_budget(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """A limit of a thought, under the names of llama.cpp, Qwen and others; −1 is none."""
    return {} if value == -1 else {"thinking_token_budget": value}


def read_think(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """Ollama's switch, which may be an effort. Where nobody can turn thinking on, off asks for nothing."""
    if value is False and "thinking" not in fields:
        return {}
    return {"reasoning_effort" if isinstance(value, str) else "enable_thinking": value}


def read_render_special(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """koboldcpp's switch: true writes special tokens."""
    return {"skip_special_tokens": False} if value is True else {}


def read_bos(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """text-generation-webui's switch; a chat's template writes its own."""
    if value is False and "messages" in fields:
        raise ParameterError(
            "add_bos_token: the chat template writes the beginning; leave it out (or true)", "add_bos_token"
        )
    return {"add_special_tokens": False} if value is False else {}


def read_repetition_detection(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> Values:
    """vLLM's record, whose numbers are 0 by default: a largest size of 0 is off, a smallest size of 0 is 1."""
    if not isinstance(value, dict):
        return {}
    others = {name: number for name, number in value.items() if number != 0 or isinstance(number, bool)}
    if others == value and value:
        return {}
    off = not others or value.get("max_pattern_size") == 0
    return {"repetition_detection": None if off else others}


# in this order: the later ones see what the earlier ones made
CONVERTED: dict[str, Converter] = {
    "n_probs": read_n_probs,
    "logprobs": read_logprobs,
    "logit_bias": read_logit_bias,
    "dry_sequence_breakers": read_breakers,
    "repetition_detection": read_repetition_detection,
    "dynamic_temperature": read_dynamic_temperature,
    "do_sample": read_do_sample,
    "repetition_penalty_range": read_penalty_range,
    "rep_pen_slope": read_slope,
    "sampler_order": read_order,
    "sampler_priority": read_priority,
    "samplers": read_samplers,
    "temperature_last": put_temperature_last,
    "reasoning_format": read_reasoning_format,
    **dict.fromkeys(("reasoning_budget_tokens", "thinking_budget_tokens", "thinking_budget"), read_budget),
    **dict.fromkeys(("reasoning_budget", "max_reasoning_tokens"), read_budget),
    **dict.fromkeys(("think", "enable_reasoning"), read_think),
    "render_special": read_render_special,
    "add_bos_token": read_bos,
}
# names that replace what is given: other forms of our own fields, and lists that switch samplers off
REPLACING = frozenset(
    {"logprobs", "logit_bias", "dry_sequence_breakers", "repetition_detection", "sampler_order", "samplers"}
    | {"temperature_last"}
)
ALIASES = frozenset(RENAMED) | {name for name in CONVERTED if name not in FIELDS}
READ = ALIASES | CONVERTED.keys() | {field.http_name or name for name, field in FIELDS.items() if field.http}
READ |= {*RENAMED.values(), *ELSEWHERE.values(), "top_logprobs", "separate_reasoning", "add_special_tokens"}
READ |= {"enable_thinking", "reasoning_effort", "use_beam_search"}
READ |= {"dynatemp_low", "dynatemp_high", "dynatemp_min", "dynatemp_max"}


def resolve_aliases(given: Mapping[str, Any], fields: Collection[str]) -> tuple[Values, dict[str, str]]:
    """Return the values of our fields that follow from other servers' names and forms; and field → the name it had.

    Args:
        given: the values of a request by name, of READ. fields: names that the endpoint has.

    Raises:
        ParameterError: two names of one field with two values, a value that can't be translated, or a name whose field
            the endpoint lacks.
    """
    made: Values = {}
    used: dict[str, str] = {}

    def set_field(name: str, field: str, value: Any) -> None:
        field = ELSEWHERE[field] if ELSEWHERE.get(field) in fields else field
        if field not in fields:
            raise ParameterError(f"{name}: not supported here; leave it out", name)
        before = made.get(field, given.get(field))
        if field == "seed" and value == RANDOM_SEED and before is not None:
            return
        before = None if field == "seed" and before == RANDOM_SEED else before
        if name not in REPLACING and before is not None and not is_same(before, value):
            other = used.get(field, field)
            raise ParameterError(
                f"{name} ({format_json(given.get(name, value))}) and {other} ({format_json(given.get(other, before))}) "
                "are two names of one field",
                name,
            )
        made[field] = value
        if given.get(field) is None and name != field and (name != "samplers" or field == "sampler_order"):
            used[field] = name

    for name, value in given.items():
        if value is not None and name in RENAMED and name not in fields:
            set_field(name, RENAMED[name], value)
    for name, convert in CONVERTED.items():
        if given.get(name) is not None and (name not in fields or name in FIELDS):
            for field, value in convert(given[name], {**given, **made}, fields).items():
                set_field(name, field, value)
    return made, used


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values of a field mean the same: a text is a list of one."""
    listed = [[value] if isinstance(value, str) else value for value in (one, other)]
    return listed[0] == listed[1]
