"""vLLM in a process of its own: a tiny model of random weights, and scripts that print a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIMIT_S = 900  # a start takes half a minute on an idle machine; tests do not depend on speed
VOCAB = 509  # vLLM's embeddings have 512 rows: a draft may be an id without a logit
SIZES = {"vocab": VOCAB, "layers": 2, "hidden": 64, "inner": 128, "heads": 2, "kv-heads": 2, "spread": 3}


def make_model(folder: Path, tokenizer: Path | None = None) -> Path:
    """Write the model. tokenizer: a folder with one, if the model needs one."""
    sizes = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]
    words = [str(folder.resolve()), "--tokenizer", str((tokenizer or folder).resolve()), *sizes]
    subprocess.run([sys.executable, "-m", "bench.random_model", *words], cwd=HERE.parents[1], check=True)
    return folder


def make_tokenizer(folder: Path) -> Path:
    """Write a tokenizer with a token for each byte, and others that no text has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, *(f"<filler {i}>" for i in range(VOCAB - len(letters) - 1)), "<end>"]
    tokenizer = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    return folder


def start(script: str, model: Path, mode: str, **env: str) -> dict[str, Any]:
    """What the script prints, and its log."""
    command = [sys.executable, str(HERE / script), str(model), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=os.environ | env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT ")) | {"log": done.stdout + done.stderr}
