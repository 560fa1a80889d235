"""What `python -m bench.sampler` draws on the CPU: each case's parameters and its goal."""

from __future__ import annotations

from typing import Any

from bench.lib.rows import BOTH, NUCLEUS
from tailrace.request.options import Watermark

DEVICES = ("cpu", "cuda", "interpreter")
PENALTIES: dict[str, Any] = BOTH | {"repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1}
# case → (parameters, goal as a multiple of the floor at V = 128,256, float32, one thread)
CASES: dict[str, tuple[dict[str, Any], float | None]] = {
    "greedy": ({"temperature": 0.0}, 1.2),
    "temperature": ({"temperature": 0.8}, 1.7),
    "min-p": ({"temperature": 0.8, "min_p": 0.05}, 1.5),
    "top-n-sigma": ({"temperature": 0.8, "top_n_sigma": 1.0}, 1.5),
    "top-k 50": ({"temperature": 0.8, "top_k": 50}, 1.5),
    "top-p 0.9": (NUCLEUS, 2.5),
    "top-k + top-p, seed": (BOTH, 1.5),
    "… + 3 penalties, 1,000 tokens": (PENALTIES, 2.0),
    "… + 5 logprobs": (PENALTIES | {"logprobs": 5}, 2.5),
    "… + sampling mask": (PENALTIES | {"return_sampling_mask": True}, 2.5),
    "top-p 0.9, 5 logprobs": (NUCLEUS | {"logprobs": 5}, None),
    "top-p 0.9, sampling mask": (NUCLEUS | {"return_sampling_mask": True}, None),
    "guided, top-k + top-p": (BOTH | {"guidance_scale": 1.5}, 3.0),
    "guided, temperature": ({"temperature": 0.8, "guidance_scale": 1.5}, 3.0),
    "typical 0.9": ({"typical_p": 0.9}, None),
    "eta": ({"eta_cutoff": 1e-3}, None),
    "p-less": ({"temperature": 0.8, "p_less": True}, None),
    "XTC + min-p": ({"min_p": 0.02, "xtc_probability": 0.5}, None),
}
FLAT_GOAL = 10.0
# those that llama.cpp, koboldcpp and transformers have beyond these; beside the reference, which drew them before the
# kernels had them
OTHERS: dict[str, dict[str, Any]] = {
    "mirostat 2": {"mirostat": 2},
    "mirostat 1": {"mirostat": 1},
    "tail-free 0.95": {"tfs_z": 0.95},
    "top-h 0.5": {"top_h": 0.5},
    "min-k": {"min_k": True, "temperature": 0.8},
    "adaptive-p 0.5, min-p 0.05": {"adaptive_target": 0.5, "min_p": 0.05},
    "adaptive-p 0.5": {"adaptive_target": 0.5},
    "SynthID, top-k 100": {"watermark": Watermark(kind="synthid", key=1), "top_k": 100},
    "SynthID, top-p 0.95": {"watermark": Watermark(kind="synthid", key=1), "top_p": 0.95},
    "SynthID": {"watermark": Watermark(kind="synthid", key=1)},
    "SynthID of transformers, top-k 100": {
        "watermark": Watermark(kind="synthid", scheme="transformers", keys=tuple(range(1, 31))),
        "top_k": 100,
    },
}
