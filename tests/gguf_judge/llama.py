"""llama.cpp's logits: `python llama.py IDS.npy FILE…`, in an environment with llama-cpp-python. Those of a file are
written to FILE.npy; what llama.cpp says of one that it refuses is printed.
"""

from __future__ import annotations

import sys

import numpy as np
from llama_cpp import Llama

ids, *files = sys.argv[1:]
tokens = np.load(ids).tolist()
for file in files:
    try:
        model = Llama(file, n_ctx=8192, n_batch=512, logits_all=True, verbose=False, n_threads=2, type_k=0, type_v=0)
        model.eval(tokens)
        np.save(f"{file}.npy", model.scores[: len(tokens)])
        model.close()
    except Exception as error:
        print(f"{file}: {type(error).__name__}: {error}", flush=True)
