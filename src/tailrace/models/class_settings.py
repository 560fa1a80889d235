"""The settings of a folder's language model, with the sizes that config.json leaves to the default of the model's class
in transformers.

transformers' `save_pretrained` leaves out what equals the class's default: Gemma 3's `text_config` states no
`vocab_size`. Only transformers knows these defaults, and it imports torch. So a process without transformers asks a
child. A folder that states all that is asked for costs nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tailrace.base.limited_child import run_limited, take_limits
from tailrace.base.python_command import make_script_command
from tailrace.errors import ModelLoadError
from tailrace.models.auto_class import load_auto_config
from tailrace.models.config_files import language_config, nested_config, read_json

CPU_S = 60  # processor time; most of it is the import
MEMORY = 8 << 30  # of address space


def read_language_settings(folder: Path, needed: Sequence[Sequence[str]], remote_code: bool = False) -> dict[str, Any]:
    """Return the language model's settings. Those of the class are added if config.json lacks a needed one.

    Args:
        needed: settings, each by all of its names.
        remote_code: the folder's own code may run.

    Raises:
        ModelLoadError: config.json can't be read.
    """
    config = read_json(folder, "config.json", required=True)
    stated, own = language_config(config), nested_config(config) or config
    if all(any(own.get(name) is not None for name in names) for names in needed) or "model_type" not in config:
        return stated
    changed = (folder / "config.json").stat().st_mtime_ns
    return {**stated, **class_settings(folder, changed, remote_code)}


@lru_cache(maxsize=32)
def class_settings(folder: Path, changed: int, remote_code: bool) -> dict[str, Any]:
    """Return the settings that transformers makes of config.json, without those that are None.

    {} if transformers fails; the runner reports the reason later. changed: config.json's time, so that a new file is
    read again.

    Raises:
        ModelLoadError: it takes too much time or memory.
    """
    if "transformers" in sys.modules:
        return ask_transformers(folder, remote_code)
    code = f"from {__name__} import print_settings; print_settings()"
    done = run_limited(make_script_command(code, str(folder), str(int(remote_code))), CPU_S, remote_code)
    if done.problem:
        verb = "to read it" if done.blamed else "it can't be read:"
        raise ModelLoadError(f"{folder / 'config.json'}: {verb} {done.problem}")
    return json.loads(done.lines[-1]) if done.lines else {}


def ask_transformers(folder: Path, remote_code: bool) -> dict[str, Any]:
    """The same, in a process that may import transformers.

    Raises:
        MemoryError: a setting takes too much.
    """
    try:
        text = load_auto_config(folder, remote_code).get_text_config()
        found: dict[str, Any] = json.loads(text.to_json_string(use_diff=False))
    except MemoryError:
        raise
    except (Exception, SystemExit):  # whatever a model's code raises, or a broken transformers
        return {}
    return {name: value for name, value in found.items() if value is not None}


def print_settings() -> None:
    """Print the settings as JSON. The arguments of the process are the folder, and 1 if its own code may run."""
    take_limits(CPU_S, MEMORY)
    print(json.dumps(ask_transformers(Path(sys.argv[1]), sys.argv[2] == "1")))
