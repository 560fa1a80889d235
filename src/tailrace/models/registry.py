"""Which models are served, by name."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.errors import ModelNotFoundError
from tailrace.wire.messages import ModelInfo


class Registry:
    """Names → models. One today; the first is what a request without a name gets."""

    def __init__(self, *models: ModelInfo) -> None:
        self._models = {model.name: model for model in models}

    def __iter__(self) -> Iterator[ModelInfo]:
        return iter(self._models.values())

    def find(self, name: str | None) -> ModelInfo:
        """The model of that name; None finds the first.

        Raises:
            ModelNotFoundError: naming what there is.
        """
        if name is None:
            return next(iter(self))
        model = self._models.get(name)
        if model is None:
            raise ModelNotFoundError(f"The model '{name}' does not exist; there is {', '.join(self._models)}", "model")
        return model
