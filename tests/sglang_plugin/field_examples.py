"""A value of each field that acts in SGLang."""

from __future__ import annotations

from typing import Any

PENALISED = {"presence_penalty": 20.0}
DRY = {"dry_multiplier": 50.0, "dry_allowed_length": 1}
# field → further custom params, and its own value
ACTS: dict[str, tuple[dict[str, Any], Any]] = {
    "dynatemp_range": ({}, 1.4),
    "dynatemp_exponent": ({"dynatemp_range": 1.4}, 3.0),
    "smoothing_factor": ({}, 0.5),
    "smoothing_curve": ({"smoothing_factor": 0.5}, 2.5),
    "top_a": ({}, 0.9),
    "typical_p": ({}, 0.3),
    "tfs_z": ({}, 0.3),
    "epsilon_cutoff": ({}, 0.05),
    "eta_cutoff": ({}, 0.5),
    "top_n_sigma": ({}, 0.5),
    "top_h": ({}, 0.1),
    "p_less": ({}, True),
    "p_less_norm": ({}, True),
    "min_k": ({}, True),
    "min_k_tau": ({"min_k": True}, 100.0),
    "xtc_probability": ({}, 1.0),
    "xtc_threshold": ({"xtc_probability": 1.0}, 0.01),
    "mirostat": ({"mirostat_tau": 1.0}, 2),
    "mirostat_tau": ({"mirostat": 2}, 1.0),
    "mirostat_eta": ({"mirostat": 2, "mirostat_tau": 1.0}, 50.0),
    "adaptive_target": ({}, 0.05),
    "adaptive_decay": ({"adaptive_target": 0.3}, 0.0),
    "repetition_penalty": ({}, 9.0),
    "presence_penalty": ({}, 20.0),
    "frequency_penalty": ({}, 20.0),
    "penalty_last_n": (PENALISED, 1),
    "repetition_scope": ({"repetition_penalty": 9.0}, "output"),
    "penalty_scope": (PENALISED, "both"),
    "dry_multiplier": ({"dry_allowed_length": 1}, 50.0),
    "dry_base": ({"dry_multiplier": 0.5, "dry_allowed_length": 1, "dry_sequence_breakers": []}, 1000.0),
    "dry_allowed_length": ({"dry_multiplier": 50.0}, 1),
    "dry_penalty_last_n": (DRY, 2),
    "dry_sequence_breakers": (DRY, [chr(33 + i) for i in range(60)]),
    "no_repeat_ngram_size": ({}, 1),
    "encoder_no_repeat_ngram_size": ({}, 1),
    "encoder_repetition_penalty": ({}, 50.0),
    "exponential_decay_length_penalty": ({}, [2, 4.0]),
    "normalize_logits": ({"repetition_penalty": 9.0}, True),
    "sequence_bias": ({}, [["a", 50.0]]),
    "allowed_token_ids": ({}, [1, 2, 3]),
    "bad_words": ({}, ["a", [1], [2], [3]]),
    "processors": ({}, {"sglang_test": {}}),
    "watermark": ({}, {"kind": "kgw", "key": 5, "delta": 20.0}),
    "sampler_order": ({"typical_p": 0.5, "tfs_z": 0.5}, ["tfs_z", "temperature", "typical_p"]),
    "forced_token_ids": ({}, [9, 8, 7]),
}
