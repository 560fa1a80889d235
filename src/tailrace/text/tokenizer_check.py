"""Reads a folder's tokenizer in a process of its own first, with bounded time and memory, and encodes texts that take
bad regexes long. Files that would stop the server, or take for ever, are one sentence. It does not matter whether the
folder has a tokenizer.json, or files from which transformers makes one.

`check_tokenizer` is the parent's side; `python -m tailrace.text.tokenizer_check FOLDER SECONDS TRUSTED` is the child.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace.base.limited_child import run_limited, take_limits
from tailrace.base.python_command import make_python_command
from tailrace.errors import ModelLoadError, TailraceError
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.tokenizer_files import FILE, tokenizer_errors

CPU_S = 30  # processor time; the largest vocabularies take about two seconds
IMPORT_S = 30  # more for a folder whose tokenizer transformers makes
MEMORY = 8 << 30  # of address space; vocabularies of 260,000 tokens take less than 1 GiB
RUN = 3000  # characters of a probe: n² steps take long, and n³ are over the library's limit
COMMON = "a0 A.\n\t-_é字"  # characters whose runs are probed besides those of the file's own regexes
MAX_PROBES = 200


def check_tokenizer(folder: Path, trust_remote_code: bool = False, seconds: int = CPU_S) -> None:
    """Check the folder's tokenizer.

    Raises:
        ModelLoadError: its files can't be read, or reading them or encoding with them takes too much time or memory.
    """
    own = (folder / FILE).is_file()
    file, seconds = folder / FILE if own else folder, seconds if own else seconds + IMPORT_S
    command = make_python_command(__name__, str(folder), str(seconds), str(int(trust_remote_code)))
    done = run_limited(command, seconds, trust_remote_code)
    if not done.problem and done.lines:
        if problem := json.loads(done.lines[-1]):
            raise ModelLoadError(problem)
        return
    if not done.blamed:
        raise ModelLoadError(f"{file}: the tokenizer can't be checked: {done.problem}")
    what = f"to encode {done.lines[-1]}" if done.lines else "with it"
    raise ModelLoadError(f"{file}: to read the tokenizer, or {what}, {done.problem}")


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
            tokens = 0
            for probe in list_probes(json.loads(tokenizer.backend.to_str())):
                print(f"{probe[0]!a} {RUN} times", flush=True)  # quoted if the process ends here
                tokens += len(tokenizer.encode(probe, add_special_tokens=False))
            if not tokens:
                return f"{folder}: the tokenizer makes no tokens of any text: its vocabulary is empty"
    except MemoryError:
        return f"{folder}: to read the tokenizer, or to encode with it, takes too much memory"
    except TailraceError as error:
        return str(error)
    return ""


def main(arguments: list[str]) -> None:
    """Print the outcome as JSON in the last line."""
    take_limits(int(arguments[1]), MEMORY)
    print(json.dumps(check_here(Path(arguments[0]), arguments[2] == "1")), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
