"""A template as this process sees it: its names and constants, and the texts that it writes. Jinja itself runs in a
process of its own, with limits (processes.py). Knows nothing of messages.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from tailrace.base.extras import require_extra
from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError, RequestError
from tailrace.text.templates.processes import SHARED, JobLostError
from tailrace.text.templates.worker import TemplateJob, TemplateReply

PLAIN_BYTES = 1 << 20  # of a text, that a template may write of itself
TIMES = 8  # how many times as long as its values a text may be: JSON with escapes takes six times
REPEATED = 2  # the version of `marshal` that writes an object each time it occurs: the size counts
SUBJECT = "messages: the model's chat template "
REFUSES = f"{SUBJECT}refuses them: "
EXCESSES = {  # outcome of a job, or reason of its loss → what the template does
    "cpu": "takes more than {limits.cpu_s:g} s of processor time",
    "memory": "takes more than {limits.memory_mib} MiB of memory",
    "long": "writes more than {job.max_bytes} bytes",
    "crash": "ends the process that renders it",
}


class TemplateLimits(NamedTuple):
    """Limits of a template.

    - cpu_s: processor time of one rendering, and of all work at load together.
    - memory_mib: address space of one rendering. Without effect on macOS, which does not limit address space.
    """

    cpu_s: float = 10.0
    memory_mib: int = 512


def limits_of(model: ModelConfig) -> TemplateLimits:
    """Return the limits that the operator has set."""
    return TemplateLimits(model.template_cpu_s, model.template_memory_mib)


DEFAULT_LIMITS = TemplateLimits()


class TemplateLimitError(RequestError):
    """A template exceeds its limits with these messages."""


class TemplateProgram:
    """A template that can be compiled.

    Attributes:
        source: its text.
        variables: the names that it reads and does not set itself, without Jinja's own.
        constants: the string constants in it.
    Raises:
        ModelLoadError: Jinja can't read the template, or it exceeds its limits. `where` names it in the message.
        MissingExtraError: Jinja is not installed.
    """

    def __init__(self, source: str, where: str = "the chat template", limits: TemplateLimits = DEFAULT_LIMITS) -> None:
        with require_extra("text"):
            pass  # only the process imports Jinja
        self.source, self._where, self._limits = source, where, limits
        self._key = blake2b(source.encode(errors="surrogatepass"), digest_size=16).digest()
        self._left_s: float | None = None  # of the load
        self._excess: TemplateLimitError | None = None
        self.begin_load()
        try:
            reply = self._run_job(None, source, len(source))
        except TemplateLimitError:
            self.end_load()
            raise
        except RequestError as error:
            raise ModelLoadError(f"{where} can't be read: {str(error).removeprefix(REFUSES)}") from error
        self.variables, self.constants = frozenset(reply.variables), frozenset(reply.constants)

    def begin_load(self) -> None:
        """Begin a load. Until its end, all renderings together have the processor time of one."""
        self._left_s = self._limits.cpu_s

    def end_load(self) -> None:
        """End the load. From now on, each rendering may take all of the processor time.

        Raises:
            ModelLoadError: the template has exceeded its limits.
        """
        if self._excess is not None:
            reason = str(self._excess).removeprefix(SUBJECT)
            raise ModelLoadError(f"{self._where} can't be used: it {reason}") from self._excess
        self._left_s = None

    def run(self, values: Mapping[str, Any]) -> str:
        """Return the text. values: of JSON's types.

        Raises:
            RequestError: the template fails; the message has the reason. TemplateLimitError: it exceeds its limits.
            EngineError: the process for templates is lost.
        """
        data = encode_values(values)
        return self._run_job(data, None, len(data)).text.decode(errors="surrogatepass")

    def _run_job(self, values: bytes | None, source: str | None, size: int) -> TemplateReply:
        if self._excess is not None:
            raise self._excess
        limits, cpu_s = self._limits, self._left_s or self._limits.cpu_s
        job = TemplateJob(self._key, source, values, cpu_s, limits.memory_mib, PLAIN_BYTES + TIMES * size)
        try:
            reply = SHARED.run(job, self.source)
            outcome = reply.outcome
        except JobLostError as lost:
            reply, outcome = TemplateReply("unknown"), lost.reason
        if self._left_s is not None:
            self._left_s -= max(0.0, reply.cpu_s)
            outcome = "cpu" if self._left_s <= 0 else outcome
        if outcome in ("refused", "unreadable"):
            raise RequestError(f"{REFUSES}{reply.text.decode(errors='surrogatepass')}", "messages")
        if outcome != "done":
            error = TemplateLimitError(SUBJECT + EXCESSES[outcome].format(limits=limits, job=job), "messages")
            self._excess = None if self._left_s is None else error
            raise error
        return reply


def encode_values(values: Mapping[str, Any]) -> bytes:
    """Return the values as a job has them.

    Raises:
        RequestError: JSON has no such value.
    """
    try:
        return marshal.dumps(dict(values), REPEATED)
    except ValueError:  # an enum, a subclass of dict
        pass
    try:
        return marshal.dumps(json.loads(json.dumps(values)), REPEATED)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"messages: a chat template takes values of JSON alone: {error}", "messages") from error
