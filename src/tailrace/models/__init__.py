"""A model's name → a folder on disk, and what a front end must know of it. Imports no torch.

`resolve` finds, fetches and, for a GGUF file, converts; `describe` and `defaults` read the folder's JSON files, footprint.py how much
memory it takes. Loading the weights is the runner's business.
"""

from tailrace.extras import needs

with needs("serve"):
    from tailrace.models.default import DEFAULT_NAME
    from tailrace.models.describe import defaults, describe
    from tailrace.models.local import LocalModel, check_folder
    from tailrace.models.resolve import resolve

__all__ = ["DEFAULT_NAME", "LocalModel", "check_folder", "defaults", "describe", "resolve"]
