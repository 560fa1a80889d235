"""A small random Llama for the tests of transformers' paths."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def make_llama(vocab_size: int, eos_token_id: int, pad_token_id: int = 0) -> LlamaForCausalLM:
    """Return a random model, so wide that its logits are not flat. It is in float64, so that a row's logits are the
    same in any batch once they are float32."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.6,
        eos_token_id=eos_token_id,
        bos_token_id=1,
        pad_token_id=pad_token_id,
    )
    return LlamaForCausalLM(config).double().eval()
