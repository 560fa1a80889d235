"""Reads a folder's tokenizer.json in a process of its own first, with bounded time and memory, and encodes texts that
take bad regexes long. A file that would stop the server, or take for ever, is one sentence.

`check_tokenizer` is the parent's side; `python -m tailrace.text.tokenizer_check FOLDER SECONDS` is the child.
"""

from __future__ import annotations

import ctypes
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrace.base.child_process import CRASHES
from tailrace.base.python_command import make_python_command, select_environment
from tailrace.errors import ModelLoadError, TailraceError
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.tokenizer_files import FILE, tokenizer_errors

CPU_S = 30  # processor time; the largest vocabularies take about two seconds
WALL_S = 600.0
MEMORY = 8 << 30  # of address space; vocabularies of 260,000 tokens take less than 1 GiB
RUN = 3000  # characters of a probe: n² steps take long, and n³ are over the library's limit
COMMON = "a0 A.\n\t-_é字"  # characters whose runs are probed besides those of the file's own regexes
MAX_PROBES = 200
PR_SET_PDEATHSIG = 1


def check_tokenizer(folder: Path, seconds: int = CPU_S) -> None:
    """Check the folder's tokenizer.json; do nothing without one.

    Raises:
        ModelLoadError: the file can't be read, or reading it or encoding with it takes too much time or memory.
    """
    if not (folder / FILE).is_file():
        return
    command = make_python_command(__name__, str(folder), str(seconds))
    environment = {**select_environment(), "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=WALL_S, env=environment
        )
    except subprocess.TimeoutExpired:  # though it has not used its processor time
        raise ModelLoadError(f"{folder / FILE}: the machine is too busy to check it") from None
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode == 0 and lines:
        if problem := json.loads(lines[-1]):
            raise ModelLoadError(problem)
        return
    if done.returncode < 0 and -done.returncode not in CRASHES:
        text = f"the process that checks it was ended from outside ({signal.Signals(-done.returncode).name})"
        raise ModelLoadError(f"{folder / FILE}: {text}; the machine may lack memory")
    reason = explain_end(done.returncode, done.stderr, seconds)
    raise ModelLoadError(f"{folder / FILE}: to read it, or to encode {lines[-1] if lines else 'with it'}, {reason}")


def explain_end(code: int, errors: bytes, seconds: int) -> str:
    """Return what a file did to the process that ended by itself, with this code and these last words."""
    if code == -signal.SIGXCPU:
        return f"takes more than {seconds} s of processor time"
    if b"memory allocation of" in errors:  # how Rust's library says it, before SIGABRT
        return "takes too much memory"
    return f"ends the process ({'signal' if code < 0 else 'exit code'} {abs(code)})"


def list_probes(path: Path) -> Iterator[str]:
    """Yield texts that take bad regexes long: runs of each character in the file's regexes, and of common ones. All
    characters stand behind a run: a regex whose last character is nowhere is not tried at all."""
    own = dict.fromkeys("".join(find_regexes(json.loads(path.read_bytes()))))
    chars = "".join(dict.fromkeys([*COMMON, *own]))[:MAX_PROBES]
    for char in chars:
        yield char * RUN + chars.replace(char, "")


def find_regexes(value: Any) -> Iterator[str]:
    """Yield the regexes anywhere outside of the file's vocabulary."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name == "Regex" and isinstance(part, str):
                yield part
            elif name not in ("model", "added_tokens"):
                yield from find_regexes(part)
    if isinstance(value, list):
        for part in value:
            yield from find_regexes(part)


def check_here(folder: Path) -> str:
    """Read the tokenizer and encode the probes. Return what is wrong; "" if nothing is."""
    try:
        with tokenizer_errors(folder):
            tokenizer = Tokenizer.load(folder, limits=None)  # its chat templates are tried elsewhere
            for probe in list_probes(folder / FILE):
                print(f"{probe[0]!a} {RUN} times", flush=True)  # quoted if the process ends here
                tokenizer.encode(probe)
    except MemoryError:
        return f"{folder / FILE}: to read it, or to encode with it, takes too much memory"
    except TailraceError as error:
        return str(error)
    return ""


def main(arguments: list[str]) -> None:
    """Print the outcome as JSON in the last line."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)  # so that the limit of processor time never ends it by SIGKILL
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGXCPU,))
    for limit, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, int(arguments[1]))):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    print(json.dumps(check_here(Path(arguments[0]))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
