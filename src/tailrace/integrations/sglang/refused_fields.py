"""tailrace's fields that have no effect in SGLang, with the reasons; every other field acts. Imports no engine.

- SGLANG: the refused fields of a server without drafts.
- SGLANG_DRAFTS: the refused fields of a server with `--speculative-algorithm`.
- THEIRS: fields that act under a name of SGLang's own, beside `custom_params`.
"""

from __future__ import annotations

NO_RETRY = "SGLang can't take tokens back"
NO_SECOND = "SGLang computes no second sequence for a request"
NO_PLACE = "SGLang's answers have no place for it"
PROMPT = "SGLang reports the prompt's logprobs itself (return_logprob, logprob_start_len)"
FOLLOWS = "SGLang's drafters follow the server's flags, not the request's"
TEXT = "SGLang makes the text"

SGLANG: dict[str, str] = {
    "banned_strings": NO_RETRY,
    "banned_ignore_case": NO_RETRY,
    "banned_regex": NO_RETRY,
    "stop_outside": f"{TEXT}, and looks for stop strings in all of it",
    "repetition_detection": "SGLang decides where a sequence ends",
    "guidance_scale": NO_SECOND,
    "negative_prompt": NO_SECOND,
    "speculation": FOLLOWS,
    "prediction": FOLLOWS,
    "logprobs_mode": "SGLang reports logprobs itself, of the logits before tailrace's edits",
    "report_entropy": NO_PLACE,
    "explain": NO_PLACE,
    "prompt_logprob_token_ids": PROMPT,
    "prompt_logprobs_temperature": PROMPT,
    "shown_token_ids": TEXT,
    "output_kind": f"{TEXT}; --incremental-streaming-output selects its form",
}

HISTORY = "it reads the sequence's tokens, and a tree of drafts has several sequences"
DRAFTS: dict[str, str] = dict.fromkeys(
    (
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "adaptive_target",
        "adaptive_decay",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "penalty_last_n",
        "repetition_scope",
        "penalty_scope",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "sequence_bias",
        "bad_words",
        "watermark",
        "forced_token_ids",
        "processors",
    ),
    HISTORY,
) | {"return_sampling_mask": "SGLang itself refuses it beside these drafts"}
SGLANG_DRAFTS: dict[str, str] = SGLANG | DRAFTS

THEIRS: dict[str, str] = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "logit_bias": "logit_bias",
    "min_tokens": "min_new_tokens (min_tokens in OpenAI's endpoints)",
    "seed": "sampling_seed (seed in OpenAI's endpoints)",
    "n": "n",
    "max_tokens": "max_new_tokens (max_tokens in OpenAI's endpoints)",
    "ignore_eos": "ignore_eos",
    "stop": "stop",
    "stop_regex": "stop_regex",
    "stop_token_ids": "stop_token_ids",
    "thinking": "max_thinking_tokens",
    "grammar": "json_schema, regex, ebnf or structural_tag (response_format in OpenAI's endpoints)",
    "logprobs": "return_logprob and top_logprobs_num (logprobs in OpenAI's endpoints)",
    "logprob_token_ids": "token_ids_logprob",
    "return_sampling_mask": "return_sampling_mask",
    "prompt_logprobs": "return_logprob and logprob_start_len",
    "prompt_logprob_start": "logprob_start_len",
    "include_stop_str_in_output": "no_stop_trim",
    "skip_special_tokens": "skip_special_tokens",
}
