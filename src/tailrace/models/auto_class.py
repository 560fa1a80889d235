"""A folder's configuration as transformers has it, and the class that makes the model. Both functions import
transformers when they are called.

Many checkpoints that also see have no causal class there, such as Mistral Small 3.2, Qwen3-VL, GLM-4.6V and Kimi K2.5:
transformers lists them as image-text-to-text models alone. Without images they are causal models of text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.base.extras import require_extra
from tailrace.base.process_limits import SETTINGS_BYTES, limit_growth


def load_auto_config(folder: Path, trust_remote_code: bool) -> Any:
    """Return a folder's configuration, made with bounded memory: some settings are numbers of objects to be made.

    Raises:
        MemoryError: a setting takes too much. Whatever transformers and a model's code raise.
    """
    with require_extra("serve"):
        from transformers import AutoConfig

    with limit_growth(SETTINGS_BYTES):
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)


def find_auto_class(config: Any) -> Any:
    """Return the auto class of transformers for a config: AutoModelForCausalLM, or AutoModelForImageTextToText if
    transformers and the folder's own code know no causal class.

    Args:
        config: a PreTrainedConfig.

    Example:
        >>> find_auto_class(CONFIG_MAPPING["mistral3"]()).__name__  # doctest: +SKIP
        'AutoModelForImageTextToText'
    """
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
    )

    own = AutoModelForCausalLM.__name__ in (getattr(config, "auto_map", None) or {})
    causal = own or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    seeing = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if seeing and not causal else AutoModelForCausalLM
