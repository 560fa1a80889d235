"""Alias of tailrace.explain.record, for one release."""

from tailrace.explain.record import DraftView, Draw, EditStep, ExplainOptions, Explanation, ModelView, RefinementStep

__all__ = ["DraftView", "Draw", "EditStep", "ExplainOptions", "Explanation", "ModelView", "RefinementStep"]
