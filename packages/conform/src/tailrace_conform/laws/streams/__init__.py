"""Laws of streams, a file each, in the order in which they are tested."""

NAMES: tuple[str, ...] = (
    "incremental",
    "event_format",
    "chunk_shape",
    "deltas_join",
    "one_ending",
    "ends_or_says_why",
    "done_last",
    "usage",
    "whole_characters",
    "role_once",
    "n_complete",
    "refusal_status",
    "gone_client",
)
