"""Modules that every package may use: extras, logs, JSON Schema, settings from outside, one token's logprobs."""
