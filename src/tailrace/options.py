"""Alias of tailrace.request.options, for one release."""

from tailrace.request.options import Grammar, MarkedSpan, RepetitionDetection, Speculation, ThinkingBudget, Watermark

__all__ = ["Grammar", "MarkedSpan", "RepetitionDetection", "Speculation", "ThinkingBudget", "Watermark"]
