"""Presets: sampling fields under one name, for requests that give none of their own."""

from __future__ import annotations

from typing import Any

# named starting points; what a request gives itself goes before
PRESETS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "precise": {"temperature": 0.3, "min_p": 0.1},
    "balanced": {"temperature": 0.7, "min_p": 0.05},
    "creative": {"temperature": 1.1, "min_p": 0.03, "xtc_probability": 0.3, "xtc_threshold": 0.1},
    "wild": {"temperature": 1.5, "top_n_sigma": 1.0},
    # what other servers do by default, in their order
    "llama.cpp": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "sampler_order": ("top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature"),
    },
    "vllm": {"temperature": 1.0, "sampler_order": ("temperature", "min_p", "top_k", "top_p")},
}
