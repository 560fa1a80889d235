"""Quantizes files as llama.cpp does: `python quantize.py SOURCE FILE TYPE…`, in an environment with llama-cpp-python. A
type's file is FILE.TYPE.gguf. SOURCE: llama.cpp's tree. All inputs are equally important.
"""

from __future__ import annotations

import ctypes
import os
import sys

import llama_cpp

source, file, *kinds = sys.argv[1:]
sys.path.insert(0, f"{source}/gguf-py")
from gguf import GGUFReader  # noqa: E402

Importance = llama_cpp.llama_model_imatrix_data
tensors = [tensor for tensor in GGUFReader(file).tensors if len(tensor.shape) > 1]
importance = (Importance * (len(tensors) + 1))()  # a last one without a name ends the list
for entry, tensor in zip(importance, tensors, strict=False):
    size = int(tensor.shape[0]) * int(tensor.shape[2] if len(tensor.shape) > 2 else 1)
    entry.name, entry.size = tensor.name.encode(), size
    entry.data = ctypes.cast((ctypes.c_float * size)(*[1.0] * size), ctypes.POINTER(ctypes.c_float))
for kind in kinds:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}"), os.cpu_count() or 1
    params.imatrix = ctypes.cast(importance, ctypes.POINTER(Importance))
    if llama_cpp.llama_model_quantize(file.encode(), f"{file}.{kind}.gguf".encode(), ctypes.byref(params)):
        print(f"{file}: llama.cpp does not make it {kind}", flush=True)
