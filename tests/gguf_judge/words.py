"""llama.cpp's token ids: `python words.py TEXTS.json FILE…`, in an environment with llama-cpp-python. Prints a JSON
object of lists by file; null for a file that llama.cpp refuses.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llama_cpp import Llama

texts, *files = sys.argv[1:]
found: dict[str, list[list[int]] | None] = {}
for file in files:
    try:
        model = Llama(file, vocab_only=True, verbose=False)
        said = json.loads(Path(texts).read_text())
        found[file] = [model.tokenize(text.encode(), add_bos=True, special=True) for text in said]
        model.close()
    except ValueError:
        found[file] = None
print(json.dumps(found))
