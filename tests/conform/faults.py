"""Faults of the scripted server: name → the law that must find it. The server has `fault=NAME`.

Those of A (streams, stops, structure, errors) are in the server; those of B (logprobs, knobs, seeds) in sampler.py.
"""

from __future__ import annotations

FRAME_FAULTS: dict[str, str] = {}
SAMPLER_FAULTS: dict[str, str] = {}
