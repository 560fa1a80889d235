"""The conversion of a GGUF file, run as a program: `python -m tailrace.models.convert FILE.gguf FOLDER DTYPE
WEIGHTS`. WEIGHTS: dequantized, or quantized: matrices stay in their blocks (convert_quantized.py).

Imports torch and transformers, so no module of tailrace imports it. Reports on stderr: "stage: …", "warning: …", tqdm's
lines, and "error: …" before exit code 1. Ends when its stdin closes, because its parent is gone then.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def say(kind: str, text: str) -> None:
    """One line for the parent."""
    print(f"{kind}: {text}", file=sys.stderr, flush=True)


def end_with_parent() -> None:
    """End this process when its parent has ended."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def read_metadata(source: Path) -> dict[str, Any]:
    """The few fields of the GGUF file that transformers drops."""
    from gguf import GGUFReader

    fields = GGUFReader(source).fields
    keys = ("tokenizer.ggml.pre", "tokenizer.ggml.model", *END_KEYS)
    return {key: fields[key].contents() for key in keys if key in fields}


def check_transformers() -> None:
    """Raise ImportError unless transformers splits text and keeps added tokens as GGUF files say, as it does from 5.20
    on. Older versions silently encode text differently with many vocabularies."""
    import transformers

    if not hasattr(transformers, "GgufConfig"):
        raise ImportError(
            f"GGUF files need transformers >= 5.20, and {transformers.__version__} is installed: upgrade it, or name a "
            "model in Hugging Face's format"
        )


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
    from transformers import AutoModelForCausalLM, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=getattr(torch, dtype),
        quantization_config=GgufConfig(dequantize=True),
    )
    ends = sorted({metadata[key] for key in END_KEYS if key in metadata})
    if len(ends) > 1 and model.generation_config is not None:
        model.generation_config.eos_token_id = ends
    if keep:
        from tailrace.models.convert_quantized import keep_blocks

        keep_blocks(model, source, say)
    say("stage", "writing")
    model.save_pretrained(folder)


def main(arguments: list[str]) -> int:
    """Exit code 0, or 1 after a line "error: …"."""
    source, folder, dtype, weights = Path(arguments[0]), Path(arguments[1]), arguments[2], arguments[3]
    end_with_parent()
    try:
        check_transformers()
        say("stage", "reading the tokenizer")
        metadata = read_metadata(source)
        convert_tokenizer(source, folder, metadata)
        say("stage", f"dequantising to {dtype}")
        convert_weights(source, folder, dtype, metadata, weights == "quantized")
    except Exception as error:  # the parent must be able to quote any error
        first = (str(error).strip().splitlines() or ["no reason given"])[0]
        say("error", f"{type(error).__name__}: {first}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
