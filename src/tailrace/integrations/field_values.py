"""The one rule for the values of tailrace's fields where a request of an engine keeps little of their types.

JSON and an HTTP front end keep little of a value's type: `true` arrives as 1, and an object is refused. Therefore all
fields on all paths follow one rule:

- Numbers: 2.0 is the integer 2, and `true` is 1. Text is no number.
- Truth values: 1 and 0 (also 1.0 and 0.0) are true and false. Text is none.
- Names: text.
- Lists and objects: as they are, or as JSON text.
"""

from __future__ import annotations

from typing import Any, Literal, get_origin

import msgspec

from tailrace.errors import ParameterError, format_json
from tailrace.request.fields import Field


def read_value(field: Field, value: Any) -> Any:
    """Return the value as SamplingParams takes it. Ranges are checked there.

    Raises:
        ParameterError: a list or an object is text that is no JSON.
    """
    if field.range is not None:
        return read_number(value, whole=field.range.whole)
    if field.type is bool:
        return bool(value) if isinstance(value, int | float) and value in (0, 1) else value
    if isinstance(value, str) and get_origin(field.type) is not Literal:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            text = f"{field.name} must be a list or an object, or one as JSON text, got {format_json(value[:100])}"
            raise ParameterError(text, field.name) from error
    return value


def read_number(value: Any, whole: bool) -> Any:
    """Return a truth value as 0 or 1, and a whole float as an integer if the field has integers."""
    if isinstance(value, bool):
        return int(value)
    if whole and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
