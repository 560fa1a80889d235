"""Laws of knobs, a file each, in the order in which they are tested."""

NAMES: tuple[str, ...] = (
    "temperature_zero",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "top_k_and_top_p",
    "truncation_order",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
)
