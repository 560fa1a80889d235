"""Runs llama.cpp's converter on tiny folders: `python converter.py SOURCE TYPE FOLDER…`. SOURCE: llama.cpp's tree. A
folder's file is FOLDER.TYPE.gguf; what the converter says of one that it refuses is printed, and the file is missing.

The converter knows vocabularies by a hash of what they encode; a tiny one has none, so it is told.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

source, kind, *folders = sys.argv[1:]
sys.path.insert(0, str(Path(source) / "gguf-py"))
sys.path.insert(0, source)

import conversion  # noqa: E402
from conversion import base, llama  # noqa: E402


def load_config(folder, is_mistral_format):
    """Return config.json as it is: transformers' own classes rename what published checkpoints have."""
    return json.loads((folder / "config.json").read_text())


base.ModelBase.load_hparams = staticmethod(load_config)
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"
real = conversion.get_model_class


def with_vocabulary(*given, **named):
    """The converter's class, with the vocabulary as it is in tokenizer.json."""
    found = real(*given, **named)
    found.no_mtp = True  # tiny models have no layers that predict further tokens
    for one in (found, llama.LlamaModel):  # some classes hand all over to a class of Llama's
        one.set_vocab = lambda self: self._set_vocab_gpt2()
    return found


conversion.get_model_class = with_vocabulary
for folder in folders:
    sys.argv = ["convert", folder, "--outfile", f"{folder}.{kind}.gguf", "--outtype", kind]
    try:
        runpy.run_path(str(Path(source) / "convert_hf_to_gguf.py"), run_name="__main__")
    except (Exception, SystemExit) as error:
        if not isinstance(error, SystemExit) or error.code:
            print(f"{folder}: {type(error).__name__}: {error}", flush=True)
