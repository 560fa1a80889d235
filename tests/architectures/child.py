"""What a child of __main__ does: builds one tiny checkpoint and judges it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING

from architectures import judge as judging
from architectures.judge import Outcome, judge, line, quiet
from architectures.tiny import tiny_config, write
from architectures.variants import UNMADE
from tailrace.runners.load_checks import NOT_CAUSAL


def judged(model_type: str, own: dict[str, Any], made: Callable[[], None] = lambda: None) -> Outcome:
    """Build the checkpoint and judge it. made: called in between."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "checkpoint"
        try:
            write(model_type, own, folder)
        except Exception as error:
            if model_type in UNMADE:
                return Outcome("unmade", UNMADE[model_type])
            if CONFIG_MAPPING[model_type]().is_encoder_decoder:
                return Outcome("refused", f"{model_type} {NOT_CAUSAL}")
            return Outcome("unmade", line(error))
        return replace(judge(folder, made), layers=name_layers(tiny_config(model_type, own)))


def name_layers(config: Any) -> str:
    """The kinds of the layers, each once; "" if the config names none."""
    kinds = getattr(config.get_text_config(), "layer_types", None) or ()
    return ", ".join(dict.fromkeys(kind.replace("_", " ") for kind in kinds))


def work(theirs: Connection, model_type: str, own: dict[str, Any], new: int, device: str) -> None:
    """A child's: judge one."""
    judging.NEW, judging.DEVICE = new, device
    torch.set_num_threads(1)
    quiet()
    theirs.send(judged(model_type, own, lambda: theirs.send("made")))
