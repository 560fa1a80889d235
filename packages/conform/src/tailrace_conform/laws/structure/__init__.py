"""Laws of structure, a file each, in the order in which they are tested."""

NAMES: tuple[str, ...] = (
    "json_schema",
    "json_object",
    "choice",
    "regex",
    "forced_tool",
    "tool_choice_none",
    "streamed_call",
    "thinking",
)
