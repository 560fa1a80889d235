"""Names of the fields that other servers' requests have: vLLM 0.33, SGLang 0.5.23, llama.cpp of 2026."""

from __future__ import annotations

# (server, endpoint) → names, with blanks between them
PEER_FIELDS: dict[tuple[str, str], str] = {
    ("vLLM", "chat"): """
        add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template
        chat_template_kwargs continue_final_message documents ec_transfer_params echo frequency_penalty ignore_eos
        include_reasoning include_stop_str_in_output kv_transfer_params length_penalty logit_bias logprob_token_ids
        logprobs max_completion_tokens max_tokens media_io_kwargs messages min_p min_tokens mm_payload
        mm_processor_kwargs model n parallel_tool_calls presence_penalty priority prompt_logprobs reasoning_effort
        repetition_detection repetition_penalty request_id response_format return_mm_kwargs return_prompt_text
        return_token_ids return_token_offsets return_tokens_as_token_ids return_weight_versions
        routed_experts_prompt_start seed session_id skip_special_tokens spaces_between_special_tokens stop
        stop_token_ids stream stream_interval stream_options structured_outputs temperature thinking_token_budget
        tool_choice tools top_k top_logprobs top_p truncate_prompt_tokens truncation_side use_beam_search user
        vllm_xargs watermarking
    """,
    ("vLLM", "completion"): """
        add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params echo frequency_penalty
        ignore_eos include_stop_str_in_output kv_transfer_params length_penalty logit_bias logprob_token_ids
        logprobs max_tokens min_p min_tokens mm_payload model n presence_penalty priority prompt prompt_embeds
        prompt_logprobs repetition_detection repetition_penalty request_id response_format return_mm_kwargs
        return_token_ids return_token_offsets return_tokens_as_token_ids return_weight_versions
        routed_experts_prompt_start seed session_id skip_special_tokens spaces_between_special_tokens stop
        stop_token_ids stream stream_interval stream_options structured_outputs suffix temperature
        thinking_token_budget top_k top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs
        watermarking
    """,
    ("vLLM", "response"): """
        background cache_salt chat_template_kwargs ec_transfer_params enable_response_messages frequency_penalty
        ignore_eos include include_reasoning include_stop_str_in_output input instructions kv_transfer_params
        logit_bias max_output_tokens max_tool_calls media_io_kwargs metadata min_p mm_payload mm_processor_kwargs
        model parallel_tool_calls presence_penalty previous_input_messages previous_response_id priority prompt
        prompt_cache_key prompt_cache_options prompt_cache_retention reasoning repetition_penalty request_id
        return_mm_kwargs safety_identifier seed service_tier session_id skip_special_tokens
        spaces_between_special_tokens stop stop_token_ids store stream structured_outputs temperature text
        tool_choice tools top_k top_logprobs top_p truncation user vllm_xargs watermarking
    """,
    ("vLLM", "message"): """
        cache_salt chat_template_kwargs ec_transfer_params kv_transfer_params max_tokens messages metadata
        mm_payload model output_config return_mm_kwargs stop_sequences stream system temperature thinking
        tool_choice tools top_k top_p vllm_xargs watermarking
    """,
    ("SGLang", "chat"): """
        bootstrap_host bootstrap_port bootstrap_room cache_salt chat_template_kwargs continue_final_message
        custom_logit_processor custom_params data_parallel_rank disagg_prefill_dp_rank ebnf extra_key
        frequency_penalty ignore_eos images_config input_ids logit_bias logprobs lora_path max_completion_tokens
        max_dynamic_patch max_tokens messages min_dynamic_patch min_p min_tokens mm_processor_kwargs model n
        no_stop_trim parallel_tool_calls presence_penalty priority reasoning_effort regex repetition_penalty
        response_format return_cached_tokens_details return_flat_raw_output_top_logprobs
        return_flat_raw_top_logprobs_b64 return_hidden_states return_input_ids_in_sglext return_meta_info
        return_output_ids_in_sglext return_prompt_token_ids return_routed_experts return_sampling_mask
        return_spec_tokens_details return_token_ids rid routed_dp_rank routed_experts_start_len
        sampling_logprobs_mode seed separate_reasoning session_id session_params skip_special_tokens stop stop_regex
        stop_token_ids stream stream_options stream_reasoning task temperature thinking tool_choice tools top_k
        top_logprobs top_p use_audio_in_video user video_config watermark
    """,
    ("SGLang", "completion"): """
        best_of bootstrap_host bootstrap_port bootstrap_room cache_salt custom_labels custom_logit_processor
        custom_params data_parallel_rank disagg_prefill_dp_rank ebnf echo extra_key frequency_penalty ignore_eos
        images_config json_schema logit_bias logprobs lora_path max_tokens min_p min_tokens mm_processor_kwargs
        model n no_stop_trim presence_penalty priority prompt regex repetition_penalty response_format
        return_cached_tokens_details return_hidden_states return_routed_experts return_spec_tokens_details
        return_token_ids rid routed_dp_rank routed_experts_start_len seed session_id session_params
        skip_special_tokens stop stop_regex stop_token_ids stream stream_options suffix temperature top_k top_p user
        watermark
    """,
    ("SGLang", "response"): """
        background bootstrap_host bootstrap_port bootstrap_room cache_salt chat_template_kwargs data_parallel_rank
        disagg_prefill_dp_rank extra_key frequency_penalty include input instructions max_output_tokens
        max_tool_calls metadata min_p model parallel_tool_calls presence_penalty previous_response_id priority
        reasoning repetition_penalty request_id routed_dp_rank service_tier session_id stop store stream temperature
        text tool_choice tools top_k top_logprobs top_p truncation user
    """,
    ("SGLang", "message"): """
        betas max_tokens messages metadata model output_config stop_sequences stream system temperature thinking
        tool_choice tools top_k top_p
    """,
    ("SGLang", "native"): """
        audio_data background bootstrap_host bootstrap_pair_key bootstrap_port bootstrap_room cache_salt
        conversation_id custom_labels custom_logit_processor data_parallel_rank decode_tp_size
        disagg_prefill_dp_rank encoder_urls external_trace_header extra_key http_worker_ipc image_data
        image_max_dynamic_patch images_config input_embeds input_ids kv_hints log_metrics logprob_start_len lora_id
        lora_path max_dynamic_patch max_thinking_tokens min_dynamic_patch mm_content_hashes mm_hashes
        mm_processor_kwargs modalities multi_item_delimiter_indices need_wait_for_mm_inputs no_logs
        num_items_assigned positional_embed_overrides priority received_time require_reasoning return_bytes
        return_entropy return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs
        return_flat_raw_top_logprobs_b64 return_hidden_states return_indexer_topk return_logprob
        return_prompt_token_ids return_routed_experts return_sampling_mask return_text_in_logprobs rid
        routed_dp_rank routed_experts_start_len routing_key sampling_logprobs_mode sampling_params session_id
        session_params stream text token_ids_logprob token_indices_to_pool top_logprobs_num use_audio_in_video
        video_config video_data video_max_dynamic_patch watermark
    """,
    ("SGLang", "sampling_params"): """
        beam_width custom_params ebnf ebnf_full_assistant frequency_penalty ignore_eos json_schema logit_bias
        max_new_tokens min_new_tokens min_p n no_stop_trim presence_penalty regex repetition_penalty sampling_seed
        skip_special_tokens spaces_between_special_tokens stop stop_regex stop_token_ids stream_interval
        structural_tag temperature top_k top_p watermark
    """,
    ("llama.cpp", "completion"): """
        adaptive_decay adaptive_target backend_sampling cache_prompt chat_format chat_parser dry_allowed_length
        dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_range echo
        frequency_penalty generation_prompt grammar grammar_lazy grammar_triggers id_slot ignore_eos json_schema
        logit_bias logprobs lora max_tokens min_keep min_p mirostat mirostat_eta mirostat_tau n n_cache_reuse n_cmpl
        n_discard n_indent n_keep n_predict n_probs parse_tool_calls post_sampling_probs presence_penalty
        preserved_tokens prompt reasoning_budget_end_tag reasoning_budget_end_tags reasoning_budget_message
        reasoning_budget_start_tag reasoning_budget_tokens reasoning_control reasoning_format repeat_last_n
        repeat_penalty response_fields return_progress return_tokens samplers seed speculative.n_max
        speculative.n_min speculative.ngram_min_hits speculative.ngram_size_m speculative.ngram_size_n
        speculative.p_min speculative.type sse_ping_interval stop stream stream_options t_max_predict_ms temperature
        timings_per_token top_k top_n_sigma top_p typical_p verbose xtc_probability xtc_threshold
    """,
    ("llama.cpp", "chat"): """
        adaptive_decay adaptive_target add_generation_prompt backend_sampling cache_prompt chat_format chat_parser
        chat_template_kwargs continue_final_message dry_allowed_length dry_base dry_multiplier dry_penalty_last_n
        dry_sequence_breakers dynatemp_exponent dynatemp_range echo frequency_penalty generation_prompt grammar
        grammar_lazy grammar_triggers id_slot ignore_eos json_schema logit_bias logprobs lora max_completion_tokens
        max_tokens messages min_keep min_p mirostat mirostat_eta mirostat_tau n n_cache_reuse n_cmpl n_discard
        n_indent n_keep n_predict n_probs parallel_tool_calls parse_tool_calls post_sampling_probs presence_penalty
        preserved_tokens reasoning_budget_end_tag reasoning_budget_end_tags reasoning_budget_message
        reasoning_budget_start_tag reasoning_budget_tokens reasoning_control reasoning_format repeat_last_n
        repeat_penalty response_fields response_format return_progress return_tokens samplers seed speculative.n_max
        speculative.n_min speculative.ngram_min_hits speculative.ngram_size_m speculative.ngram_size_n
        speculative.p_min speculative.type sse_ping_interval stop stream stream_options t_max_predict_ms temperature
        timings_per_token tool_choice tools top_k top_logprobs top_n_sigma top_p typ_p typical_p verbose
        xtc_probability xtc_threshold
    """,
}
