"""lm-evaluation-harness by its command: loglikelihoods through echo and logprobs, and generation, on tasks of five
documents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import NAME, Server

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo"}
COMMON = """
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
"""
TASKS = {
    "choose": """
task: choose
output_type: multiple_choice
doc_to_text: "The capital of {{country}} is"
doc_to_choice: "{{choices}}"
doc_to_target: label
metric_list: [{metric: acc}]
""",
    "tell": """
task: tell
output_type: generate_until
doc_to_text: "The capital of {{country}} is"
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: [".", ",", "\\n"], max_gen_toks: 8, do_sample: false}
filter_list: [{name: found, filter: [{function: regex, regex_pattern: "([A-Z][a-z]+)"}, {function: take_first}]}]
metric_list: [{metric: exact_match}]
""",
    "answer": """
task: answer
output_type: generate_until
doc_to_text: "What is the capital of {{country}}? Answer in one sentence."
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: ["."], max_gen_toks: 256, do_sample: false}
filter_list: [{name: found, filter: [{function: regex, regex_pattern: "is ([A-Z][a-z]+)"}, {function: take_first}]}]
metric_list: [{metric: exact_match}]
""",
}
# the same loglikelihoods, by transformers: [[context, continuation], …] → [its sum of log-probabilities, …]
TRUTH = """
import json, sys, torch, transformers
folder = sys.argv[1]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
found = []
for context, continuation in json.load(sys.stdin):
    ids, begin = tokenizer(context + continuation).input_ids, len(tokenizer(context).input_ids)
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    found.append(sum(float(scores[i - 1, ids[i]]) for i in range(begin, len(ids))))
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True)
class Harness:
    """Runs the command with what it needs in a folder of the test."""

    folder: Path

    def run(self, kind: str, task: str, *flags: str, **settings: Any) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """The task's results, and its samples in order of the documents."""
        arguments = ",".join(f"{name}={value}" for name, value in settings.items())
        out = self.folder / "out"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "lm_eval",
                "run",
                "--model",
                kind,
                "--model_args",
                arguments,
                "--tasks",
                task,
                "--include_path",
                str(self.folder),
                "--output_path",
                str(out),
                "--log_samples",
                *flags,
            ],
            check=True,
            timeout=300,
            env=os.environ | {"HF_HOME": str(self.folder / "hf"), "OPENAI_API_KEY": "none"},
        )
        [results], [samples] = out.rglob("results*.json"), out.rglob(f"samples_{task}*.jsonl")
        lines = map(json.loads, samples.read_text().splitlines())
        return json.loads(results.read_text())["results"][task], sorted(lines, key=lambda line: line["doc_id"])


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    cities = list(CAPITALS.values())
    docs = [{"country": country, "choices": cities, "label": label} for label, country in enumerate(CAPITALS)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    for name, task in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(task + COMMON.format(data=tmp_path / "data.jsonl"))
    return Harness(tmp_path)


@pytest.fixture
def completions(server: Server, tokenizer_folder: str) -> dict[str, Any]:
    """What local-completions is told."""
    return {"model": NAME, "base_url": f"{server.v1}/completions", "tokenizer": tokenizer_folder, "max_retries": 1}


def likelihoods(samples: list[dict[str, Any]]) -> list[float]:
    return [float(answer[0][0]) for sample in samples for answer in sample["resps"]]


def test_loglikelihoods_are_those_of_transformers(harness, completions, tokenizer_folder, command):
    """In bfloat16, the server's default, against float32."""
    results, samples = harness.run("local-completions", "choose", **completions)
    assert results["acc,none"] == 1.0
    asked = [[given["arg_0"], given["arg_1"]] for sample in samples for given in sample["arguments"].values()]
    assert len(asked) == len(CAPITALS) ** 2
    truth = subprocess.run(
        [command.parent / "python", "-c", TRUTH, tokenizer_folder],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    assert likelihoods(samples) == pytest.approx(json.loads(truth.stdout), abs=0.25)


def test_loglikelihoods_of_text_in_batches(harness, completions):
    """Text instead of token ids, four prompts a request, four requests at once."""
    results, samples = harness.run(
        "local-completions", "choose", "--batch_size", "4", **completions, tokenized_requests=False, num_concurrent=4
    )
    assert results["acc,none"] == 1.0
    assert all(score < 0 for score in likelihoods(samples))


def test_generate_until_of_completions(harness, completions):
    results, samples = harness.run("local-completions", "tell", **completions, num_concurrent=2)
    assert results["exact_match,found"] >= 0.8
    assert all("." not in sample["resps"][0][0] for sample in samples)


def test_generate_until_of_chats(harness, server):
    results, samples = harness.run(
        "local-chat-completions",
        "answer",
        "--apply_chat_template",
        "--gen_kwargs",
        "max_gen_toks=24",
        model=NAME,
        base_url=f"{server.v1}/chat/completions",
        num_concurrent=2,
        max_retries=1,
    )
    assert results["exact_match,found"] >= 0.8
    assert all("." not in sample["resps"][0][0] for sample in samples)
