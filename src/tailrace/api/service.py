"""What every endpoint works with: the engine's client, the tokenizer, the settings. Frozen; made once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from tailrace.api.metrics import Metrics
from tailrace.config import ServerConfig
from tailrace.errors import ContextLengthError, ModelNotFoundError, ParameterError
from tailrace.params import SamplingParams
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import ModelInfo


@dataclass(frozen=True)
class Service:
    """client: a wire AsyncClient. model_name: what requests may name. defaults: sampling fields of the model's generation config."""

    client: Any
    tokenizer: Tokenizer
    model_name: str
    config: ServerConfig = ServerConfig()
    defaults: dict[str, float | int] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)

    @staticmethod
    def of(request: Request) -> Service:
        """The one of the app that got this request."""
        return request.app.state.service

    @property
    def model(self) -> ModelInfo:
        """What the engine serves.

        Raises:
            EngineDeadError: it is dead or not up yet.
        """
        if self.client.error is not None:
            raise self.client.error
        return self.client.model

    def check_name(self, name: str | None) -> None:
        """Raise ModelNotFoundError unless it is the served model's, or None."""
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(f"The model '{name}' does not exist; this server has '{self.model_name}'", "model")

    def check_fit(self, prompt: list[int], params: SamplingParams, field: str) -> None:
        """Raise the 400 that says what does not fit the context.

        Raises:
            ContextLengthError: the prompt. ParameterError: max_tokens on top of it, or a token id.
        """
        longest = self.model.max_model_len
        if len(prompt) >= longest:
            raise ContextLengthError(
                f"This model's context has {longest} tokens; the prompt has {len(prompt)}, and at least one must be left",
                field,
            )
        if params.max_tokens is not None and len(prompt) + params.max_tokens > longest:
            raise ParameterError(
                f"max_tokens must be at most {longest - len(prompt)} (context {longest} less prompt {len(prompt)}), "
                f"got {params.max_tokens}",
                "max_tokens",
            )
        params.check_vocab(self.model.vocab_size)
