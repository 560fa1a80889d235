"""The process that turns a GGUF file into a folder: `python -m tailrace.models.dequantise '{"file": …, "folder": …}'`.

Started by models/gguf.py. Prints one line on stdout if it fails.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

def main() -> None:
    task = json.loads(sys.argv[1])
    file, folder = Path(task["file"]), Path(task["folder"])
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    if not task["progress"]:
        logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=getattr(torch, task["dtype"]), quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(1)
