"""A quantization method of transformers that loads weights in blocks. Importing this module registers the method."""

from __future__ import annotations

from typing import Any

from tailrace.base.extras import require_extra
from tailrace.models.tensors import BLOCKS_METHOD
from tailrace.runners.quantized import pack_all, swap_modules

with require_extra("serve"):
    from transformers.quantizers.auto import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin


@register_quantization_config(BLOCKS_METHOD)
class BlocksConfig(QuantizationConfigMixin):
    """types: name of a weight → GGUF's number of its blocks' type. shapes: name → shape of the raw blocks."""

    def __init__(self, types: dict[str, int], shapes: dict[str, list[int]], **_: Any) -> None:
        self.quant_method: Any = BLOCKS_METHOD
        self.types, self.shapes = types, shapes


@register_quantizer(BLOCKS_METHOD)
class BlocksQuantizer(HfQuantizer):
    """Loader of a model with weights in blocks: replaces its modules, then packs their blocks."""

    requires_calibration = False
    quantization_config: Any

    @property
    def is_trainable(self) -> Any:
        return False

    def is_serializable(self) -> Any:
        return False

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        return False

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        self.types, shapes = dict(self.quantization_config.types), dict(self.quantization_config.shapes)
        if getattr(model.config, "tie_word_embeddings", False):  # as transformers ties: the whole model's setting
            for target, source in (model._tied_weights_keys or {}).items():
                if source in self.types:
                    self.types[target], shapes[target] = self.types[source], shapes[source]
        self.modules = swap_modules(model, shapes, model.dtype)

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        pack_all(model, self.modules, self.types)
        del self.modules  # the model keeps its quantizer, and modules that are replaced later must go
        return model
