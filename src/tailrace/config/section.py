"""The base of the sections of settings, and the ranges of their fields."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]  # finite, as all numbers of JSON
MODEL_NAME = re.compile(r"[A-Za-z0-9._:@/+-]{1,128}")
NAME_RULE = "1 to 128 letters, digits or any of . _ : @ / + -"  # MODEL_NAME in words
Seconds = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
PerMinute = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


def split_commas(words: str) -> list[str]:
    """Return the words between the commas, without empty ones."""
    return [word for part in words.split(",") if (word := part.strip())]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections."""
