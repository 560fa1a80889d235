"""Rotary embeddings as a GGUF file states them → transformers' `rope_parameters`. Part of convert.py's process.

llama.cpp writes llama3's scaling as a factor for each frequency (the tensor rope_freqs.weight), LongRoPE as two such
tensors, and linear scaling and YaRN as fields. Factors are kept as they are: transformers' "longrope" divides each
frequency by its own factor, whatever the factors come from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace.errors import ModelLoadError
from tailrace.models.gguf_fields import Fields

THETA = 10000.0  # llama.cpp's, where a file states none
FREQUENCIES, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
# architectures whose models in transformers can turn a part of a head; the others ignore the setting
PARTIAL = frozenset(
    {"phi3", "glm4", "glm4moe", "stablelm", "nemotron", "qwen35", "qwen35moe", "qwen3next", "phi2", "minimax-m2"}
)
# architectures for which llama.cpp reads yarn_log_multiplier
LOG_MULTIPLIED = frozenset({"deepseek2", "deepseek32", "mistral3"})
YARN = ("ext_factor", "attn_factor", "beta_fast", "beta_slow", "log_multiplier")
Rope = dict[str, Any]


def plain_rope(fields: Fields, head: int, theta: float | None = None) -> Rope:
    """Return the settings without scaling. head: entries of a head; fewer may be turned."""
    rope: Rope = {
        "rope_type": "default",
        "rope_theta": fields.positive("rope.freq_base", THETA) if theta is None else theta,
    }
    turned, partial = fields.count("rope.dimension_count", head), fields.architecture in PARTIAL
    if partial:  # also for whole heads: some classes have another default
        rope["partial_rotary_factor"] = turned / head
    wrong = not 0 < turned <= head or turned % 2 or int(head * (turned / head)) != turned
    if wrong or not (partial or turned == head):
        fields.refuse("rope.dimension_count", turned)
    return rope


def check_sections(fields: Fields) -> None:
    """Check the frequencies of times, heights and widths. A text's token has the same position in these three; in a
    fourth section llama.cpp gives it position 0.

    Raises:
        ModelLoadError: the fourth section has frequencies.
    """
    sections = fields.each("rope.dimension_sections", None)
    if isinstance(sections, list) and any(sections[3:]):
        fields.refuse("rope.dimension_sections", sections)


def read_rope(fields: Fields, head: int, log_unit: float = 1.0) -> Rope:
    """Return the scaling that the file states. log_unit: yarn_log_multiplier of mscale_all_dim 1.

    Raises:
        ModelLoadError: a kind that is not known, or two that are not known to go together.
    """
    rope, turned = plain_rope(fields, head), fields.count("rope.dimension_count", head)
    factor = fields.number("rope.scaling.factor", 0) or fields.number("rope.scale_linear", 0)
    kind = fields.take("rope.scaling.type", "linear")
    attention = fields.number("rope.scaling.attn_factor", 0) or None
    original = fields.count("rope.scaling.original_context_length", 0)
    if LONG in fields.tensors or SHORT in fields.tensors:
        return rope | read_longrope(fields, turned, original, attention)
    factors = frequency_factors(fields, FREQUENCIES, turned)
    if factors == [1.0] * (turned // 2):
        factors = None  # they change nothing
    if kind == "yarn":
        if factors is not None:
            fields.refuse("rope.scaling.type", f"yarn beside the tensor {FREQUENCIES}")
        return rope | read_yarn(fields, factor, original, attention, log_unit)
    if kind not in ("linear", "none"):
        fields.refuse("rope.scaling.type", kind)
    if attention not in (None, 1):
        fields.refuse("rope.scaling.attn_factor", attention)
    more = read_yarn_fields(fields, neutral=True)
    factor = factor if kind == "linear" and factor else 1
    if log_unit != 1 and factor != 1 and more["log_multiplier"]:  # llama.cpp scales scores by it, without YaRN too
        fields.refuse("rope.scaling.yarn_log_multiplier", more["log_multiplier"])
    if factors is not None:
        context = fields.count("context_length")
        one = {"short_factor": [f * factor for f in factors], "original_max_position_embeddings": context}
        same = {"long_factor": one["short_factor"], "attention_factor": 1.0, "factor": 1.0}
        return rope | one | same | {"rope_type": "longrope"}
    if factor == 1:
        return rope
    original = original or max(1, int(fields.count("context_length") / factor))  # it is llama.cpp's n_ctx_train
    return rope | {"rope_type": "linear", "factor": factor, "original_max_position_embeddings": original}


def read_yarn_fields(fields: Fields, neutral: bool = False) -> Rope:
    """Read the file's own fields of YaRN. neutral: the file does not use YaRN, and they change nothing."""
    found = {key: fields.number(f"rope.scaling.yarn_{key}", None) for key in YARN}
    accepted = {"ext_factor": (None, -1, 0 if neutral else 1)} | ({"attn_factor": (None, 0, 1)} if neutral else {})
    for key, values in accepted.items():
        if found[key] not in values:
            fields.refuse(f"rope.scaling.yarn_{key}", found[key])
    return found


