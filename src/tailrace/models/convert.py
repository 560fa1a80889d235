"""The conversion of a GGUF file, run as a program: `python -m tailrace.models.convert FILE.gguf FOLDER DTYPE
WEIGHTS`. WEIGHTS: dequantized, or quantized: matrices stay in their blocks (convert_quantized.py).

Imports torch and transformers, so no module of tailrace imports it; child.py is how it reports.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tailrace.errors import ModelLoadError
from tailrace.models.child import check_transformers, not_all_there, run_work, say
from tailrace.models.gguf_layout import check_layout

END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def read_metadata(source: Path) -> dict[str, Any]:
    """The few fields of the GGUF file that transformers drops."""
    from gguf import GGUFReader

    fields = GGUFReader(source).fields
    keys = ("tokenizer.ggml.pre", "tokenizer.ggml.model", *END_KEYS)
    return {key: fields[key].contents() for key in keys if key in fields}


def convert_tokenizer(source: Path, folder: Path, metadata: dict[str, Any]) -> None:
    """Write the tokenizer, split as the file says it must be."""
    from transformers import AutoTokenizer
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    from tailrace.models.pretokenizer import GPT2, missing_split

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    name = metadata.get("tokenizer.ggml.pre")
    split = missing_split(name)
    if split is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = split
    elif metadata.get("tokenizer.ggml.model") == "gpt2" and name not in GGUF_PRE_TOKENIZER_SPLITS and name not in GPT2:
        say("warning", f"the pre-tokenizer {name!r} is not known; GPT-2's is used, so some text may encode differently")
    tokenizer.save_pretrained(folder)


def convert_weights(source: Path, folder: Path, dtype: str, metadata: dict[str, Any], keep: bool) -> None:
    """Write the weights, config.json, and generation_config.json with every id that ends a text. keep: blocks."""
    import torch

    from tailrace.models.gguf_parts import convert_in_parts

    model = convert_in_parts(source, folder, getattr(torch, dtype), keep)
    if model is not None:
        model.config.architectures, model.config.dtype = [type(model).__name__], model.dtype
        model.config.save_pretrained(folder)
        add_ends(model.generation_config, metadata)
        model.generation_config.save_pretrained(folder)
        return
    model = whole_model(source, dtype)
    add_ends(model.generation_config, metadata)
    if keep:
        from tailrace.models.convert_quantized import keep_blocks

        keep_blocks(model, source)
    say("stage", "writing")
    model.save_pretrained(folder)


def whole_model(source: Path, dtype: str) -> Any:
    """The model as transformers makes it, all of it in memory.

    Raises:
        ModelLoadError: tensors are missing.
    """
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=getattr(torch, dtype),
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
    )
    model, report = loaded
    if missing := sorted(report["missing_keys"]):  # transformers makes them up at random
        raise ModelLoadError(not_all_there(missing))
    return model


def add_ends(generation_config: Any, metadata: dict[str, Any]) -> None:
    """Every id that ends a text, where the file names several."""
    ends = sorted({metadata[key] for key in END_KEYS if key in metadata})
    if len(ends) > 1 and generation_config is not None:
        generation_config.eos_token_id = ends


def main(arguments: list[str]) -> int:
    """Exit code 0, or 1 after a line "error: …"."""
    source, folder, dtype, weights = Path(arguments[0]), Path(arguments[1]), arguments[2], arguments[3]

    def work() -> None:
        check_layout(source)
        check_transformers()
        say("stage", "reading the tokenizer")
        metadata = read_metadata(source)
        convert_tokenizer(source, folder, metadata)
        say("stage", f"dequantising to {dtype}")
        convert_weights(source, folder, dtype, metadata, weights == "quantized")

    return run_work(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
