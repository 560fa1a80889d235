"""GGUF files as llama.cpp's own converter writes them, converted here and compared with the original folder in
transformers and with the file in llama.cpp: `make test-gguf`.
"""
