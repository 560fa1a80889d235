"""Steps and draws that vLLM's own code serves instead of tailrace, with the reasons, per process.

All errors that tailrace raises inside vLLM end here. vLLM then serves the step by itself, and its engine keeps running.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from vllm.exceptions import VLLMValidationError

from tailrace.errors import ParameterError

T = TypeVar("T")

log = logging.getLogger("vllm.tailrace")  # below vLLM's own logger, whose handlers print it
fallbacks: Counter[str] = Counter()  # by reason


class LeftToVllmError(Exception):
    """vLLM's own sampler must serve the whole batch; the message says why."""


def count_reason(reason: str) -> int:
    """Count a draw or a step of vLLM's. Return the new count if the log should have it (1, 10, 100, …), else 0."""
    fallbacks[reason] += 1
    return fallbacks[reason] if str(fallbacks[reason]).strip("0") == "1" else 0


def fall_back(reason: str) -> None:
    """Count a draw of vLLM's own sampler. Log the first of its kind, then the tenth, the hundredth and so on."""
    if times := count_reason(reason):
        log.warning("tailrace leaves these draws to vLLM's own sampler: %s (%d so far)", reason, times)


def call_or_none(where: str, function: Callable[[], T], then: Callable[[], object] | None = None) -> T | None:
    """Return what `function` returns; None if it raises: then vLLM must serve the step by itself.

    A LeftToVllmError counts as its reason. Any other error is an error of tailrace's: it is counted, and the first of
    each kind is logged with its traceback. The same holds for a GPU without free memory. vLLM's own sampler may need
    less memory; otherwise it raises by itself. If the device is lost, vLLM's next call fails in the same way.

    Call vLLM's own functions outside of `function`. Then their errors stay vLLM's, and none runs twice in a step.

    Args:
        where: names the hook in the log. then: what to do after an error of tailrace's; not after a LeftToVllmError.
    """
    try:
        return function()
    except LeftToVllmError as reason:
        fall_back(str(reason))
        return None
    except Exception as error:  # whatever it is: the engine would end
        count_error(where, error)
    if then is not None:  # the error no longer exists, so the tensors of its frames are free
        call_or_none(f"{where}, after an error", then)
    return None


def count_error(where: str, error: Exception) -> None:
    """Count an error of tailrace's by its kind. Log the first of each kind with its traceback, then as above."""
    kind = f"an error in tailrace's {where} ({type(error).__name__})"
    if times := count_reason(kind):
        text = "tailrace leaves this step to vLLM, after %s; please report it: %s (%d so far)"
        log.error(text, kind, error, times, exc_info=error if times == 1 else None)


def raise_found(find: Callable[[], ParameterError | None]) -> None:
    """Raise what `find` returns as vLLM's own error: over HTTP a 400."""
    if (error := call_or_none("check of fields", find)) is not None:
        raise VLLMValidationError(str(error), parameter=error.param) from error
