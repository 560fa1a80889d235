"""tailrace as the sampler of vLLM (V1 runner). Installed beside vLLM it is on; `TAILRACE_VLLM=0` turns it off.

vLLM calls `register` in each of its processes (entry point of the group vllm.general_plugins). `register` replaces:

- `Sampler.forward` and `RejectionSampler.forward`: they sample with tailrace's kernels.
- `build_logitsprocs`: it adds the follower of the batch (requests.py), which sees each request join, leave or move.
- `SamplingParams._verify_args`: it checks tailrace's own fields, so that a wrong value is an HTTP 400.

Nothing is replaced if vLLM is built differently (layout.py).
"""

from __future__ import annotations

import logging
import os

OFF = ("0", "off", "false", "no")
log = logging.getLogger("vllm.tailrace")  # below vLLM's own logger, whose handlers print it


def register() -> None:
    """Replace vLLM's sampler in this process; called again it does nothing."""
    if os.environ.get("TAILRACE_VLLM", "").lower() in OFF:
        log.info("tailrace is off: TAILRACE_VLLM=%s", os.environ["TAILRACE_VLLM"])
        return
    try:
        from tailrace.integrations.vllm import patches

        patches.install_patches()
    except (ImportError, AttributeError) as error:
        log.error("tailrace is off, vLLM samples by itself: %s", error)
    except Exception:  # whatever it is, vLLM must start
        log.exception("tailrace is off, vLLM samples by itself")
