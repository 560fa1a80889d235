"""How open models mark their reasoning: a table of marker pairs. To add one: a line here, and its name in config.py."""

from __future__ import annotations

Markers = tuple[str, str]  # opening and closing marker

REASONING_MARKERS: dict[str, Markers] = {
    "think": ("<think>", "</think>"),  # DeepSeek-R1, Qwen3, QwQ, SmolLM3, GLM
    "mistral": ("[THINK]", "[/THINK]"),
    "seed": ("<seed:think>", "</seed:think>"),
}


def ends_inside_reasoning(prompt: str, markers: Markers) -> bool:
    """Whether the prompt ends between the markers. Some chat templates open the reasoning for the model."""
    return prompt.rfind(markers[0]) > prompt.rfind(markers[1])
