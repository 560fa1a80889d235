"""transformers' TextIteratorStreamer with tailrace's text: the decode of all ids, character by character."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from queue import Empty
from threading import Thread, current_thread
from time import monotonic
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TextIteratorStreamer

from tailrace.errors import ParameterError
from tailrace.integrations.transformers.refused_fields import TEXT_FIELDS
from tailrace.params import SamplingParams
from tailrace.sampling.validation import check_kind
from tailrace.text.detokenize import detokenizer
from tailrace.text.output import TextStream
from tailrace.text.tokenizer import Tokenizer

# The fields of a row's parameters that the end of the text depends on.
STOP_FIELDS = (*TEXT_FIELDS, "min_tokens")
LOOK_S = 0.2  # how often a waiting reader checks whether a thread still generates


class TailraceStreamer(TextIteratorStreamer):
    """A streamer that yields text as soon as it is certain: whole characters, nothing twice, nothing lost.

    The joined pieces are the decode of all ids. With `skip_prompt` they are the part after the decoded prompt.
    `TextIteratorStreamer` then decodes the answer alone, and loses the space at the beginning of a SentencePiece
    answer.

    Args:
        tokenizer: one with a tokenizer.json (`backend_tokenizer`).
        skip_prompt, timeout: as of TextIteratorStreamer.
        params: its `stop`, `stop_regex` and their kin cut the text; `finished` is then true. `TailraceSampling` passes
            the row's own, and ends the row.
        decode_kwargs: skip_special_tokens.

    Raises:
        ParameterError: (a ValueError) for other decode_kwargs, params of another type, a text that is to be cleaned
            up, a tokenizer without a backend, or a batch of more than one row.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        skip_prompt: bool = False,
        timeout: float | None = None,
        *,
        params: SamplingParams | None = None,
        **decode_kwargs: Any,
    ) -> None:
        if params is not None:
            check_kind("params", params, SamplingParams)
        super().__init__(tokenizer, skip_prompt, timeout, **decode_kwargs)
        self.params = params
        self.of_row: SamplingParams | None = None  # the parameters of its row, used if it has no own ones
        check_decoding(tokenizer, decode_kwargs)
        self._skip_special = bool(decode_kwargs.get("skip_special_tokens", False))
        self._tokenizer = of_backend(tokenizer.backend_tokenizer)
        self._stream: TextStream | None = None
        self._open = True  # the reader waits for an end
        self._generating: Thread | None = None  # who has put tokens

    @property
    def finished(self) -> bool:
        """True if a stop was found. Then no text follows."""
        return self._stream is not None and self._stream.finished

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt, and in later calls new tokens. The reader gets an error as well."""
        self._open, self._generating = True, current_thread()
        try:
            if value.dim() > 1 and len(value) > 1:
                raise ParameterError(f"a streamer is for one row, got {len(value)}", "streamer")
            ids: list[int] = value.flatten().tolist()
            if self._stream is None:
                self._begin_stream(ids)
            elif not self._stream.finished:
                self._queue_text(self._stream.feed(ids).text)
        except BaseException as error:
            self.fail(error)
            raise

    def end(self) -> None:
        """Release the rest of the text and end it. The next `put` begins another prompt."""
        if self._stream is not None and not self._stream.finished:
            self._queue_text(self._stream.flush("length").text)
        self._close_stream(self.stop_signal)

    def fail(self, error: BaseException) -> None:
        """Pass this error to the reader, unless the text has ended already. Otherwise the reader would wait for
        ever."""
        if self._open:
            self._close_stream(error)

    def expect(self) -> None:
        """Note that a generation begins. `fail` then reaches the reader even before the first `put`."""
        self._open = True

    def watch(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `generate` so that its errors end the text too: `Thread(target=streamer.watch(model.generate),
        kwargs=…)`.

        Without it, errors before the first `put`, or in a thread of a pool, can't be noticed.
        """

        @wraps(generate)
        def run_watched(*args: Any, **kwargs: Any) -> Any:
            self.expect()
            try:
                return generate(*args, **kwargs)
            except BaseException as error:
                self.fail(error)
                raise

        return run_watched

    def __next__(self) -> str:
        value: Any = self._wait_for_text()
        if isinstance(value, StopIteration):  # it would end the reader's loop as if all were well
            raise RuntimeError("generate has raised StopIteration") from value
        if isinstance(value, BaseException):
            raise value
        if value is self.stop_signal:
            raise StopIteration
        return value

    def _wait_for_text(self) -> Any:
        """Return the next item of the queue.

        Raises:
            Empty: no item came within `timeout`. RuntimeError: the thread that put tokens is gone, and has put no end.
        """
        until = None if self.timeout is None else monotonic() + self.timeout
        while True:
            try:
                return self.text_queue.get(
                    timeout=LOOK_S if until is None else max(0, min(LOOK_S, until - monotonic()))
                )
            except Empty:
                if until is not None and monotonic() >= until:
                    raise
            thread = self._generating
            if thread is not None and not thread.is_alive() and self.text_queue.empty():
                self._generating = None
                raise RuntimeError(
                    f"{thread.name} has ended, and the text has not: generate failed there; "
                    "Thread(target=streamer.watch(model.generate), …) hands the error on"
                )

    def _close_stream(self, last: Any) -> None:
        self._stream, self._open, self._generating = None, False, None
        self.text_queue.put(last, timeout=self.timeout)

    def _begin_stream(self, prompt: list[int]) -> None:
        given = self.params or self.of_row or SamplingParams()
        params = SamplingParams(
            **{name: getattr(given, name) for name in STOP_FIELDS}, skip_special_tokens=self._skip_special
        )
        self._stream = TextStream(self._tokenizer, params, prompt=prompt)
        if not self.skip_prompt:
            reader = detokenizer(self._tokenizer, params.hidden(self._tokenizer.special_ids))
            self._queue_text("".join(map(reader.feed, prompt)))  # a character that it begins comes with the output

    def _queue_text(self, text: str) -> None:
        if text:
            self.text_queue.put(text, timeout=self.timeout)


@lru_cache(maxsize=8)
def of_backend(backend: Any) -> Tokenizer:
    """Make tailrace's tables of a tokenizer; this takes a moment."""
    return Tokenizer(backend)


def check_decoding(tokenizer: PreTrainedTokenizerBase, decode_kwargs: dict[str, Any]) -> None:
    """Raise ParameterError unless the text can be streamed as `decode` would give it."""
    if unknown := decode_kwargs.keys() - {"skip_special_tokens", "clean_up_tokenization_spaces"}:
        name = min(unknown)
        raise ParameterError(f"decode_kwargs must be out of skip_special_tokens, got {name}", name)
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ParameterError(f"tokenizer {type(tokenizer).__name__} has no backend_tokenizer", "tokenizer")
    asked = decode_kwargs.get("clean_up_tokenization_spaces")
    cleaned = tokenizer.clean_up_tokenization_spaces if asked is None else asked
    bpe = type(tokenizer.backend_tokenizer.model).__name__ == "BPE"  # which transformers does not clean up
    if cleaned and not (
        bpe and not getattr(tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", True)
    ):
        name = "clean_up_tokenization_spaces"
        raise ParameterError(f"{name} must be False: it changes text that has been streamed already", name)
