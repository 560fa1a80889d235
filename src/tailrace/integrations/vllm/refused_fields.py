"""The fields of tailrace.params.SamplingParams that a request may not have inside vLLM, with the reason, by runner.

Every other field acts: under vLLM's own name where vLLM has the field, else in `vllm_xargs` (translate.py). The reasons
end the sentence "FIELD can't be had inside vLLM: …". This module imports no engine, so that docs can be made from it.
"""

from __future__ import annotations

TAKES_BACK = "vLLM's engine can't take tokens back"
SECOND_PROMPT = "vLLM's engine computes no second prompt beside a request"
STOPS = "vLLM looks for stop strings alone, and everywhere (stop, outside of vllm_xargs)"
OF_PROMPTS = "vLLM computes the logprobs of prompts"
NO_PLACE = "vLLM's outputs have no place for it"
KEYED = "it is keyed by each token before the next one, and drafts in vLLM's V2 runner are verified at once"
LEARNS = "it learns from each token before the next one, and drafts in vLLM's V2 runner are verified at once"
COUNTS = "it needs the output's length, which stays on the device beside drafts in vLLM's V2 runner"
SCORES = "vLLM's V1 runner does not compute them"

EVERYWHERE = {
    "banned_strings": TAKES_BACK,
    "banned_ignore_case": TAKES_BACK,
    "banned_regex": TAKES_BACK,
    "stop_regex": STOPS,
    "stop_outside": STOPS,
    "guidance_scale": SECOND_PROMPT,
    "negative_prompt": SECOND_PROMPT,
    "speculation": "the server decides on drafts (--speculative-config)",
    "prediction": "vLLM takes no drafts from a request",
    "prompt_logprobs_temperature": OF_PROMPTS,
    "explain": NO_PLACE,
    "report_entropy": NO_PLACE,
    "return_sampling_mask": "the server decides on masks (--return-sampling-mask)",
    "logprobs_mode": "the server decides on it (--logprobs-mode)",
    "shown_token_ids": "vLLM writes the text (skip_special_tokens, outside of vllm_xargs)",
}
V1 = EVERYWHERE | {"prompt_logprob_token_ids": SCORES, "prompt_logprob_start": SCORES}
V1_DRAFTS = V1 | {"logprob_token_ids": "vLLM reports none of them beside drafts"}
V2 = EVERYWHERE
V2_DRAFTS = (
    V2
    | dict.fromkeys(("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"), LEARNS)
    | {"watermark": KEYED, "forced_token_ids": COUNTS, "logprob_token_ids": V1_DRAFTS["logprob_token_ids"]}
)
# whether the runner is V2, whether the server has drafts → the refused fields
BY_RUNNER = {(False, False): V1, (False, True): V1_DRAFTS, (True, False): V2, (True, True): V2_DRAFTS}
