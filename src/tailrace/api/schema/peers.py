"""Fields that vLLM, SGLang, llama.cpp, Ollama, koboldcpp and text-generation-webui have and tailrace lacks, and fields
of vendors that check content.

A field that would change the answer is refused, unless its value asks for nothing. A field that can't is accepted in
silence. tests/api/peer_fields.py lists the peers' fields, and each must be served, renamed (api/aliases.py), or here.
"""

from __future__ import annotations

from typing import Any

ABSENT = (None,)
OFF = (None, False)
ON = (None, True)
EMPTY = (None, [])
NO_TEXT = (None, "")

# field → the values at which it asks for nothing
NOT_OFFERED: dict[str, tuple[Any, ...]] = {
    # what the prompt is
    **dict.fromkeys(("input_embeds", "mm_hashes", "positional_embed_overrides", "previous_input_messages"), ABSENT),
    **dict.fromkeys(("system", "template", "memory", "task", "format", "generation_prompt"), NO_TEXT),
    **dict.fromkeys(("system_prompt", "system_instruction"), (None, "", {})),  # a message of the role system here
    **dict.fromkeys(("plugins", "transforms", "search_parameters"), (None, [], {})),  # OpenRouter's and xAI's searches
    **dict.fromkeys(("images", "audio_data", "image_data", "video_data", "context", "preserved_tokens"), EMPTY),
    **dict.fromkeys(("raw", "replace_instruct_placeholders"), OFF),
    "options": (None, {}),  # Ollama's fields within a field
    # checks of content, and access that depends on them: OpenAI's, Gemini's, Mistral's, LiteLLM's, Bedrock's, Cohere's
    **dict.fromkeys(("moderation", "access_programs", "safety_settings"), (None, [], {})),
    **dict.fromkeys(("guardrails", "guardrail_config", "guardrailConfig"), (None, [], {})),
    "amazon-bedrock-guardrailConfig": (None, {}),
    "safety_mode": (None, "OFF", "NONE"),
    "safe_prompt": OFF,
    # the model, and whose cache
    **dict.fromkeys(("lora", "lora_path", "lora_id"), (None, "", [])),
    "extra_key": NO_TEXT,
    **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "session_params"), (None, {})),
    # how tokens are drawn
    **dict.fromkeys(("vllm_xargs", "custom_params"), (None, {})),
    **dict.fromkeys(("custom_logit_processor", "custom_token_bans"), (None, "", [])),
    **dict.fromkeys(("watermarking", "ban_eos_token", "use_default_badwordsids", "ebnf_full_assistant"), OFF),
    **dict.fromkeys(("grammar_lazy", "grammar_retain_state"), OFF),
    **dict.fromkeys(("grammar_triggers", "banned_tokens"), (None, [], "", "[]")),
    **dict.fromkeys(("skew", "penalty_alpha", "repetition_decay", "prompt_lookup_num_tokens"), (None, 0)),
    "min_keep": (None, 0, 1),
    **dict.fromkeys(("num_beams", "beam_width"), (None, 0, 1)),
    # where the output ends
    **dict.fromkeys(("t_max_predict_ms", "t_max_prompt_ms"), (None, 0, -1)),
    **dict.fromkeys(("n_indent", "min_length", "max_tokens_second"), (None, 0)),
    "auto_max_new_tokens": OFF,
    # thoughts and calls
    **dict.fromkeys(("include_reasoning", "stream_reasoning", "parse_tool_calls"), ON),
    **dict.fromkeys(("reasoning_control", "require_reasoning", "reasoning_in_content", "thinking_forced_open"), OFF),
    **dict.fromkeys(("reasoning_budget_message", "reasoning_budget_start_tag", "reasoning_budget_end_tag"), NO_TEXT),
    "reasoning_budget_end_tags": EMPTY,
    "max_thinking_tokens": ABSENT,
    **dict.fromkeys(("chat_format", "chat_parser"), ABSENT),
    # the text of the answer
    **dict.fromkeys(("detokenize", "spaces_between_special_tokens", "trim_stop"), ON),
    "response_fields": EMPTY,
    # reports
    **dict.fromkeys(
        ("return_tokens", "return_bytes", "return_entropy", "return_indexer_topk", "return_mm_kwargs"), OFF
    ),
    **dict.fromkeys(("return_token_offsets", "return_prompt_text", "return_weight_versions"), OFF),
    **dict.fromkeys(("return_hidden_states", "return_routed_experts", "return_meta_info"), OFF),
    **dict.fromkeys(("return_prompt_token_ids", "return_cached_tokens_details", "return_spec_tokens_details"), OFF),
    **dict.fromkeys(("return_input_ids_in_sglext", "return_output_ids_in_sglext", "enable_response_messages"), OFF),
    **dict.fromkeys(("return_flat_raw_top_logprobs", "return_flat_raw_output_top_logprobs"), OFF),
    **dict.fromkeys(("post_sampling_probs", "no_logs"), OFF),
    **dict.fromkeys(("routed_experts_start_len", "routed_experts_prompt_start"), (None, 0)),
    "sampling_logprobs_mode": (None, "selected"),
    **dict.fromkeys(("token_ids_logprob", "multi_item_delimiter_indices", "token_indices_to_pool"), EMPTY),
}

HARMLESS = frozenset(
    {
        # of images, sounds and films, which are refused where they come
        *("media_io_kwargs", "mm_processor_kwargs", "mm_payload", "mm_content_hashes", "images_config", "video_config"),
        *("use_audio_in_video", "max_dynamic_patch", "min_dynamic_patch", "image_max_dynamic_patch"),
        *("video_max_dynamic_patch", "need_wait_for_mm_inputs", "num_items_assigned", "encoder_urls"),
        # which process of a deployment, and what it writes down
        *("session_id", "conversation_id", "routing_key", "data_parallel_rank", "routed_dp_rank", "decode_tp_size"),
        *("disagg_prefill_dp_rank", "bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key"),
        *("http_worker_ipc", "log_metrics", "custom_labels", "external_trace_header", "received_time", "kv_hints"),
        *("id_slot", "genkey", "quiet", "betas"),
        # the cache, and a context that is never shifted: an answer ends with the context
        *("cache_prompt", "n_cache_reuse", "n_keep", "n_discard", "num_keep", "prompt_cache_options"),
        "truncation_side",
        # how and where it is computed
        *("backend_sampling", "speculative_ngram", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap"),
        *("use_mlock", "low_vram", "numa", "f16_kv", "vocab_only", "keep_alive", "static_cache"),
        *("speculative.n_max", "speculative.n_min", "speculative.p_min", "speculative.type"),
        *("speculative.ngram_size_n", "speculative.ngram_size_m", "speculative.ngram_min_hits"),
        # more about the way than about the answer
        *("verbose", "sse_ping_interval", "return_flat_raw_top_logprobs_b64"),
        # newlines are penalised like other tokens, as in llama.cpp, which ignores it too
        *("penalize_nl", "penalize_newline"),
        # ends of a range that dynamic_temperature switches on: api/aliases.py reads them there
        *("dynatemp_low", "dynatemp_high", "dynatemp_min", "dynatemp_max"),
    }
)
