"""tailrace as the decoding method of transformers' `generate`, through its `custom_generate`.

`generate` prepares the batch, and its own loop runs the model. tailrace chooses the tokens, ends single rows, and
writes to the streamers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose
from typing import Any

import torch
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    GenerationConfig,
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation import BaseStreamer, GenerationMode

from tailrace.errors import ParameterError
from tailrace.integrations.refusals import check_fields
from tailrace.integrations.transformers.processor import TailraceLogitsProcessor, check_params, check_seed
from tailrace.integrations.transformers.refused_fields import GENERATE, STREAMED, TEXT_FIELDS
from tailrace.integrations.transformers.row_ends import Row, RowEnds
from tailrace.integrations.transformers.streamer import TailraceStreamer
from tailrace.params import SamplingParams

# transformers' warpers → the equivalent field of SamplingParams, and the warper's attribute with its value
WARPERS: dict[type, tuple[str, str]] = {
    TemperatureLogitsWarper: ("temperature", "temperature"),
    TopHLogitsWarper: ("top_h", "top_h"),
    TopKLogitsWarper: ("top_k", "top_k"),
    TopPLogitsWarper: ("top_p", "top_p"),
    MinPLogitsWarper: ("min_p", "min_p"),
    TypicalLogitsWarper: ("typical_p", "mass"),
    EpsilonLogitsWarper: ("epsilon_cutoff", "epsilon"),
    EtaLogitsWarper: ("eta_cutoff", "epsilon"),
}
ENDS = ("max_tokens", "stop_token_ids")  # fields that end a row here


class TailraceSampling:
    """The decoding method: `model.generate(**batch, custom_generate=TailraceSampling(…))`.

    Without `params` it draws from the distribution that `generate` would draw from: processors before the warpers run
    unchanged, and tailrace replaces the warpers (temperature, top-k, top-p and their kin). With `params`, these replace
    the warpers; other processors run before. In both cases each row's token depends on its own logits, parameters, seed
    and position alone.

    Args:
        params, seed: as of `TailraceLogitsProcessor`. A row also ends by its `max_tokens` and `stop_token_ids`. If it
            has a `TailraceStreamer`, whose text is then cut, it ends by `stop` and `stop_regex` as well.
        streamer: for one row, or one for each. `generate` does not pass on its own argument of this name to a callable.

    Raises:
        ParameterError: (a ValueError) `params`, `seed` or `streamer` are of another kind. In the call also for beams,
            drafts, output_scores, a warper's value in addition to `params`, and what `TailraceLogitsProcessor` refuses.
    """

    def __init__(
        self,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        seed: int | Sequence[int] | None = None,
        streamer: BaseStreamer | Sequence[BaseStreamer] | None = None,
    ) -> None:
        if params is not None:
            check_params(params)
        check_seed(seed)
        self.params, self.seed = params, seed
        several = isinstance(streamer, Sequence)
        self.streamers = list(streamer) if several else [] if streamer is None else [streamer]
        if not all(isinstance(one, BaseStreamer) for one in self.streamers):
            got = f"{streamer!r:.100}"
            raise ParameterError(f"streamer must be a BaseStreamer, or one for each row, got {got}", "streamer")
        if len(set(map(id, self.streamers))) < len(self.streamers):
            raise ParameterError("streamer must be another one for each row: their texts would mix", "streamer")

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Any:
        """Generate, as `generate` calls it, and return what `generate` returns.

        With `return_dict_in_generate` the result also has `logprobs` and `sampling_masks`: for each row a list with an
        entry per token (TokenLogprobs; int32 ids, ascending). The list is empty if the row did not ask.
        """
        watched = [streamer for streamer in self.streamers if isinstance(streamer, TailraceStreamer)]
        for streamer in watched:
            streamer.expect()
        try:
            return self._generate_tokens(
                model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs
            )
        except BaseException as error:
            for streamer in watched:
                streamer.fail(error)
            raise

    def _generate_tokens(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
    ) -> Any:
        check_mode(generation_config)
        if self.params is None:
            before, params = without_warpers(logits_processor, generation_config.do_sample)
        else:
            params, own = self.params, model.generation_config
            before = [one for one in logits_processor if not is_replaced(one, generation_config, own)]
        generation_config.do_sample = False  # the processor's token has the largest score
        rows = [params] if isinstance(params, SamplingParams) else params
        check_rows(rows, generation_config, STREAMED if self._cuts_text() else GENERATE)
        processor = TailraceLogitsProcessor(
            params,
            seed=self.seed,
            attention_mask=get_attention_mask(model, model_kwargs, input_ids),
            eos_token_id=generation_config.eos_token_id,
            handled_by_caller=(*ENDS, *TEXT_FIELDS) if self._cuts_text() else ENDS,
        )
        ends = RowEnds(stopping_criteria, processor, input_ids.shape[1], self._assign_rows(params, len(input_ids)))
        if ends.alone and generation_config._pad_token_tensor is None:
            raise ParameterError("pad_token_id must be given where rows end on their own", "pad_token_id")
        ends.begin(input_ids)
        result = model._sample(
            input_ids,
            logits_processor=LogitsProcessorList([*before, processor]),
            stopping_criteria=ends,
            generation_config=generation_config,
            **model_kwargs,
        )
        if generation_config.return_dict_in_generate:
            result["logprobs"], result["sampling_masks"] = ends.get_reports()
        return result

    def _cuts_text(self) -> bool:
        return bool(self.streamers) and all(isinstance(one, TailraceStreamer) for one in self.streamers)

    def _assign_rows(self, params: SamplingParams | Sequence[SamplingParams], count: int) -> list[Row]:
        """Return the rows' parameters and streamers. Each streamer gets the stops of its row.

        Raises:
            ParameterError: there are not as many as rows.
        """
        given = [params] if isinstance(params, SamplingParams) else list(params)
        if self.streamers and len(self.streamers) != count:
            raise ParameterError(
                f"streamer must be one for each of {count} rows, got {len(self.streamers)}", "streamer"
            )
        if not given or count % len(given):
            raise ParameterError(f"params must be one for each of {count} rows, got {len(given)}", "params")
        rows = []
        for row in range(count):
            streamer = self.streamers[row] if self.streamers else None
            own = given[row * len(given) // count]
            if isinstance(streamer, TailraceStreamer):
                streamer.of_row = own
            rows.append((own, streamer))
        return rows


def without_warpers(processors: LogitsProcessorList, do_sample: bool) -> tuple[list[Any], SamplingParams]:
    """Split off the warpers at the list's end. Return the processors before them, and equivalent parameters."""
    if not do_sample:
        return list(processors), SamplingParams(temperature=0.0)
    rest, found = list(processors), {}
    while rest:
        last = rest[-1]
        if type(last) is not LogitNormalization:  # it changes no draw
            field = translate_warper(last)
            if field is None or field[0] in found:
                break
            found[field[0]] = field[1]
        rest.pop()
    order = tuple(reversed(found))
    return rest, SamplingParams(**found, sampler_order=order if len(order) > 1 else ())


