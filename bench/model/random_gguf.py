"""Write a GGUF file of random weights, for models larger than those that a package brings.

    python -m bench.random_gguf FILE.gguf --like DEFAULT_MODEL.gguf --size 1b --type Q4_0

Llama's architecture; the tokenizer is the other file's. The blocks are random, so gigabytes take seconds. Its
text is nonsense; memory and speed are those of any model of these shapes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

KIND = GGMLQuantizationType


class Shape(NamedTuple):
    """layers, hidden, inner: of the model; heads, kv_heads: of its attention."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int


# as of Llama 3.2 1B and 3B, and Llama 2 7B
SIZES = {
    "1b": Shape(16, 2048, 8192, 32, 8),
    "3b": Shape(28, 3072, 8192, 24, 8),
    "7b": Shape(32, 4096, 11008, 32, 32),
}
# a block's factors of float16: where they are, and how large for values with a standard deviation of 1
FACTORS = {KIND.Q4_0: ((0, 1 / 4.6),), KIND.Q8_0: ((0, 1 / 74),), KIND.Q4_K: ((0, 1 / 143), (2, 7.5 / 143))}
ROWS = 4096  # of a matrix, at a time


def blocks(kind: GGMLQuantizationType, rows: int, width: int, random: np.random.Generator) -> Iterator[np.ndarray]:
    """A matrix of values with a standard deviation of about 1 / √width, uint8 [some rows, bytes of a row]."""
    entries, size = GGML_QUANT_SIZES[kind]
    for first in range(0, rows, ROWS):
        count = min(ROWS, rows - first)
        raw = random.integers(0, 256, (count, width // entries, size), np.uint8)
        for at, factor in FACTORS[kind]:
            raw[:, :, at : at + 2] = np.full((1,), factor / width**0.5, np.float16).view(np.uint8)
        yield raw.reshape(count, -1)


def tensors(shape: Shape, vocab: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes; vectors are norms."""
    keys = shape.hidden // shape.heads * shape.kv_heads
    yield "token_embd.weight", (vocab, shape.hidden)
    for layer in range(shape.layers):
        for name, rows, width in (
            ("attn_q", shape.hidden, shape.hidden),
            ("attn_k", keys, shape.hidden),
            ("attn_v", keys, shape.hidden),
            ("attn_output", shape.hidden, shape.hidden),
            ("ffn_gate", shape.inner, shape.hidden),
            ("ffn_up", shape.inner, shape.hidden),
            ("ffn_down", shape.hidden, shape.inner),
        ):
            yield f"blk.{layer}.{name}.weight", (rows, width)
        yield f"blk.{layer}.attn_norm.weight", (shape.hidden,)
        yield f"blk.{layer}.ffn_norm.weight", (shape.hidden,)
    yield "output_norm.weight", (shape.hidden,)
    yield "output.weight", (vocab, shape.hidden)


def copy_tokenizer(writer: GGUFWriter, like: GGUFReader) -> int:
    """The other file's fields of the tokenizer → the number of its tokens."""
    for name, field in like.fields.items():
        if name.startswith("tokenizer."):
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    return len(like.fields["tokenizer.ggml.tokens"].data)


def write(path: Path, like: Path, shape: Shape, kind: GGMLQuantizationType) -> None:
    """The file, a piece of a matrix at a time."""
    writer = GGUFWriter(path, "llama")
    vocab = copy_tokenizer(writer, GGUFReader(like))
    writer.add_vocab_size(vocab)
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    made = list(tensors(shape, vocab))
    entries, size = GGML_QUANT_SIZES[kind]
    for name, dimensions in made:
        if len(dimensions) == 1:
            writer.add_tensor_info(name, dimensions, np.dtype(np.float32), 4 * dimensions[0])
        else:
            row = dimensions[1] // entries * size
            writer.add_tensor_info(name, (dimensions[0], row), np.dtype(np.uint8), dimensions[0] * row, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(0)
    with path.open("ab") as file:
        for _, dimensions in made:
            file.write(b"\0" * (-file.tell() % 32))
            if len(dimensions) == 1:
                file.write(np.ones(dimensions, np.float32).tobytes())
            else:
                for piece in blocks(kind, dimensions[0], dimensions[1], random):
                    file.write(piece.data)
        file.write(b"\0" * (-file.tell() % 32))
    writer.close()


def main(argv: list[str] | None = None) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.random_gguf", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--like", type=Path, required=True, help="a GGUF file, whose tokenizer is taken")
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--type", choices=[kind.name for kind in FACTORS], default="Q4_0")
    args = parser.parse_args(argv)
    write(args.file, args.like, SIZES[args.size], KIND[args.type])
    print(f"{args.file.stat().st_size / 2**30:.2f} GiB in {args.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
