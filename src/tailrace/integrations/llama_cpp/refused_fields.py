"""Fields that the processor for llama-cpp-python refuses, with the reasons. Every other field acts."""

from __future__ import annotations

TAKEN_BACK = "llama-cpp-python keeps the tokens that it has: none can be taken back"
PROMPT = "the processor sees no logits of the prompt"
NO_PLACE = "the answer has no place for it; the call's own logprobs are of the model's logits"
GUIDANCE = "llama-cpp-python computes one prompt's logits at a time"

LLAMA_CPP: dict[str, str] = {
    "n": "call the model once for each sequence",
    "banned_strings": TAKEN_BACK,
    "banned_ignore_case": TAKEN_BACK,
    "banned_regex": TAKEN_BACK,
    "max_tokens": "the call's own max_tokens",
    "ignore_eos": "a logit_bias for EOS",
    "stop": "the call's own stop",
    "stop_regex": "llama-cpp-python looks for strings alone",
    "stop_outside": "llama-cpp-python looks for stops in all of the text",
    "stop_token_ids": "the call's own stopping_criteria, and handled_by_caller",
    "repetition_detection": "the call's own stopping_criteria",
    "thinking": "count the tokens in a stopping criterion of the call",
    "grammar": "the call's own grammar",
    "guidance_scale": GUIDANCE,
    "negative_prompt": GUIDANCE,
    "speculation": "draft_model passes ids that have not been accepted yet",
    "prediction": "draft_model passes ids that have not been accepted yet",
    "prompt_logprobs": PROMPT,
    "prompt_logprob_start": PROMPT,
    "prompt_logprob_token_ids": PROMPT,
    "prompt_logprobs_temperature": PROMPT,
    **dict.fromkeys(("logprobs", "logprobs_mode", "logprob_token_ids"), NO_PLACE),
    **dict.fromkeys(("report_entropy", "return_sampling_mask"), NO_PLACE),
    "explain": "tailrace.sampling.Sampler.explain, in a loop of your own",
    "include_stop_str_in_output": "llama-cpp-python cuts the stop off",
    "skip_special_tokens": "llama-cpp-python makes the text",
    "shown_token_ids": "llama-cpp-python makes the text",
    "output_kind": "the call's own stream",
}
