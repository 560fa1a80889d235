"""tailrace: from a model's logits to streamed text."""

__version__ = "0.1.0"
