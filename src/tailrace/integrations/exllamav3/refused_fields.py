"""Fields that the sampler for exllamav3 refuses, with the reasons. Every other field acts."""

from __future__ import annotations

JOB_TEXT = "the job's own decode_special_tokens"
STOPS = "the job's own stop_conditions"
REPORTS = "the job's own return_top_tokens, return_probs and return_logits"
PROMPT = "the sampler sees no logits of the prompt"

EXLLAMAV3: dict[str, str] = {
    "n": "enqueue one job for each sequence",
    "banned_strings": "the job's own banned_strings",
    "banned_ignore_case": "the job's own banned_strings match either way",
    "banned_regex": "the job bans strings alone",
    "max_tokens": "the job's own max_new_tokens",
    "ignore_eos": STOPS,
    "stop": STOPS,
    "stop_regex": STOPS,
    "stop_outside": STOPS,
    "stop_token_ids": STOPS,
    "repetition_detection": "the job's own loop detection",
    "thinking": "count the tokens, then the job's own constrain_output_now",
    "grammar": "the job's own filters",
    "guidance_scale": "two prompts of one job, and its cfg_scale",
    "negative_prompt": "two prompts of one job, and its cfg_scale",
    "speculation": "the generator's own draft model",
    "prediction": "the generator's own draft model",
    "prompt_logprobs": PROMPT,
    "prompt_logprob_start": PROMPT,
    "prompt_logprob_token_ids": PROMPT,
    "prompt_logprobs_temperature": PROMPT,
    "explain": "tailrace.sampling.Sampler.explain, in a loop of your own",
    "logprobs": REPORTS,
    "logprobs_mode": REPORTS,
    "logprob_token_ids": REPORTS,
    "report_entropy": REPORTS,
    "return_sampling_mask": REPORTS,
    "include_stop_str_in_output": JOB_TEXT,
    "skip_special_tokens": JOB_TEXT,
    "shown_token_ids": JOB_TEXT,
    "output_kind": "the results of generator.iterate are the new text",
}
