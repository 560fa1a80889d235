"""Laws of seeds, a file each, in the order in which they are tested."""

NAMES: tuple[str, ...] = ()
