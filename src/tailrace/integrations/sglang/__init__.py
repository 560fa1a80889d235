"""tailrace as a sampling backend of SGLang: `--sampling-backend tailrace`.

SGLang calls `register` in each of its processes (entry point of the group sglang.srt.plugins).
"""

from __future__ import annotations


def register() -> None:
    """Register the backend's name and the hooks of a server's start; called again it does nothing. The sampler is
    imported only when a server asks for it."""
    from sglang.srt.layers import sampler

    if "tailrace" in sampler._CUSTOM_SAMPLER_FACTORIES:
        return
    from tailrace.integrations.sglang.hooks import install_start_hooks

    sampler.register_sampler_backend("tailrace", make_sampler)
    install_start_hooks()


def make_sampler() -> object:
    """Return a sampler, with the hooks that it needs in this process."""
    from sglang.srt.runtime_context import get_spec

    from tailrace.integrations.sglang import hooks
    from tailrace.integrations.sglang.sampler import SglangSampler

    hooks.install_sampling_hooks()
    if get_spec().speculative_algorithm is not None:
        hooks.install_verification_hooks()
    return SglangSampler()
