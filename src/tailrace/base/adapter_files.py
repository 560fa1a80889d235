"""The names of the files of a LoRA adapter, in PEFT's format."""

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
