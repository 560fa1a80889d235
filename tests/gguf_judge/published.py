"""`python -m gguf_judge.published SOURCE PYTHON [name…]`: tiny files of the most downloaded architectures, and of
those with states or indexers, as llama.cpp quantizes them. The greedy tokens behind a prompt are compared: those of
transformers on the original folder with the rounded weights, of llama.cpp on the file, and of tailrace on both ways of
conversion. SOURCE and PYTHON: as of `python -m gguf_judge`.

Which entry of a tensor belongs to which entry of a weight is found with the converter itself: it converts a second
folder, whose weights are numbered, from 1 on in each layer.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize

from gguf_judge.__main__ import logits_here, run
from gguf_judge.hybrids import HYBRIDS, publish_folder
from gguf_judge.models import MODELS, VOCAB, make_folder

HERE = Path(__file__).parent
POPULAR = (
    *("llama llama3", "mistral", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "gpt-oss", "granite"),
    *("deepseek2 lite", "deepseek2 v3", "glm4", "glm4moe", "qwen35", "qwen35moe", "lfm2", "lfm2moe", "mixtral"),
)
JUDGED = (*POPULAR, "granitehybrid")
# judged only where they are named: their files were made, and not compared yet
FURTHER = (
    *("granitehybrid dense", "mamba", "falcon mamba", "mamba2", "jamba", "falcon-h1", "nemotron_h", "nemotron_h_moe"),
    *("kimi-linear", "deepseek32", "glm-dsa"),
)
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512}  # rows of whole blocks
NARROW: dict[str, Any] = {
    **dict.fromkeys(("moe_intermediate_size", "kv_lora_rank", "q_lora_rank", "shared_expert_intermediate_size"), 256),
    **dict.fromkeys(("shared_intermediate_size", "moe_shared_expert_intermediate_size"), 256),
    "linear_head_dim": 64,
    "mamba_num_heads": 16,
    "mamba_head_dim": 32,
}
# state-space layers of 512 rows; factors of Falcon H1, which the converter multiplies weights by, of 1
OWN: dict[str, dict[str, Any]] = {
    "granitehybrid": {"mamba_n_heads": 16},
    "granitehybrid dense": {"mamba_n_heads": 16},
    "mamba2": {"num_heads": 16},
    "falcon-h1": {
        "head_dim": 64,
        **dict.fromkeys((name for name in HYBRIDS["falcon-h1"][1] if name.endswith("_multiplier")), 1.0),
        "mlp_multipliers": [1.0] * 2,
        "ssm_multipliers": [1.0] * 5,
    },
}
PADDED = {"vocab_size": VOCAB + 12}  # rows of the embedding without a token
TYPES = (
    *("Q4_K_M", "IQ4_XS", "Q6_K", "IQ3_XXS", "Q5_K_M", "IQ2_XXS", "Q3_K_M", "IQ4_NL", "Q2_K", "IQ3_S", "Q8_0"),
    *("IQ1_S", "Q4_K_S", "IQ2_S", "Q4_0", "IQ1_M", "Q5_1", "IQ2_XS", "MXFP4_MOE"),
    *("BF16", "TQ1_0", "Q4_1", "TQ2_0", "Q5_0", "F16"),
)
EACH = 3  # types of a model's files
LAYER = re.compile(r"\.(\d+)\.")
PROMPT, STEPS = np.random.default_rng(1).integers(0, VOCAB - 3, 60), 24
SAME = 1e-3  # of logits
ROUNDED = 0.08  # of a logit's standard deviation: both kinds of kernels round inputs to eight bits
FEW = 8  # of STEPS: rounded inputs turn near ties of routers (6 in both programs); wrong rows change nearly all tokens


def settings_of(name: str) -> dict[str, Any]:
    """Return the settings of a model whose rows are whole blocks. Every second vocabulary is padded."""
    given = MODELS[name][1]
    padded = PADDED if list(MODELS).index(name) % 2 and name != "gemma3" else {}  # gemma3's converter cuts these rows
    return WIDE | padded | {key: value for key, value in NARROW.items() if given.get(key)} | OWN.get(name, {})


def layer_of(name: str) -> str:
    """Return the number of a weight's layer, or of a tensor's; "" if it is in none."""
    found = LAYER.search(name)
    return found[1] if found else ""


def number_weights(model: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Write a folder whose matrices' entries are numbers. Return the numbers of each matrix."""
    first, numbers = Counter[str](), {}
    for name, value in model.state_dict().items():
        if value.dim() > 1:
            start = first[layer_of(name)] + 1
            numbers[name] = torch.arange(start, start + value.numel(), dtype=torch.float64).reshape(value.shape)
            first[layer_of(name)] += value.numel()
    assert max(first.values()) < 1 << 24, "float32 has no further whole numbers"
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict({**kept, **{name: value.float() for name, value in numbers.items()}})
    model.save_pretrained(folder)
    publish_folder(folder)
    model.load_state_dict(kept)
    return numbers


