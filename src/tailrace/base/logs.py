"""Logging of a process. A child process gets its settings through the environment."""

from __future__ import annotations

import logging
import os

from tailrace.base.extras import require_extra
from tailrace.errors import ConfigError, escape_controls

LEVEL_VARIABLE, FORMAT_VARIABLE = "TAILRACE_LOG", "TAILRACE_LOG_FORMAT"
MODEL_VARIABLE = "TAILRACE_LOG_MODEL"  # the model of an engine process, if there are several
LOG_FORMATS = ("text", "json")


class LineFormatter(logging.Formatter):
    """A formatter of lines of text. A message is one line, whatever names it quotes. A traceback follows it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, as in logging
        return escape_controls(super().formatMessage(record))


def start_logging(level: str, form: str, model: str = "") -> None:
    """Log to stderr: lines of text, or one JSON object per line with the fields of `extra`. JSON logs include Python's
    warnings. model: named in every line.

    Raises:
        ConfigError: an unknown format. MissingExtraError: json needs the extra `serve`.
    """
    if form not in LOG_FORMATS:
        raise ConfigError(f"the log's format must be one of {', '.join(LOG_FORMATS)}, got {form!r}")
    whose = f" ({model})".replace("%", "%%") if model else ""
    formatter = LineFormatter(f"%(levelname)s %(name)s{whose}: %(message)s")
    if form == "json":
        with require_extra("serve"):
            from pythonjsonlogger.core import RESERVED_ATTRS
            from pythonjsonlogger.json import JsonFormatter

        formatter = JsonFormatter(
            "%(levelname)s %(name)s %(message)s",
            rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception", "stack_info": "stack"},
            timestamp="time",
            defaults={"time": None},  # makes it the first field
            static_fields={"model": model} if model else None,
            reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # uvicorn's second copy of its message, for terminals
        )
        logging.captureWarnings(True)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])


def start_inherited_logging() -> None:
    """Log as the process that started this one does.

    Raises:
        ConfigError: see start_logging.
    """
    env = os.environ
    start_logging(env.get(LEVEL_VARIABLE, "info"), env.get(FORMAT_VARIABLE, "text"), env.get(MODEL_VARIABLE, ""))
