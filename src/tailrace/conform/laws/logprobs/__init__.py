"""Laws of logprobs, a file each, in the order in which they are tested."""

NAMES: tuple[str, ...] = ()
