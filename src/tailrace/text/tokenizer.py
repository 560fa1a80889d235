"""Text ↔ token ids, and a vocabulary's data for front ends. Wraps the tokenizers library.

Only `Tokenizer.load` imports that library: a caller may pass a `tokenizers.Tokenizer` of its own (transformers has one
in `tokenizer.backend_tokenizer`).
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tailrace.base.json_files import read_optional_object
from tailrace.base.panics import raise_panics_as
from tailrace.errors import EngineError, ModelLoadError, ParameterError, RequestError
from tailrace.text.decoder import make_steps
from tailrace.text.special_tokens import CONFIG, named_tokens
from tailrace.text.templates.chat_template import ChatTemplates
from tailrace.text.templates.program import DEFAULT_LIMITS, TemplateLimits
from tailrace.text.templates.sources import DEFAULT, template_sources
from tailrace.text.tokenizer_files import read_backend, tokenizer_errors
from tailrace.text.utf8 import decode_complete, without_halves
from tailrace.text.vocabulary import METASPACE, byte_level, decode_piece, decoder_kind, fallback_byte

if TYPE_CHECKING:
    import tokenizers

MAX_ID = 2**24 - 1
NO_TEMPLATE = (
    "messages: this model has no chat template; use /v1/completions, or ask the operator for one (--chat-template FILE)"
)
NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})
SHORT = 2048  # characters; encoding them takes less than a millisecond


class Tokenizer:
    """A model's tokenizer, made by `load`. Immutable after construction, so threads may share it.

    Args:
        template: the chat template, or several by name. response_template: the checkpoint's parser, unchecked.
        named: the tokens with names, see special_tokens.named_tokens.
        limits: of the chat templates, which run in a process of their own. None leaves out the templates.
        variables: of the chat templates, for conversations that do not set them.

    Attributes:
        vocab_size: number of ids. Added tokens count.
        special_ids: ids that `skip_special_tokens` leaves out.
        kind: "bytes", "pieces" or "library", see text/vocabulary.py.
        bos_id: the id that begins a text; None if the model has no such token.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        template: str | dict[str, str] | None = None,
        named: dict[str, str] | None = None,
        limits: TemplateLimits | None = DEFAULT_LIMITS,
        response_template: Any = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> None:
        self.backend, self.response_template = backend, response_template
        self.default_variables = variables
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        self.decoder: dict[str, Any] | None = json.loads(backend.to_str())["decoder"]
        self.kind = decoder_kind(self.decoder)
        spell = byte_level if self.kind == "bytes" else decode_piece
        last = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        if last > MAX_ID:  # a table has a place for each id up to the last one
            raise ModelLoadError(f"the tokenizer has the id {last}, and {MAX_ID} is the most")
        # id_to_token, not get_vocab: for an added token it returns the normalised form, as decode does
        self._tokens = [backend.id_to_token(i) or "" for i in range(last + 1)]
        self._bytes = [spell(token) for token in self._tokens]
        if self.kind == "bytes" and not self._is_reversible():
            self.kind = "library"
        if self.kind == "library":
            make_steps(self.decoder)  # refuses a decoder that can't stream
        self.bos_id = backend.token_to_id((named or {}).get("bos_token", ""))
        sources = {DEFAULT: template} if isinstance(template, str) else template
        self._templates = ChatTemplates(sources, named or {}, limits) if sources and limits else None
        self._widest = self._widest_token()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        trust_remote_code: bool = False,
        limits: TemplateLimits | None = DEFAULT_LIMITS,
        template: str | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> Tokenizer:
        """Load the tokenizer and chat template of a Hugging Face folder.

        Args:
            limits, variables: as above. template: a chat template in place of the folder's.

        Raises:
            ModelLoadError: the folder has no tokenizer, or it can't be read, or a chat template exceeds its limits.
            MissingExtraError: the tokenizers library is not installed.
        """
        folder = Path(folder)
        config = read_optional_object(folder / CONFIG)
        with tokenizer_errors(folder):
            backend = read_backend(folder, config, trust_remote_code)
            sources = template_sources(folder, config) if template is None else {DEFAULT: template}
            named = named_tokens(folder, config)
            return cls(backend, sources, named, limits, config.get("response_template"), variables)

    # ---- text → ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text. Long texts are encoded without the interpreter's lock, so that other threads
        can run. Half of a surrogate pair becomes U+FFFD.

        Raises:
            EngineError: the tokenizer fails at this text, as one with a regex of too many steps does.
        """
        text = without_halves(text)
        with raise_panics_as(lambda reason: EngineError(f"the model's tokenizer can't encode this text: {reason}")):
            if len(text) <= SHORT:
                return self.backend.encode(text, add_special_tokens=add_special_tokens).ids
            return self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def estimate_min_tokens(self, text: str) -> int:
        """Return a lower bound on the number of tokens, from the text's length. Without a known bound, return 0."""
        if self._widest == 0 or len(text) <= SHORT:
            return 0
        return -(-len(text.encode(errors="replace")) // self._widest)

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        /,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        unfinished: bool = False,
        **options: Any,
    ) -> str:
        """Return the prompt text of a conversation, by the model's chat template, which writes special tokens itself.

        unfinished: the model continues the last message.

        Raises:
            RequestError: the model has no chat template, or the template refuses these messages.
        """
        if self._templates is None:
            raise RequestError(NO_TEMPLATE, "messages")
        fixed = {"tools": tools, "add_generation_prompt": add_generation_prompt}
        template = self._templates.pick_template(tools, options.get("documents"))
        render = template.unfinished if unfinished else template.render
        # Calls' arguments are JSON in strings, which may have escapes of half a surrogate pair.
        return without_halves(render(messages, {"documents": None, **options, **fixed}))

    def loading(self) -> AbstractContextManager[None]:
        """Limit all renderings of a block together; see ChatTemplates.loading."""
        return nullcontext() if self._templates is None else self._templates.loading()

    def writes_tools(self, messages: list[dict[str, Any]], documents: object = None) -> bool:
        """Return whether the chat template writes the tools of a conversation with tools into the prompt.

        Raises:
            RequestError: the model has no template for such a conversation.
        """
        return self._templates is None or self._templates.pick_template(True, documents).tools.covers(messages)

    def drops_text(self, messages: list[dict[str, Any]], tools: object = None, documents: object = None) -> bool:
        """Return whether the messages have text beside tool calls that the chat template silently leaves out.

        Raises:
            RequestError: the model has no template for such a conversation.
        """
        return self._templates is not None and self._templates.pick_template(tools, documents).drops_text(messages)

    @property
    def template_source(self) -> str:
        """The text of the chat templates; "" for a model without templates."""
        return "" if self._templates is None else self._templates.source

    def template_reads(self, variable: str) -> bool:
        """Return whether a chat template of the model reads this variable."""
        return variable in self.template_variables

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables that the chat templates of the model read."""
        return frozenset() if self._templates is None else self._templates.variables

    def encode_chat(self, messages: list[dict[str, Any]], /, **options: Any) -> list[int]:
        """Return the token ids of a conversation; see `render_chat`. `default_variables` count, too."""
        options = {**self.default_variables, **options}
        return self.encode(self.render_chat(messages, **options), add_special_tokens=False)

    def may_write_marker(self, marker: str) -> bool:
        """Return whether the model is known to write this marker: the marker is a visible token, or the chat template
        contains it."""
        id = self.backend.token_to_id(marker)
        shown = id is not None and id not in self.special_ids
        return shown or marker in self.template_source

    def bad_word_ids(self, word: str) -> tuple[tuple[int, ...], ...]:
        """Return the canonical spellings of a word as ids: without and with a space before it."""
        spellings = {tuple(self.encode(form, add_special_tokens=False)) for form in (word, f" {word}")}
        return tuple(sorted(spelling for spelling in spellings if spelling))

    @lru_cache(maxsize=16)  # noqa: B019, one tokenizer lives as long as its process
    def ids_with(self, strings: tuple[str, ...]) -> tuple[int, ...]:
        """Return the ids of all tokens whose bytes contain one of these strings."""
        found = re.compile(b"|".join(re.escape(string.encode(errors="replace")) for string in strings)).search
        return tuple(i for i, data in enumerate(self._bytes) if found(data)) if strings else ()

    # ---- ids → text

    @cached_property
    def texts(self) -> list[str | None]:
        """The text of each id alone, anywhere but at the start of a text; None if it depends on its neighbours."""
        if self.kind == "bytes":
            return [decode_complete(data) for data in self._bytes]
        if self.kind == "pieces":
            spelt = [token.replace(METASPACE, " ") for token in self._tokens]
            return [None if fallback_byte(token) is not None else token for token in spelt]
        return [None] * len(self._bytes)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of token ids. Many ids are decoded without the interpreter's lock, so that other threads can
        run.

        Raises:
            ParameterError: an id is outside the vocabulary. EngineError: the tokenizer fails at these ids.
        """
        self.check(ids)
        with raise_panics_as(lambda reason: EngineError(f"the model's tokenizer can't decode these ids: {reason}")):
            if len(ids) <= SHORT:
                return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
            return self.backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]

    def check(self, ids: Iterable[int]) -> None:
        """Raise ParameterError for an id that is negative or beyond all ids. Ids without a token are accepted."""
        try:
            for i in ids:
                if not 0 <= operator.index(i) < 2**32:
                    raise ParameterError(f"token_ids: token id {i} is not in 0 … {len(self._bytes) - 1}", "token_ids")
        except TypeError as error:
            raise ParameterError(f"token_ids must be a list of whole numbers: {error}", "token_ids") from None

    def bytes_of(self, id: int) -> bytes:
        """Return the token's own bytes; b"" for an id without a token."""
        try:
            return self._bytes[id] if 0 <= id < len(self._bytes) else b""
        except TypeError as error:
            raise ParameterError(f"id must be a whole number, got {id!r:.100}", "id") from error

    def text_of(self, id: int) -> str:
        """Return the token's bytes as text. Bytes that are no whole characters become U+FFFD."""
        return self.bytes_of(id).decode("utf-8", errors="replace")

    @property
    def tokens(self) -> list[str]:
        """Every token as the vocabulary writes it, by id; "" for an id without a token."""
        return self._tokens

    def token_of(self, id: int) -> str:
        """Return the token as the vocabulary writes it; "" for an id without a token."""
        try:
            return self._tokens[id] if 0 <= id < len(self._tokens) else ""
        except TypeError as error:
            raise ParameterError(f"id must be a whole number, got {id!r:.100}", "id") from error

    def _widest_token(self) -> int:
        """Return the largest number of bytes of text for one token. Return 0 if no bound is known, because some step
        removes or shrinks text."""
        normalizer = json.loads(self.backend.to_str())["normalizer"]
        steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
        kinds = {step["type"] for step in steps}
        swallows = any(t.lstrip or t.rstrip for t in self.backend.get_added_tokens_decoder().values())
        if self.kind == "library" or swallows or not kinds <= {"NFC", "Prepend", "Replace"}:
            return 0
        if any(step["type"] == "Replace" and step["pattern"] != {"String": " "} for step in steps):
            return 0
        # NFC: one character may stand for several with up to three times its bytes
        composed = 3 if "NFC" in kinds else 1
        return composed * max(map(len, self._bytes), default=0)

    def _is_reversible(self) -> bool:
        """Return whether the byte table agrees with the library's decode, for every added token and a sample of the
        vocabulary."""
        ids = [*self.backend.get_added_tokens_decoder(), *range(0, len(self._tokens), max(1, len(self._tokens) // 500))]
        joined = b"".join(self.bytes_of(i) for i in ids).decode("utf-8", errors="replace")
        each = all(self.backend.decode([i], skip_special_tokens=False) == self.text_of(i) for i in ids)
        return each and self.backend.decode(ids, skip_special_tokens=False) == joined