def read_yarn(fields: Fields, factor: float, original: int, attention: float | None, log_unit: float) -> Rope:
    """Read YaRN. The factor of cosine and sine is as in transformers: stated, or by mscale, or by the factor."""
    if not factor:
        fields.refuse("rope.scaling.factor", factor)
    more = read_yarn_fields(fields)
    rope: Rope = {"rope_type": "yarn", "factor": factor}
    rope["original_max_position_embeddings"] = original or fields.count("context_length")
    rope |= {key: more[key] for key in ("beta_fast", "beta_slow") if more[key]}
    if log_unit != 1 and factor > 1:  # with latent attention llama.cpp scales scores by these two
        fields.positive("rope.scaling.yarn_log_multiplier")
        if attention not in (None, 1):
            fields.refuse("rope.scaling.attn_factor", attention)
    if more["log_multiplier"]:
        if fields.architecture not in LOG_MULTIPLIED:
            fields.refuse("rope.scaling.yarn_log_multiplier", more["log_multiplier"])
        rope["mscale_all_dim"] = more["log_multiplier"] / log_unit
        # llama.cpp: deepseek2's mscale is its mscale_all_dim, the others' is 1
        rope["mscale"] = rope["mscale_all_dim"] if log_unit != 1 else 1.0
    if more["attn_factor"] or attention:
        rope["attention_factor"] = more["attn_factor"] or (attention or 1) * (0.1 * float(np.log(factor)) + 1)
    return rope


def read_longrope(fields: Fields, turned: int, original: int, attention: float | None) -> Rope:
    """Return LongRoPE's settings: factors of short and of long sequences."""
    read_yarn_fields(fields, neutral=True)
    context = fields.count("context_length")
    original = original or context
    long, short = frequency_factors(fields, LONG, turned), frequency_factors(fields, SHORT, turned)
    if long is None or short is None:
        raise ModelLoadError(f"the tensor {SHORT if short is None else LONG} is missing beside the other factors")
    if attention is None:
        ratio = context / original
        attention = float(np.sqrt(1 + np.log(ratio) / np.log(original))) if ratio > 1 else 1.0
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "attention_factor": attention,
        "factor": context / original,
        "original_max_position_embeddings": original,
    }


def frequency_factors(fields: Fields, name: str, turned: int) -> list[float] | None:
    """Return the factors by which frequencies are divided; None without the tensor. turned: entries of a head.

    Raises:
        ModelLoadError: there is not one factor for each frequency, or one is not a positive number.
    """
    values = fields.read_vector(name)
    if values is None:
        return None
    if len(values) != turned // 2:
        raise ModelLoadError(f"the tensor {name} has {len(values)} factors for {turned // 2} frequencies")
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ModelLoadError(f"the factors in the tensor {name} must be positive numbers")
    return values.tolist()
