"""Variables of the environment that begin with TAILRACE_."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tailrace.base.config_sources import list_fields
from tailrace.base.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, MODEL_VARIABLE
from tailrace.base.nearest import suggest_name
from tailrace.base.settings_errors import PREFIX, name_variable
from tailrace.config import SECTIONS

log = logging.getLogger(__name__)

OTHERS = (  # variables that are no settings of a section
    LEVEL_VARIABLE,
    FORMAT_VARIABLE,
    MODEL_VARIABLE,
    "TAILRACE_VLLM",
)
FOREIGN = ("TAILRACE_TEST_",)  # of our own tests


def list_variables() -> list[str]:
    """Return the names of all variables that tailrace reads."""
    fields = [name_variable(section, field) for section in SECTIONS for field in list_fields(section)]
    return [*fields, *OTHERS]


def warn_about_unknown(env: Mapping[str, str]) -> None:
    """Log a line for each variable that looks like a setting and is none: an error if its name is near to one."""
    known = list_variables()
    for name in sorted(env):
        if name.upper().startswith(PREFIX) and name not in known and not name.startswith(FOREIGN):
            hint = suggest_variable(name)
            level = logging.ERROR if hint else logging.WARNING
            log.log(level, "the variable %s has no effect: there is no such setting%s", name, hint)


def suggest_variable(name: str) -> str:
    """Return a hint at the known variable nearest to `name`, in capitals. The common prefix makes none near."""
    name = name.upper()
    return suggest_name(name, [known for known in list_variables() if is_near(name, known)])


def is_near(name: str, known: str) -> bool:
    """Return whether two names are near without their common prefix."""
    return bool(suggest_name(name.removeprefix(PREFIX), [known.removeprefix(PREFIX)]))
