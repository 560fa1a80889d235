"""Laws of errors, a file each, in the order in which they are tested. no_5xx is first: it judges the requests of all
families before, which were well-formed."""

NAMES: tuple[str, ...] = (
    "no_5xx",
    "out_of_range",
    "wrong_types",
    "named_field",
    "error_object",
    "unknown_field",
    "unknown_model",
    "unknown_path",
    "bad_json",
    "strange_bodies",
    "too_long",
    "neighbours",
)
