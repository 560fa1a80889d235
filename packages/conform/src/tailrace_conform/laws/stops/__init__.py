"""Laws of stops, a file each, in the order in which they are tested."""

NAMES: tuple[str, ...] = (
    "cut",
    "several",
    "one_or_list",
    "nothing_sent",
    "held_back",
    "not_in_prompt",
    "finish_reason",
    "ends_work",
    "include",
)
