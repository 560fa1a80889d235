"""Write a folder of random weights that `--model` takes, for machines without a real model.

    python -m bench.random_model FOLDER --tokenizer FOLDER_OF_THE_DEFAULT_MODEL

Llama's architecture, by default with the sizes of a 1B model and a vocabulary of 128,256. Its text is nonsense, but its
logits have a realistic spread, so that few tokens have most of the mass: flat rows would be another problem for a
sampler.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import torch

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The model's sizes."""
    parser = argparse.ArgumentParser(prog="python -m bench.random_model", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--vocab", type=int, default=128_256, help="no less than the tokenizer's")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--spread", type=float, default=6.0, help="standard deviation of the logits")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Write the model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    args = arguments(argv)
    config = LlamaConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        intermediate_size=args.inner,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        max_position_embeddings=args.positions,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = LlamaForCausalLM(config).bfloat16()
    # the output of the last norm has a mean square of one
    torch.nn.init.normal_(model.lm_head.weight, std=args.spread / args.hidden**0.5)
    model.save_pretrained(args.folder)
    for name in TOKENIZER_FILES:
        if (args.tokenizer / name).is_file():
            shutil.copy(args.tokenizer / name, args.folder / name)
    print(f"{sum(p.numel() for p in model.parameters()):,} random weights in {args.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
