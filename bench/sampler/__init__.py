"""Benchmarks of the sampler: draws from logits, their records, and the sampler inside other engines."""
