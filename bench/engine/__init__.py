"""Benchmarks of the engine's step: overlap with the device, its parts, and grammars."""
