"""vLLM with tailrace inside, as a replica of Ray Serve's LLM deployment: a tiny model, on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ROOT, PORT = Path(__file__).parents[2], 8123
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_CI_ENV": "1"}
ENVIRONMENT |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
SIZES = {"vocab": 512, "layers": 2, "hidden": 64, "inner": 128, "heads": 2, "kv-heads": 2, "spread": 3}
ENGINE = {"max_model_len": 64, "max_num_seqs": 8, "enforce_eager": True, "dtype": "float32"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, and a token for each byte."""
    folder = tmp_path_factory.mktemp("model")
    names = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={name: id for id, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind | {"chat_template": "{{ messages[0].content }}"}))
    sizes = [part for name, size in SIZES.items() for part in (f"--{name}", str(size))]
    words = [str(folder), "--tokenizer", str(folder / "none"), *sizes]
    subprocess.run([sys.executable, "-m", "bench.random_model", *words], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def logs(model: Path) -> Iterator[Path]:
    """Of a deployment that serves the model."""
    os.environ |= ENVIRONMENT
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        ray.init(num_cpus=4, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        config = LLMConfig(
            model_loading_config={"model_id": "tiny", "model_source": str(model)},
            runtime_env={"env_vars": ENVIRONMENT},
            accelerator_config={"kind": "cpu"},
            deployment_config={"num_replicas": 1},
            engine_kwargs=ENGINE,
        )
        try:
            serve.run(build_openai_app({"llm_configs": [config]}))
            yield Path(folder) / "session_latest" / "logs"
        finally:
            serve.shutdown()
            ray.shutdown()


def post(**fields: Any) -> str:
    body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 12, "ignore_eos": True, **fields}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read().decode()


def streamed(**fields: Any) -> list[int]:
    """The token ids of a streamed completion."""
    *events, done = [
        line.removeprefix("data: ")
        for line in post(stream=True, return_token_ids=True, **fields).splitlines()
        if line.startswith("data: ")
    ]
    assert done == "[DONE]"
    assert len(events) > 3  # it comes in parts
    return [id for event in events for choice in json.loads(event)["choices"] for id in choice["token_ids"] or ()]


def test_the_replica_samples_by_tailrace(logs: Path) -> None:
    """A tiny `top_n_sigma`, which vLLM does not have, leaves the likeliest token of each row."""
    seeded, greedy = streamed(seed=7), streamed(temperature=0)
    assert len(seeded) == len(greedy) == 12
    assert streamed(seed=7) == seeded != greedy
    assert streamed(seed=7, vllm_xargs={"top_n_sigma": 1e-6}) == greedy
    texts = [path.read_text(errors="replace") for path in logs.rglob("*") if path.suffix in (".out", ".err", ".log")]
    assert any("samples for vLLM in this process, on cpu" in text for text in texts)


@pytest.mark.usefixtures("logs")
def test_a_wrong_field_is_a_400_that_names_it() -> None:
    with pytest.raises(urllib.error.HTTPError) as found:
        post(vllm_xargs={"xtc_probability": 2})
    assert found.value.code == 400
    assert "xtc_probability must be a number in [0, 1], got 2" in found.value.read().decode()
