"""Fields that transformers' paths refuse, with the reasons. Every other field acts."""

from __future__ import annotations

TAKEN_BACK = "generate keeps the tokens that it has: none can be taken back"
NEEDS_STREAMER = "needs a TailraceStreamer for the row, which has the text"
PROMPT = "tailrace.sampling.prompt_logprobs.replay, of one forward pass over the prompt"
GUIDANCE = "generate's own guidance_scale and negative_prompt_ids"
DRAFTS = "generate's own assistant_model, with TailraceLogitsProcessor"
NO_TEXT = "continuous batching knows token ids, and no text"
NO_PLACE = (
    "the result has no place for it; return_logprobs of ContinuousBatchingConfig reports the drawn token's logprob"
)

# TailraceSampling with a TailraceStreamer for each row
STREAMED: dict[str, str] = {
    "n": "generate's own num_return_sequences",
    "banned_strings": TAKEN_BACK,
    "banned_ignore_case": TAKEN_BACK,
    "banned_regex": TAKEN_BACK,
    "ignore_eos": "generate's own eos_token_id",
    "repetition_detection": "a stopping criterion of the call",
    "thinking": "count the tokens in a stopping criterion of the call",
    "grammar": "a grammar's logits processor, which runs before",
    "guidance_scale": GUIDANCE,
    "negative_prompt": GUIDANCE,
    "speculation": DRAFTS,
    "prediction": DRAFTS,
    "prompt_logprobs": PROMPT,
    "prompt_logprob_start": PROMPT,
    "prompt_logprob_token_ids": PROMPT,
    "prompt_logprobs_temperature": PROMPT,
    "explain": "tailrace.sampling.Sampler.explain, in a loop of your own",
    "skip_special_tokens": "the streamer's own skip_special_tokens",
    "shown_token_ids": "the streamer's own skip_special_tokens decides for all special tokens",
    "output_kind": "a streamer's pieces are the new text",
}
TEXT_FIELDS = ("stop", "stop_regex", "stop_outside", "include_stop_str_in_output")
# TailraceSampling without a streamer
GENERATE: dict[str, str] = {**STREAMED, **dict.fromkeys(TEXT_FIELDS, NEEDS_STREAMER)}
# generate_batch, and managers with attach_sampler
CONTINUOUS_BATCHING: dict[str, str] = {
    **{name: reason for name, reason in STREAMED.items() if name != "ignore_eos"},
    **dict.fromkeys((*TEXT_FIELDS, "skip_special_tokens", "shown_token_ids", "output_kind"), NO_TEXT),
    **dict.fromkeys(("speculation", "prediction"), "continuous batching takes no drafts"),
    **dict.fromkeys(("guidance_scale", "negative_prompt"), "continuous batching computes one prompt per request"),
    **dict.fromkeys(
        ("logprobs", "logprobs_mode", "logprob_token_ids", "report_entropy", "return_sampling_mask"), NO_PLACE
    ),
    "n": "add the prompt several times",
    "repetition_detection": "look at the streamed ids, then cancel the request",
    "thinking": "look at the streamed ids, then cancel the request",
    "grammar": "continuous batching masks no logits per request",
}
