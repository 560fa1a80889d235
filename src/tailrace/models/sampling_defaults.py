"""The sampling fields of a request that leaves them out: the model's own, and over them the operator's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tailrace.base.nearest import suggest_name
from tailrace.config import ModelConfig
from tailrace.errors import ConfigError, ParameterError, format_json
from tailrace.models.default import DEFAULT_SAMPLING
from tailrace.models.describe import DEFAULTS, defaults
from tailrace.params import FIELDS, SamplingParams

SETTING = "model.override_generation_config"
PLAIN = (float, int, bool)
# the operator's names → fields: what changes which tokens are likely, by numbers and switches; and the length
ACCEPTED = {
    name: name
    for name, field in FIELDS.items()
    if field.kind in ("edit", "reshape", "truncation") and field.http == "same" and field.type in PLAIN
} | {**DEFAULTS, "max_tokens": "max_tokens"}


def choose_sampling_defaults(folder: Path, model: ModelConfig, own: bool = True) -> dict[str, float | int]:
    """Return the sampling defaults of a served model, as fields of SamplingParams. own: the defaults of its
    generation_config.json, or those of the small default model, count.

    Raises:
        ModelLoadError: the file has a value out of range. ConfigError: see read_sampling_defaults.
    """
    stated = defaults(folder) or (DEFAULT_SAMPLING if model.model is None else {})
    return (stated if own else {}) | read_sampling_defaults(model.override_generation_config)


def read_sampling_defaults(text: str) -> dict[str, float | int]:
    """Return the operator's sampling defaults, as fields of SamplingParams. text: a JSON object, or "".

    Raises:
        ConfigError: naming the setting and the field.

    >>> read_sampling_defaults('{"temperature": 0.6, "max_new_tokens": 100}')
    {'temperature': 0.6, 'max_tokens': 100}
    """
    if not text:
        return {}
    try:
        given = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ConfigError(f"{SETTING} must be a JSON object of sampling fields, got {format_json(text)}") from error
    found: dict[str, float | int] = {}
    for name, raw in given.items():
        if name not in ACCEPTED:
            raise ConfigError(f"{SETTING}: {format_json(name)} has no default{suggest_name(name[:64], ACCEPTED)}")
        if (field := ACCEPTED[name]) in found:
            raise ConfigError(f"{SETTING}: {field} is given twice")
        try:
            found[field] = msgspec.json.decode(raw, type=int if field == "max_tokens" else FIELDS[field].type)
            check_fields({field: found[field]})
        except (msgspec.DecodeError, ParameterError) as error:
            raise ConfigError(f"{SETTING}: {name}: {error}") from error
    try:
        check_fields(found)
    except ParameterError as error:
        raise ConfigError(f"{SETTING}: {error}") from error
    return found


def check_fields(fields: dict[str, Any]) -> None:
    """Raise ParameterError for a value out of range, and for fields that contradict one another."""
    SamplingParams(**fields)
