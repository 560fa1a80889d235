"""The verdict on an output, from its records: can the output have come from the request?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.explain.numbers import format_count
from tailrace.wire.messages import Difference

OTHERWISE = "The output was changed, or comes from another model, from other parameters or from another key."


def write_verdict(
    looked_at: int, output: Sequence[int], difference: Difference | None, unsure: int, show: Callable[[int], str]
) -> str:
    """In a sentence or two.

    Args:
        looked_at: how many tokens. difference: the first token that can't have come. unsure: tokens that may have come
            from drafts. show: a token's text.
    """
    if difference is not None:
        return f"{describe_difference(output, difference, show)} {OTHERWISE}"
    counted = "The token is" if looked_at == 1 else f"All {format_count(looked_at)} are"
    if not unsure:
        return f"{counted} what these parameters draw."
    return (
        f"{format_count(unsure)} of {looked_at:,} {'is' if unsure == 1 else 'are'} not what is drawn without drafts. "
        "The rule of verification allows them to have come from drafts, accepted or replaced; which of the tokens did "
        "is not known afterwards."
    )


def describe_difference(output: Sequence[int], difference: Difference, show: Callable[[int], str]) -> str:
    """The token that differs from the expected token, and the reason."""
    token = f"Token {difference.position}, “{show(output[difference.position])}”,"
    if difference.why == "ended":
        return f"{token} can't have come: the output was over before it."
    if difference.why == "grammar":
        return f"{token} can't have come: the grammar does not allow it."
    other = "" if difference.token is None else f"“{show(difference.token)}”"
    return f"{token} can't have come: {other} is {difference.why} there."