def translate_warper(warper: Any) -> tuple[str, Any] | None:
    """Return the field and its value; None if this is no warper of transformers, or keeps more than it should."""
    if type(warper) not in WARPERS or getattr(warper, "min_tokens_to_keep", 1) != 1:
        return None
    if getattr(warper, "filter_value", -float("inf")) != -float("inf"):
        return None
    name, attribute = WARPERS[type(warper)]
    value = getattr(warper, attribute)
    return name, value.item() if isinstance(value, torch.Tensor) else value


def is_replaced(processor: Any, config: GenerationConfig, of_model: GenerationConfig) -> bool:
    """Return whether `generate` made this warper from its configuration. The parameters then replace it.

    Raises:
        ParameterError: the caller set the warper's value in addition to these parameters.
    """
    field = translate_warper(processor)
    if (
        field is None
        or (value := getattr(config, field[0], None)) is None
        or not isclose(value, field[1], rel_tol=1e-6)
    ):
        return False  # the caller's own warper, which runs
    name = field[0]
    if value not in (getattr(of_model, name, None), of_model._get_default_generation_params().get(name)):
        raise ParameterError(f"{name} {value} is given beside params: it belongs there", name)
    return True


def check_mode(config: GenerationConfig) -> None:
    """Raise ParameterError for modes that tailrace can't draw for."""
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ParameterError(f"generation mode {mode.value} can't be had with TailraceSampling", "custom_generate")
    if config.output_scores:
        raise ParameterError("output_scores has no scores to show: ask for logprobs in params", "output_scores")


def check_rows(rows: Sequence[SamplingParams], config: GenerationConfig, refused: Mapping[str, str]) -> None:
    """Raise ParameterError for a refused field, and if reports are requested but can't be returned."""
    for one in rows:
        check_fields(one, refused, "generate")
    if any(one.logprobs is not None or one.return_sampling_mask for one in rows) and not config.return_dict_in_generate:
        name = "return_dict_in_generate"
        raise ParameterError(f"{name} must be True where logprobs or sampling masks are asked for", name)


def get_attention_mask(
    model: PreTrainedModel, model_kwargs: dict[str, Any], input_ids: torch.Tensor
) -> torch.Tensor | None:
    """Return the attention mask of the prompt in `input_ids`; None: all of it counts."""
    name = "decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"
    mask = model_kwargs.get(name)
    return mask if mask is not None and mask.shape == input_ids.shape else None
