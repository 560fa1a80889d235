"""Which model names a server answers to. One model is loaded; asking for another is an error, never a silent swap."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.errors import ModelNotFoundError
from tailrace.wire.messages import ModelInfo


class Registry:
    """The models being served, by the name clients use."""

    def __init__(self, first: ModelInfo, *others: ModelInfo) -> None:
        self._models = {model.name: model for model in (first, *others)}

    def __iter__(self) -> Iterator[ModelInfo]:
        return iter(self._models.values())

    def find(self, name: str | None) -> ModelInfo:
        """The model of that name; None finds the first.

        Raises:
            ModelNotFoundError: naming what is loaded.
        """
        if name is None:
            return next(iter(self))
        if name not in self._models:
            raise ModelNotFoundError(f"The model '{name}' does not exist; there is {', '.join(self._models)}", "model")
        return self._models[name]
