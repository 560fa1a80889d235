"""Which modules of transformers hold all experts of a layer. Imports nothing of torch."""

from __future__ import annotations

# of the modules that transformers' use_experts_implementation decorates
DECORATED = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm")


def are_experts(module: object) -> bool:
    """Return True for modules that transformers' use_experts_implementation decorates."""
    return all(hasattr(module, name) for name in DECORATED)
