"""The process in which chat templates are compiled and rendered: python -m tailrace.text.templates.worker.

A template is a program that nobody has reviewed. Each job has limits of processor time and of memory, and the process
may be killed at any time. Reads jobs from stdin and writes replies to its original stdout (base/framed_pipes.py). Ends
when stdin does.
"""

from __future__ import annotations

import gc
import marshal
import os
import resource
import signal
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from importlib import import_module
from typing import Literal, NamedTuple

import msgspec

from tailrace.base.framed_pipes import MIB, read_frame, take_stdout, write_frame
from tailrace.errors import MAX_CHARS, shorten_text
from tailrace.text.templates.environment import (
    CompiledTemplate,
    describe_failure,
    describe_unreadable,
)

CPU_LIMIT = signal.SIGPROF  # ends the process of a job that takes too much processor time
KEPT = 64  # compiled templates
NAMED = 5  # bytes of MessagePack before a text; a character takes up to four
SIZES = "/proc/self/statm"
GROWN = 64 * MIB  # of memory, after which the process ends: a freed heap may stay with the process
# Modules that Python and Jinja import when a template first needs them. No file can be opened later.
LATE_MODULES = """
    jinja2.meta jinja2.constants jinja2.debug _pylong html pprint textwrap random urllib.parse unicodedata stringprep
    encodings.ascii encodings.cp1252 encodings.idna encodings.latin_1 encodings.punycode encodings.raw_unicode_escape
    encodings.unicode_escape encodings.utf_8_sig encodings.utf_16 encodings.utf_16_be encodings.utf_16_le
    encodings.utf_32 encodings.utf_32_be encodings.utf_32_le
"""


class TemplateJob(NamedTuple):
    """A template, and the values with which it is rendered. It is sent by `marshal`, which keeps every value of JSON:
    numbers of any size, and halves of surrogate pairs.

    - key: the name of the template in this process.
    - source: None for a template that the process is likely to know.
    - values: the template's variables, by `marshal` too; None: the template is only compiled.
    - cpu_s, memory_mib: limits of the job. max_bytes: of the reply's texts.
    """

    key: bytes
    source: str | None
    values: bytes | None
    cpu_s: float
    memory_mib: int
    max_bytes: int


class TemplateReply(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of a job. The parent does not trust it, so it is MessagePack.

    - outcome: "done"; "unknown", if the source is needed; else why there is no text. "refused" and "unreadable" give
      the reason in `text`.
    - text: UTF-8, in which halves of surrogate pairs are allowed.
    - variables, constants: of the template, if the source was sent.
    - cpu_s: processor time of the job.
    - last: the process ends.
    """

    outcome: Literal["done", "unknown", "refused", "unreadable", "memory", "long"]
    text: bytes = b""
    variables: list[str] = []
    constants: list[str] = []
    cpu_s: float = 0.0
    last: bool = False


def main() -> None:
    replies = take_stdout()
    signal.signal(CPU_LIMIT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (CPU_LIMIT,))
    load_modules()
    gc.collect()
    gc.freeze()
    memory = open_memory()
    base = read_memory(memory)
    forbid_resources()
    templates: OrderedDict[bytes, CompiledTemplate] = OrderedDict()
    while (data := read_frame(sys.stdin.buffer.read)) is not None:
        job = TemplateJob(*marshal.loads(data))
        del data
        begun_s = time.process_time()
        reply = run_limited(job, base, templates)
        del job
        last = is_last(reply, read_memory(memory).resident - base.resident)
        write_frame(replies, encode_reply(reply, time.process_time() - begun_s, last))
        if last:
            return


def is_last(reply: TemplateReply, grown: int) -> bool:
    """Return whether the process ends after a reply. grown: bytes that the process has gained since its start."""
    return grown > GROWN or reply.outcome == "memory"


def encode_reply(reply: TemplateReply, cpu_s: float, last: bool) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(reply, cpu_s=cpu_s, last=last))


def load_modules() -> None:
    """Import everything that a rendering may need, and render something.

    Raises:
        MissingExtraError: Jinja is not installed.
    """
    for name in LATE_MODULES.split():
        with suppress(ModuleNotFoundError):  # Python 3.11 has no _pylong
            import_module(name)
    template = CompiledTemplate("{{ strftime_now('%c %Z') }}{{ messages.role }}")
    for values in ({"messages": {}}, {}):
        with suppress(Exception):  # the second one fails, and Jinja imports what describes it
            template.render(values)


class MemorySizes(NamedTuple):
    """Bytes of this process."""

    address: int
    resident: int


def open_memory() -> int | None:
    """Return the file of `read_memory`; None where the system has none (macOS)."""
    return os.open(SIZES, os.O_RDONLY) if os.path.exists(SIZES) else None


def read_memory(file: int | None) -> MemorySizes:
    """Return the sizes; zeros without a file."""
    address, resident = os.pread(file, 256, 0).split()[:2] if file is not None else (0, 0)
    return MemorySizes(int(address) * resource.getpagesize(), int(resident) * resource.getpagesize())


def forbid_resources() -> None:
    """Take from the process what no template needs: new files and connections, writing to files, new processes."""
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    for limit, most in (
        (resource.RLIMIT_NOFILE, free),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (most, most))


def run_limited(job: TemplateJob, base: MemorySizes, templates: OrderedDict[bytes, CompiledTemplate]) -> TemplateReply:
    """Return the outcome. The timer's signal ends the process even inside one operation of Python.

    Args:
        base: the sizes before the first job.
        templates: those that are compiled, the one used last at the end.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = base.address + job.memory_mib * MIB if base.address else resource.RLIM_INFINITY
    lowest = min((limit for limit in (most, *before) if limit != resource.RLIM_INFINITY), default=most)
    signal.setitimer(signal.ITIMER_PROF, job.cpu_s)
    resource.setrlimit(resource.RLIMIT_AS, (lowest, before[1]))
    try:
        return run_job(job, templates)
    except MemoryError:
        return TemplateReply("memory")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.setitimer(signal.ITIMER_PROF, 0)


def run_job(job: TemplateJob, templates: OrderedDict[bytes, CompiledTemplate]) -> TemplateReply:
    """Return the outcome.

    Raises:
        MemoryError: the job takes too much memory.
    """
    variables: list[str] = []
    constants: list[str] = []
    try:
        if job.source is not None:
            try:
                template = CompiledTemplate(job.source)
            except MemoryError:
                raise
            except Exception as error:
                return TemplateReply("unreadable", encode_text(shorten_text(describe_unreadable(error), MAX_CHARS)))
            variables, constants = clean_texts(template.variables), clean_texts(template.constants)
            templates[job.key] = template
            if len(templates) > KEPT:
                templates.popitem(last=False)
        elif job.key not in templates:
            return TemplateReply("unknown")
        templates.move_to_end(job.key)
        text = b"" if job.values is None else encode_text(templates[job.key].render(marshal.loads(job.values)))
    except MemoryError:
        raise
    except Exception as error:  # a template may fail with any exception
        return TemplateReply("refused", encode_text(shorten_text(describe_failure(error), MAX_CHARS)))
    if len(text) + sum(NAMED + 4 * len(name) for name in (*variables, *constants)) > job.max_bytes:
        return TemplateReply("long")
    return TemplateReply("done", text, variables, constants)


def encode_text(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def clean_texts(texts: list[str]) -> list[str]:
    """Return the texts without halves of surrogate pairs, which MessagePack refuses."""
    return [text.encode(errors="replace").decode() for text in texts]


if __name__ == "__main__":
    main()
