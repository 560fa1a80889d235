"""A process that reads what nobody has reviewed, with bounded processor time and memory: both ends.

`run_limited` is the parent's side. The child calls `take_limits` before it reads anything, and ends with its parent.
Knows nothing of what is read.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from tailrace.base.child_process import CRASHES
from tailrace.base.process_limits import end_with_parent
from tailrace.base.python_command import select_environment

WALL_S = 600.0


class LimitedOutput(NamedTuple):
    """What a child has printed, and how it ended.

    - lines: of its stdout. problem: what made it end early; "" if nothing did.
    - blamed: the problem comes from what it read, not from outside.
    """

    lines: list[str]
    problem: str = ""
    blamed: bool = False


def run_limited(command: Sequence[str], seconds: int, trusted: bool = False) -> LimitedOutput:
    """Run the command, which takes `seconds` of processor time as its limit. trusted: it may run code of its own, and
    gets all variables of the environment for it."""
    environment = {**(os.environ if trusted else select_environment()), "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=WALL_S, env=environment
        )
    except subprocess.TimeoutExpired:  # though it has not used its processor time
        return LimitedOutput([], "the machine is too busy")
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode == 0:
        return LimitedOutput(lines)
    if done.returncode < 0 and -done.returncode not in CRASHES:
        name = signal.Signals(-done.returncode).name
        return LimitedOutput(lines, f"its process was ended from outside ({name}); the machine may lack memory")
    return LimitedOutput(lines, explain_end(done.returncode, done.stderr, seconds), blamed=True)


def explain_end(code: int, errors: bytes, seconds: int) -> str:
    """Return what the input did to the process that ended by itself, with this code and these last words."""
    if code == -signal.SIGXCPU:
        return f"takes more than {seconds} s of processor time"
    if b"memory allocation of" in errors or b"MemoryError" in errors:  # the former by Rust, before SIGABRT
        return "takes too much memory"
    return f"ends the process ({'signal' if code < 0 else 'exit code'} {abs(code)})"


def take_limits(cpu_s: int, address_bytes: int) -> None:
    """Limit this process. It leaves no core dump, and ends with its parent."""
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)  # so that the limit of processor time never ends it by SIGKILL
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGXCPU,))
    for limit, most in ((resource.RLIMIT_AS, address_bytes), (resource.RLIMIT_CPU, cpu_s)):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
