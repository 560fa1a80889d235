"""The context length that a model's settings state. One rule for folders, converted GGUF files and loaded models.

The stated length is the context, except where rotary embeddings are stretched by a factor:

- YaRN: original length × factor.
- Linear scaling: the same if the original length is stated, else stated length × factor, as in vLLM.
- Gemma 3 states the stretched length. So do Llama 3's scaling and LongRoPE.
- "Dynamic" scaling begins behind the stated length, so that no sequence here reaches it.

The longer length counts where both are stated. Imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from tailrace.errors import ModelLoadError

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "max_sequence_length")
STRETCHED = ("yarn", "linear")
ORIGINAL = "original_max_position_embeddings"
MAX_CONTEXT = 2**31 - 1  # positions are counted in 32 bits


def context_length(config: dict[str, Any]) -> int:
    """Return the number of positions that the model was made for; 0 if config.json states none.

    Raises:
        ModelLoadError: a factor is no positive number, or makes too long a context.
    """
    stated = next((config[key] for key in CONTEXT_KEYS if is_positive_integer(config.get(key))), 0)
    if stated > MAX_CONTEXT:
        raise ModelLoadError(f"the context must be at most {MAX_CONTEXT} tokens, got {stated!s:.80}")
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, dict) or "gemma3" in str(config.get("model_type")):
        return stated
    each = [rope, *(part for part in rope.values() if isinstance(part, dict))]  # some models have one for each kind
    longest = max(stated, *(stretched_length(part, config.get(ORIGINAL), stated) for part in each))
    if longest > MAX_CONTEXT:
        raise ModelLoadError(
            f"rotary embeddings make a context of {longest:.3g} tokens, and {MAX_CONTEXT} is the most: see their factor"
        )
    return int(longest)


def stretched_length(rope: dict[str, Any], original: Any, stated: int) -> float:
    """Return the length that the factor makes; 0 without a scaling that stretches the context."""
    factor = rope.get("factor")
    kind = rope.get("rope_type") or rope.get("type")
    if not isinstance(kind, str) or kind not in STRETCHED or factor is None:
        return 0
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= MAX_CONTEXT:
        raise ModelLoadError(
            f"the factor of rotary embeddings must be above 0 and at most {MAX_CONTEXT}, got {factor!s:.80}"
        )
    lengths = (rope.get(ORIGINAL), original, stated)
    # the bound is for floats, which larger numbers exceed; it is too long a context in any case
    return min(next((length for length in lengths if is_positive_integer(length)), 0), 2**31) * factor


def is_positive_integer(value: Any) -> TypeGuard[int]:
    """Return True for a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
