"""The door of an integration: a field that can't act inside an engine is refused by name, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tailrace.base.nearest import suggest_name
from tailrace.errors import ParameterError
from tailrace.params import FIELDS, SamplingParams


def check_fields(
    params: SamplingParams, refused: Mapping[str, str], path: str, handled_by_caller: Collection[str] = ()
) -> None:
    """Raise ParameterError for the first field that is not neutral and is refused.

    Args:
        refused: field → the reason. path: where it is refused, for the message. handled_by_caller: fields that are not
            refused, because the caller acts on them.
    """
    for name, reason in refused.items():
        if name not in handled_by_caller and not params.neutral(name):
            raise ParameterError(f"{name} is refused by {path}: {reason}", name)


def check_names(names: Iterable[str], refused: Mapping[str, str]) -> None:
    """Raise ParameterError for the first name that is no field of SamplingParams. The message has the nearest field
    that acts."""
    for name in names:
        if name not in FIELDS:
            near = suggest_name(name, [known for known in FIELDS if known not in refused])
            raise ParameterError(f"{name} is no sampling field{near}", name)
