"""A model's name → a folder on disk, and what a front end must know of it. Imports no torch.

`resolve` finds, downloads and (for a GGUF file) converts a model. `describe` and `choose_sampling_defaults` read the
folder's JSON files. footprint.py computes how much memory a model takes. Runners load the weights.
"""

from tailrace.base.extras import require_extra

with require_extra("serve"):
    from tailrace.models.default import DEFAULT_NAME
    from tailrace.models.describe import describe
    from tailrace.models.local import LocalModel, check_folder
    from tailrace.models.resolve import resolve
    from tailrace.models.sampling_defaults import choose_sampling_defaults

__all__ = ["DEFAULT_NAME", "LocalModel", "check_folder", "choose_sampling_defaults", "describe", "resolve"]
