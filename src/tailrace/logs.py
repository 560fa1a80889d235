"""How a process logs, and how those that it starts hear of it: by the environment."""

from __future__ import annotations

import logging
import os

from tailrace.errors import ConfigError
from tailrace.extras import needs

LEVEL_VARIABLE, FORMAT_VARIABLE = "TAILRACE_LOG", "TAILRACE_LOG_FORMAT"
MODEL_VARIABLE = "TAILRACE_LOG_MODEL"  # whose engine a process is, where there are several
LOG_FORMATS = ("text", "json")


def start_logging(level: str, form: str, model: str = "") -> None:
    """Log to stderr, as lines of text or as one JSON object a line with what `extra` gives; Python's warnings then too. model: every line
    names it.

    Raises:
        ConfigError: another form. MissingExtraError: of json, where the extra serve is not installed.
    """
    if form not in LOG_FORMATS:
        raise ConfigError(f"the log's format must be one of {', '.join(LOG_FORMATS)}, got {form!r}")
    whose = f" ({model})".replace("%", "%%") if model else ""
    formatter = logging.Formatter(f"%(levelname)s %(name)s{whose}: %(message)s")
    if form == "json":
        with needs("serve"):
            from pythonjsonlogger.core import RESERVED_ATTRS
            from pythonjsonlogger.json import JsonFormatter

        formatter = JsonFormatter(
            "%(levelname)s %(name)s %(message)s",
            rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception", "stack_info": "stack"},
            timestamp="time",
            defaults={"time": None},  # so that it comes first
            static_fields={"model": model} if model else None,
            reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # uvicorn's second copy of its message, for terminals
        )
        logging.captureWarnings(True)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])


def start_inherited_logging() -> None:
    """As the process that started this one logs.

    Raises:
        ConfigError: see start_logging.
    """
    env = os.environ
    start_logging(env.get(LEVEL_VARIABLE, "info"), env.get(FORMAT_VARIABLE, "text"), env.get(MODEL_VARIABLE, ""))
