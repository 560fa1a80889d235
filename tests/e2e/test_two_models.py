"""`tailrace serve --model a=… --model b=…,lora=c=…` with small random models, by the official client: each says what it
says alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from api.harness import make_tokenizer
from runners.test_lora import adapter

pytestmark = pytest.mark.long  # api/test_models: in one process

VOCAB, COUNT = 258, 24
PROMPT = [*b"Water runs"]


def random_model(folder: Path, seed: int, length: int) -> LlamaForCausalLM:
    """A Llama that reads bytes."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=length,
        initializer_range=0.3,
        eos_token_id=257,
        bos_token_id=256,
    )
    model = LlamaForCausalLM(config).eval()
    folder.mkdir()
    model.save_pretrained(folder)
    make_tokenizer(folder)
    return model


def alone(model: LlamaForCausalLM) -> list[int]:
    """What the model says, by transformers."""
    said = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        do_sample=False,
        max_new_tokens=COUNT,
        eos_token_id=None,
        pad_token_id=0,
    )
    return said[0, len(PROMPT) :].tolist()


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[tuple[str, dict[str, LlamaForCausalLM], subprocess.Popen]]:
    import socket

    base = tmp_path_factory.mktemp("pair")
    models = {"a": random_model(base / "a", 1, 256), "b": random_model(base / "b", 2, 512)}
    models["c"] = adapter(base / "c", models["b"], ("self_attn.q_proj", "mlp.up_proj"), 4, 3)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tailrace.cli",
            "serve",
            "--port",
            str(port),
            "--front-ends",
            "2",
            "--threads",
            "1",
            "--dtype",
            "float32",
            "--model",
            f"a={base / 'a'}",
            "--model",
            f"b={base / 'b'},max-model-len=300,drafter=ngram,lora=c={base / 'c'}",
            "--device",
            "cpu",
        ],
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 300
    while health(url) != 200:
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < end
        time.sleep(0.1)
    yield url, models, process
    process.terminate()
    assert process.wait(300) == 0


def health(url: str) -> int:
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("stream", [False, True])
def test_each_says_what_it_says_alone(pair, name, stream):
    url, models, _ = pair
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        fields = {"temperature": 0, "max_tokens": COUNT, "extra_body": {"ignore_eos": True, "return_token_ids": True}}
        answer = client.completions.create(model=name, prompt=PROMPT, stream=stream, **fields)
        parts = list(answer) if stream else [answer]
        ids = [id for part in parts for choice in part.choices for id in choice.model_extra["token_ids"]]
        assert ids == alone(models[name])
        assert {part.model for part in parts} == {name}


def test_the_client_sees_both_and_no_third(pair):
    url, _, _ = pair
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        listed = list(client.models.list())
        lengths = [(model.id, model.model_extra["max_model_len"]) for model in listed]
        assert lengths == [("a", 256), ("b", 300), ("c", 300)]
        assert [model.model_extra.get("parent") for model in listed] == [None, None, "b"]
        assert client.models.retrieve("b").id == "b"
        with pytest.raises(openai.NotFoundError) as refused:
            client.chat.completions.create(model="d", messages=[{"role": "user", "content": "hi"}])
        assert refused.value.code == "model_not_found"
        beams = client.chat.completions.create(
            model="b",
            messages=[{"role": "user", "content": "hi"}],
            n=2,
            max_tokens=5,
            stream=True,
            extra_body={"use_beam_search": True},
        )
        ends = [choice.finish_reason for chunk in beams for choice in chunk.choices if choice.finish_reason]
        assert len(ends) == 2


def test_models_that_do_not_fit_are_not_loaded(pair, tmp_path):
    """Nothing is started: the error comes before any engine does."""
    random_model(tmp_path / "m", 3, 256)
    command = [
        sys.executable,
        "-m",
        "tailrace.cli",
        "serve",
        "--port",
        "0",
        "--device",
        "cpu",
        "--num-blocks",
        "100000000000",
    ]
    done = subprocess.run(
        [*command, "--model", f"x={tmp_path / 'm'}", "--model", f"y={tmp_path / 'm'}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert "the models need" in done.stderr
    assert "x " in done.stderr
    assert "y " in done.stderr
