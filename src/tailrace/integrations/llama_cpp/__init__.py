"""tailrace in llama-cpp-python: a logits processor that draws the tokens."""

from tailrace.integrations.llama_cpp.processor import TailraceLlamaProcessor

__all__ = ["TailraceLlamaProcessor"]
