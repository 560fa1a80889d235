"""Laws of seeds, a file each, in the order in which they are tested."""

NAMES: tuple[str, ...] = (
    "same",
    "stream",
    "choices",
    "choices_differ",
    "among_others",
    "long_prompt",
    "unseeded_differ",
    "high_bits",
    "independent",
)
