"""tailrace in transformers' `generate`: each row with its own parameters and seed, and a streamer with the exact text.

model.generate(**batch, custom_generate=TailraceSampling([SamplingParams(top_p=0.9, seed=7), …]))
model.generate(**batch, logits_processor=[TailraceLogitsProcessor(SamplingParams(min_p=0.1, seed=7))])
generate_batch(model, prompts, [SamplingParams(min_p=0.1, seed=7), …])  # continuous batching
TailraceStreamer(tokenizer, skip_prompt=True)  # where TextIteratorStreamer was
"""

from tailrace.integrations.transformers.batching import attach_sampler, generate_batch
from tailrace.integrations.transformers.generate import TailraceSampling
from tailrace.integrations.transformers.processor import TailraceLogitsProcessor
from tailrace.integrations.transformers.streamer import TailraceStreamer

__all__ = ["TailraceLogitsProcessor", "TailraceSampling", "TailraceStreamer", "attach_sampler", "generate_batch"]
