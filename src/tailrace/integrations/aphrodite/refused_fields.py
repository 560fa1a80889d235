"""Fields that tailrace's sampler inside Aphrodite refuses, with the reasons. Every other field acts: as a field of
Aphrodite's own, or in `aphrodite_xargs` (`extra_args` offline)."""

from __future__ import annotations

TAKEN_BACK = "Aphrodite keeps the tokens that it has: none can be taken back"
GUIDANCE = "Aphrodite computes one prompt per request"
DRAFTS = "Aphrodite's own speculative_config is for all requests"
PROMPT = "Aphrodite's own prompt_logprobs reports the whole prompt"
NO_PLACE = "Aphrodite's output has no place for it"
STOPS = "Aphrodite looks for the strings of stop, in all of the text"

APHRODITE: dict[str, str] = {
    "banned_strings": TAKEN_BACK,
    "banned_ignore_case": TAKEN_BACK,
    "banned_regex": TAKEN_BACK,
    "stop_regex": STOPS,
    "stop_outside": STOPS,
    "guidance_scale": GUIDANCE,
    "negative_prompt": GUIDANCE,
    "speculation": DRAFTS,
    "prediction": DRAFTS,
    "prompt_logprob_start": PROMPT,
    "prompt_logprob_token_ids": PROMPT,
    "prompt_logprobs_temperature": PROMPT,
    "explain": NO_PLACE,
    "report_entropy": NO_PLACE,
    "return_sampling_mask": NO_PLACE,
    "logprobs_mode": "Aphrodite's own --logprobs-mode is for all requests",
    "shown_token_ids": "Aphrodite's own skip_special_tokens decides for all special tokens",
}
