"""A conversion in a process of its own, so that the process that asks never imports torch: both ends of it.

The child reports on stderr: "stage: …", "warning: …", tqdm's lines, and "error: …" before exit code 1. It ends when its
stdin closes, because its parent is gone then.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable

from tailrace.base.python_command import make_python_command
from tailrace.errors import ModelLoadError, describe_error, escape_controls
from tailrace.models.progress import Progress

BAR = re.compile(r"(\d+)/(\d+) \[")  # the counts in a tqdm line


def run_child(module: str, arguments: list[str], progress: Progress, label: str) -> str | None:
    """Run `python -m module arguments` and show its progress → None, or why it failed."""
    messages: list[str] = []
    command = make_python_command(module, *arguments)
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert child.stderr is not None
        line = bytearray()
        while byte := child.stderr.read(1):
            if byte not in b"\r\n":
                line += byte
                continue
            handle_line(line.decode(errors="replace").strip(), progress, label, messages)
            line.clear()
        handle_line(line.decode(errors="replace").strip(), progress, label, messages)
        child.wait()
    finally:
        with contextlib.suppress(OSError):
            child.kill()
        child.wait()
        for pipe in (child.stdin, child.stderr):
            if pipe is not None:
                pipe.close()
    if child.returncode == 0:
        return None
    how = messages[-1] if messages else f"its process ended with {child.returncode}"
    return how.removeprefix("error: ")


def handle_line(line: str, progress: Progress, label: str, messages: list[str]) -> None:
    """Handle a line of the child: a stage, a warning, a tqdm bar, or text to quote if it fails."""
    if counts := BAR.search(line):
        progress.advance(int(counts[1]), int(counts[2]))
    elif line.startswith("stage: "):
        progress.start_stage(f"{label}: {line.removeprefix('stage: ')}")
    elif line.startswith("warning: "):
        progress.start_stage(f"{label}: {line}")
    elif line:
        messages.append(line)


def send_line(kind: str, text: str) -> None:
    """Print one line for the parent, on the child's side."""
    print(f"{kind}: {escape_controls(text)}", file=sys.stderr, flush=True)


def say_count(done: int, total: int) -> None:
    """Print progress for the parent, on the child's side, in the form of tqdm."""
    print(f"{done}/{total} [", file=sys.stderr, flush=True)


def run_work(work: Callable[[], None]) -> int:
    """Return the child's side: do the work. Exit code 0, or 1 after a line "error: …"."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        work()
    except ModelLoadError as error:
        send_line("error", str(error))
        return 1
    except OSError as error:
        send_line("error", f"{error.filename or 'a file'}: {error.strerror or error}")
        return 1
    except Exception as error:  # the parent must be able to quote any error
        send_line("error", describe_error(error))
        return 1
    return 0


def end_with_parent() -> None:
    """End this process when its parent has ended."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def not_all_there(names: list[str]) -> str:
    """Return the message for a model that lacks these tensors."""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"the model's weights are not all there: {names[0]}{others} missing"


def check_transformers() -> None:
    """Raise ImportError unless transformers splits text and keeps added tokens as GGUF files say, as it does from 5.20
    on. Older versions silently encode text differently with many vocabularies, and rename weights by other tables."""
    import transformers

    if not hasattr(transformers, "GgufConfig"):
        raise ImportError(
            f"converting weights needs transformers >= 5.20, and {transformers.__version__} is installed: upgrade it, "
            "or name a model of plain floats in Hugging Face's format"
        )