def round_weights(model: Any, numbers: dict[str, torch.Tensor], numbered: Path, file: Path) -> int:
    """Give a model the rounded weights of a file. Return how many tensors are in blocks."""
    places = {tensor.name: np.asarray(tensor.data).reshape(-1) for tensor in GGUFReader(numbered).tensors}
    last = max(int(value.max()) for value in numbers.values())
    layers: dict[str, np.ndarray] = defaultdict(lambda: np.full(last + 1, np.nan, np.float32))
    found = 0
    for tensor in GGUFReader(file).tensors:
        if tensor.data.dtype != np.float32:
            place = places[tensor.name].astype(np.int64)
            assert (place == places[tensor.name]).all(), tensor.name
            layers[layer_of(tensor.name)][place] = dequantize(tensor.data, tensor.tensor_type).reshape(-1)
            found += 1
    state = model.state_dict()
    for name, value in numbers.items():
        rounded = torch.from_numpy(layers[layer_of(name)][value.numpy().astype(np.int64)])
        known = ~rounded.isnan()
        state[name][known] = rounded[known]
    return found


def follow(model: Any) -> tuple[np.ndarray, torch.Tensor]:
    """Return the prompt with the greedy tokens of transformers behind it, and the logits that they were chosen by."""
    ids = PROMPT.tolist()
    with torch.no_grad():
        for _ in range(STEPS):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1, : VOCAB - 3].argmax()))
        logits = model(torch.tensor([ids])).logits[0]
    return np.array(ids), logits[len(PROMPT) - 1 : -1, : VOCAB - 3]


def count_others(found: torch.Tensor, wanted: torch.Tensor, near: float) -> int:
    """Return how many tokens another model chooses, though the difference is no near tie."""
    chosen = found[len(PROMPT) - 1 : -1, : VOCAB - 3].argmax(-1)
    lost = wanted.amax(-1) - wanted.gather(-1, chosen[:, None])[:, 0]
    return int((lost > near).sum())


def judge(file: Path, model: Any, ids: Path, python: str) -> list[str]:
    """Return what chooses other tokens than transformers."""
    sequence, wanted = follow(model)
    near = ROUNDED * float(wanted.std())
    np.save(ids, sequence)
    run(python, str(HERE / "greedy.py"), str(ids), "0", str(file))
    outcome, wrong = Path(f"{file}.npz"), []
    if not outcome.exists():
        wrong.append("llama.cpp does not run it")
    elif (others := count_others(torch.from_numpy(np.load(outcome)["logits"]), wanted, near)) > FEW:
        wrong.append(f"llama.cpp: {others} of {STEPS} tokens differ")
    for weights, limit, most in (("dequantized", SAME, 0), ("quantized", near, FEW)):
        try:
            others = count_others(logits_here(file, weights, sequence), wanted, limit)
        except Exception as failure:  # whatever stands in the way is the outcome
            wrong.append(f"tailrace, {weights}: {type(failure).__name__}: {failure!s:.200}")
        else:
            wrong += [f"tailrace, {weights}: {others} of {STEPS} tokens differ"] if others > most else []
    return wrong


def judge_model(number: int, name: str, work: Path, source: str, python: str) -> list[str]:
    """Return what is wrong with a model's files."""
    folder, numbered = work / "plain", work / "numbered"
    model = make_folder(name, folder, settings_of(name))
    shutil.copytree(folder, numbered)
    numbers = number_weights(model, numbered)
    run(python, str(HERE / "converter.py"), source, "f32", str(folder), str(numbered))
    kinds = [TYPES[(EACH * number + each) % len(TYPES)] for each in range(EACH)]
    run(python, str(HERE / "quantize.py"), source, f"{folder}.f32.gguf", *kinds)
    found = []
    for kind in kinds:
        file = Path(f"{folder}.f32.gguf.{kind}.gguf")
        blocks = round_weights(model, numbers, Path(f"{numbered}.f32.gguf"), file)
        wrong = judge(file, model, work / "ids.npy", python)
        print(f"{name}, {kind} ({blocks} tensors in blocks):", "; ".join(wrong) or "same tokens", flush=True)
        found += wrong
    return found


def main(source: str, python: str, names: list[str]) -> int:
    """Exit code 1 if tailrace chooses other tokens."""
    found = []
    for number, name in enumerate((*JUDGED, *FURTHER)):
        if name not in (names or JUDGED):
            continue
        work = Path(tempfile.mkdtemp(prefix="gguf-published-"))
        try:
            found += judge_model(number, name, work, source, python)
        except Exception as failure:
            found.append(f"tailrace: {name}: {type(failure).__name__}: {failure!s:.200}")
            print(found[-1], flush=True)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return int(any(each.startswith("tailrace") for each in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
