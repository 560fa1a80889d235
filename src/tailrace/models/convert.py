"""The conversion of a GGUF file, run as a program: `python -m tailrace.models.convert FILE.gguf FOLDER DTYPE
WEIGHTS`. WEIGHTS: dequantized, or quantized: matrices stay in their blocks (convert_quantized.py).

Imports torch and transformers, so no module of tailrace imports it; child.py is how it reports.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tailrace.errors import ModelLoadError, ParameterError
from tailrace.models.child import check_transformers, run_work, send_line
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_layout import check_layout
from tailrace.models.gguf_special_tokens import find_ends
from tailrace.models.gguf_tokenizer import convert_tokenizer
from tailrace.params import check_range

SAMPLING = "general.sampling."
# llama.cpp's names of sampling defaults → generation_config.json's, which models/describe.py reads
SAMPLING_NAMES = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def convert_weights(fields: Fields, folder: Path, dtype: str, keep: bool) -> None:
    """Write the weights, config.json, and generation_config.json with every id that ends a text. keep: blocks."""
    import torch

    from tailrace.models.gguf_parts import convert_in_parts

    model = convert_in_parts(fields, folder, getattr(torch, dtype), keep)
    model.config.architectures, model.config.dtype = [type(model).__name__], model.dtype
    model.config.save_pretrained(folder)
    add_ends(model.generation_config, find_ends(fields))
    model.generation_config.save_pretrained(folder)
    add_sampling(folder / "generation_config.json", fields)


def add_ends(generation_config: Any, ends: list[int]) -> None:
    """Add every id that ends a text, if there are several or config.json states none."""
    if generation_config is not None and ends and ends != [generation_config.eos_token_id]:
        stated = generation_config.eos_token_id
        stated = stated if isinstance(stated, list) else [] if stated is None else [stated]
        generation_config.eos_token_id = sorted({*ends, *stated})


def add_sampling(path: Path, fields: Fields) -> None:
    """Write the file's sampling defaults into generation_config.json. Log a warning for defaults without a name
    there."""
    names = [name for name in fields.names() if name.startswith(SAMPLING)]
    given = {name.removeprefix(SAMPLING): fields.get_field(name) for name in names}
    found = {name: given[key] for key, name in SAMPLING_NAMES.items() if key in given}
    for key in sorted(given.keys() - SAMPLING_NAMES.keys()):
        send_line(
            "warning", f"the sampling default {SAMPLING}{key} = {given[key]!s:.80} is not used: a request may set it"
        )
    if not found:
        return
    if type(found.get("top_k")) is int:
        found["top_k"] = max(found["top_k"], 0)  # llama.cpp: all tokens
    for key, name in SAMPLING_NAMES.items():
        value = found.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ModelLoadError(f"the field {SAMPLING}{key} must be a number, got {value!r:.80}")
        try:
            check_range(name, value, f"the field {SAMPLING}{key}")
        except ParameterError as error:
            raise ModelLoadError(str(error)) from error
    settings = {**json.loads(path.read_text()), "do_sample": True, **found}
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def convert_file(source: Path, folder: Path, dtype: str, weights: str) -> None:
    """Write a file's folder.

    Raises:
        ModelLoadError: the file is damaged, or something in it is not supported.
    """
    from tailrace.models.gguf_architectures import read_settings

    check_layout(source)
    check_transformers()
    fields = Fields(source)
    read_settings(fields)  # what is refused is refused before the tokenizer, which adapters lack
    send_line("stage", "reading the tokenizer")
    convert_tokenizer(fields, folder)
    fields.refuse_unread()
    send_line("stage", f"dequantizing to {dtype}")
    convert_weights(fields, folder, dtype, weights == "quantized")


def main(arguments: list[str]) -> int:
    """Exit code 0, or 1 after a line "error: …"."""
    source, folder, dtype, weights = Path(arguments[0]), Path(arguments[1]), arguments[2], arguments[3]
    return run_work(lambda: convert_file(source, folder, dtype, weights))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
