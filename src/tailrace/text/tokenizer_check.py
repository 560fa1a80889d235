"""Reads a folder's tokenizer in a process of its own first, with bounded time and memory, and encodes texts that take
bad regexes long. Files that would stop the server, or take for ever, are one sentence. It does not matter whether the
folder has a tokenizer.json, or files from which transformers makes one.

`check_tokenizer` is the parent's side; `python -m tailrace.text.tokenizer_check FOLDER SECONDS TRUSTED` is the child.
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
IMPORT_S = 30  # more for a folder whose tokenizer transformers makes
WALL_S = 600.0
MEMORY = 8 << 30  # of address space; vocabularies of 260,000 tokens take less than 1 GiB
RUN = 3000  # characters of a probe: n² steps take long, and n³ are over the library's limit
COMMON = "a0 A.\n\t-_é字"  # characters whose runs are probed besides those of the file's own regexes
MAX_PROBES = 200
PR_SET_PDEATHSIG = 1


def check_tokenizer(folder: Path, trust_remote_code: bool = False, seconds: int = CPU_S) -> None:
    """Check the folder's tokenizer.

    Raises:
        ModelLoadError: its files can't be read, or reading them or encoding with them takes too much time or memory.
    """
    own = (folder / FILE).is_file()
    file, seconds = folder / FILE if own else folder, seconds if own else seconds + IMPORT_S
    command = make_python_command(__name__, str(folder), str(seconds), str(int(trust_remote_code)))
    environment = {**select_environment(), "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=WALL_S, env=environment
        )
    except subprocess.TimeoutExpired:  # though it has not used its processor time
        raise ModelLoadError(f"{file}: the machine is too busy to check the tokenizer") from None
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode == 0 and lines:
        if problem := json.loads(lines[-1]):
            raise ModelLoadError(problem)
        return
    if done.returncode < 0 and -done.returncode not in CRASHES:
        text = f"the process that checks the tokenizer was ended from outside ({signal.Signals(-done.returncode).name})"
        raise ModelLoadError(f"{file}: {text}; the machine may lack memory")
    reason = explain_end(done.returncode, done.stderr, seconds)
    what = f"to encode {lines[-1]}" if lines else "with it"
    raise ModelLoadError(f"{file}: to read the tokenizer, or {what}, {reason}")


def explain_end(code: int, errors: bytes, seconds: int) -> str:
    """Return what a file did to the process that ended by itself, with this code and these last words."""
    if code == -signal.SIGXCPU:
        return f"takes more than {seconds} s of processor time"
    if b"memory allocation of" in errors:  # how Rust's library says it, before SIGABRT
        return "takes too much memory"
    return f"ends the process ({'signal' if code < 0 else 'exit code'} {abs(code)})"


def list_probes(tokenizer: Any) -> Iterator[str]:
    """Yield texts that take bad regexes long: runs of each character in the tokenizer's regexes, and of common ones.
    All characters stand behind a run: a regex whose last character is nowhere is not tried at all. tokenizer: its
    JSON."""
    own = dict.fromkeys("".join(find_regexes(tokenizer)))
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


def check_here(folder: Path, trust_remote_code: bool) -> str:
    """Read the tokenizer and encode the probes. Return what is wrong; "" if nothing is."""
    try:
        with tokenizer_errors(folder):
            # The chat templates are tried elsewhere.
            tokenizer = Tokenizer.load(folder, trust_remote_code, limits=None)
            for probe in list_probes(json.loads(tokenizer.backend.to_str())):
                print(f"{probe[0]!a} {RUN} times", flush=True)  # quoted if the process ends here
                tokenizer.encode(probe)
    except MemoryError:
        return f"{folder}: to read the tokenizer, or to encode with it, takes too much memory"
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
    print(json.dumps(check_here(Path(arguments[0]), arguments[2] == "1")), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
