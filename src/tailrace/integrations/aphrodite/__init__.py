"""tailrace as the sampler of Aphrodite's V1 runner. Installed beside Aphrodite it is on; `TAILRACE_APHRODITE=0` turns
it off.

Aphrodite calls `register` in each of its processes (entry point of the group aphrodite.general_plugins). `register`
selects the V1 runner, unless the environment names another, and replaces the functions of `sampler.OURS`.
"""

from __future__ import annotations

import logging
import os

OFF = ("0", "off", "false", "no")
RUNNER = "APHRODITE_USE_V2_MODEL_RUNNER"
log = logging.getLogger("aphrodite.tailrace")  # below Aphrodite's own logger, whose handlers print it


def register() -> None:
    """Replace Aphrodite's sampler in this process; called again it does nothing."""
    if os.environ.get("TAILRACE_APHRODITE", "").lower() in OFF or os.environ.setdefault(RUNNER, "0") != "0":
        log.info("tailrace is off: TAILRACE_APHRODITE or %s is set", RUNNER)
        return
    try:
        from tailrace.integrations.aphrodite.sampler import install_patches

        install_patches()
    except Exception:  # whatever it is, Aphrodite must start
        log.exception("tailrace is off, Aphrodite samples by itself")
