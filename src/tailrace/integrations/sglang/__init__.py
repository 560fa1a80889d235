"""tailrace as a sampling backend of SGLang: `--sampling-backend tailrace`.

SGLang calls `register` in each of its processes (entry point of the group sglang.srt.plugins).
"""

from __future__ import annotations


def register() -> None:
    """Register the backend's name. The sampler is imported only when a server asks for it."""
    from sglang.srt.layers.sampler import register_sampler_backend

    def make_sampler() -> object:
        from tailrace.integrations.sglang.sampler import SglangSampler

        return SglangSampler()

    register_sampler_backend("tailrace", make_sampler)
