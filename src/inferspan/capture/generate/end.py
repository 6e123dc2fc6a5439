"""What a ``generate()`` amounts to, told at its end: tokens, reasons, latencies, cache, memory, content.

Everything comes from the arguments, the final configuration, the clock of the steps and the returned sequences. At most four host
reads, whatever the length. What cannot be known is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import Tensor

from inferspan import messages, semconv
from inferspan.capture.compile.state import compiled_graphs
from inferspan.guard import contain
from inferspan.records import AttributeValue, Failure, Message, RequestEnd

from .modalities import Modalities, modalities
from .tokens import Generated, Loop, count_input, count_output, sequences_of

if TYPE_CHECKING:
    from .call import GenerateCall

__all__ = ["describe_end", "kv_cache_bytes", "reused_tokens"]

MAX_ROWS = 1024
MAX_TOKENS_IN_ARRAYS = 1024
"""Values of one per-token array on a request span."""
_PROMPT_KEYS = ("inputs", "input_ids")


def _layers(cache: Any) -> Sequence[Any]:
    """Layers of a cache, self- and cross-attention alike; empty for what is no transformers cache."""
    if cache is None or not type(cache).__module__.startswith("transformers."):
        return ()
    parts = [part for name in ("self_attention_cache", "cross_attention_cache") if (part := cache.__dict__.get(name)) is not None] or [
        cache
    ]
    return [layer for part in parts for layer in (part.__dict__.get("layers") or ())]


def kv_cache_bytes(cache: Any) -> int | None:
    """Bytes that the keys and values of a cache take, or ``None`` if they cannot be seen."""
    tensors = [value for layer in _layers(cache) for value in (layer.__dict__.get("keys"), layer.__dict__.get("values"))]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor)]
    return sum(sizes) if sizes else None


def reused_tokens(arguments: Mapping[str, Any]) -> int | None:
    """Positions already in a cache that the caller passes in; dynamic caches only, a static one would have to be read."""
    with contain("cache length"):
        for key in ("cache", "past_key_values"):
            for layer in _layers(arguments.get(key)):
                keys = layer.__dict__.get("keys")
                if type(layer).__name__ == "DynamicLayer" and isinstance(keys, Tensor) and keys.dim() == 4:
                    return int(keys.shape[-2]) or None
                # A sliding window holds fewer positions than it has seen.
                seen = layer.__dict__.get("cumulative_length")
                if type(layer).__name__.startswith("Dynamic") and type(seen) is int:
                    return seen or None
    return None


def _prompt(arguments: Mapping[str, Any], main_input: str) -> Any:
    value = arguments.get("input_ids")
    if value is None and main_input == "input_ids":
        value = arguments.get("inputs")
    # Token ids only: `inputs` of a speech or vision model are features.
    return value if isinstance(value, Tensor) and value.dim() == 2 and not value.is_floating_point() else None


def _encoded(outputs: Any) -> Any:
    """The hidden states of an encoder, [rows, width, hidden], that the caller ran beforehand."""
    if isinstance(outputs, dict):
        outputs = dict.get(outputs, "last_hidden_state")
    elif isinstance(outputs, tuple | list) and outputs:
        outputs = outputs[0]
    return outputs if isinstance(outputs, Tensor) else None


def _input_rows(call: GenerateCall) -> list[int] | None:
    model = call.target.model
    main_input = getattr(model, "main_input_name", "input_ids")
    main_input = main_input if isinstance(main_input, str) else "input_ids"
    loop = call.loops[0] if call.loops else None
    # A wrapper that joins images to the prompt feeds its language model more than the caller's text.
    sources = [*call.inner_arguments[:1], call.arguments] if len(call.inner_arguments) == 1 else [call.arguments]
    for arguments in sources:
        inner = arguments is not call.arguments
        encoded = _encoded(arguments.get("encoder_outputs"))
        counted = count_input(
            input_ids=_prompt(arguments, "input_ids" if inner else main_input),
            inputs_embeds=arguments.get("inputs_embeds") if encoded is None else encoded,
            attention_mask=arguments.get("attention_mask"),
            # What the loop starts with is the prompt of a decoder-only model; elsewhere it is the decoder's start.
            loop=loop if encoded is None else None,
            text_encoder_or_decoder=inner or main_input == "input_ids",
        )
        if counted is not None:
            return counted
    return None


def _modalities(call: GenerateCall, inputs: list[int] | None) -> Modalities:
    return modalities(
        call.target.model,
        call.arguments,
        text_only=call.target.text_only,
        ids=_prompt(call.arguments, getattr(call.target.model, "main_input_name", "input_ids")),
        rows=inputs,
        loop=call.loops[0] if call.loops else None,
        reused=call.reused,
    )


def _generated(call: GenerateCall, result: Any) -> Generated | None:
    sequences = sequences_of(result)
    prompt = _prompt(call.arguments, "input_ids")
    if (
        len(call.inner_results) == 1
        and len(call.loops) == 1
        and (sequences is None or call.inner_results[0].shape[0] == sequences.shape[0])
    ):
        return count_output(call.inner_results[0], call.loops, exact=True, prompt=None)
    if sequences is None:
        return None
    own = call.target.has_plain_generate and not call.inner_arguments
    if not call.loops and not own:
        return None
    return count_output(sequences, call.loops, exact=own, prompt=prompt)


def _configuration(call: GenerateCall) -> dict[str, AttributeValue]:
    config = call.config
    attributes: dict[str, AttributeValue] = {}
    if call.arguments.get("streamer") is not None:
        attributes[semconv.REQUEST_STREAM] = True
    seed = call.arguments.get("seed")
    if type(seed) is int:
        attributes[semconv.REQUEST_SEED] = seed
    if config is None:
        return attributes
    loop = call.loops[0]
    sampled = bool(getattr(config, "do_sample", False))
    attributes |= {semconv.DO_SAMPLE: sampled, semconv.NUM_BEAMS: loop.beams}
    rows: list[tuple[str, str, type]] = [(semconv.MODEL_CACHE, "cache_implementation", str)]
    if sampled:
        rows += [
            (semconv.REQUEST_TEMPERATURE, "temperature", float),
            (semconv.REQUEST_TOP_P, "top_p", float),
            (semconv.REQUEST_TOP_K, "top_k", int),
        ]
    for key, name, kind in rows:
        value = getattr(config, name, None)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            attributes[key] = kind(value)
    attributes.setdefault(semconv.MODEL_CACHE, "dynamic")
    penalty = getattr(config, "repetition_penalty", None)
    if isinstance(penalty, int | float) and penalty != 1:
        attributes[semconv.REPETITION_PENALTY] = float(penalty)
    if loop.returned != 1:
        attributes[semconv.REQUEST_CHOICE_COUNT] = loop.returned
    limit = getattr(config, "max_new_tokens", None)
    if not isinstance(limit, int) and isinstance(loop.max_length, int) and loop.prompt_width is not None:
        limit = loop.max_length - loop.prompt_width
    if isinstance(limit, int) and limit > 0:
        attributes[semconv.REQUEST_MAX_TOKENS] = limit
    stops = getattr(config, "stop_strings", None)
    if stops:
        attributes[semconv.REQUEST_STOP_SEQUENCES] = [stops] if isinstance(stops, str) else [str(stop) for stop in stops]
    return attributes


def _latencies(call: GenerateCall, generated: Generated | None, inputs: list[int] | None, now: int) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    duration = (now - call.start) / 1e9
    if call.first_token is not None:
        ttft = (call.first_token - call.start) / 1e9
        attributes[semconv.TTFT] = ttft
        computed = sum(inputs) - (call.reused or 0) * len(inputs) if inputs else 0
        if computed > 0 and ttft > 0:
            attributes[semconv.PREFILL_TOKENS_PER_SECOND] = computed / ttft
        longest = max(generated.counts, default=0) if generated else 0
        if longest > 1:
            attributes[semconv.TPOT] = (duration - ttft) / (longest - 1)
    if generated and sum(generated.counts) and duration > 0:
        attributes[semconv.TOKENS_PER_SECOND] = sum(generated.counts) / duration
    return attributes


def _arrays(call: GenerateCall, generated: Generated | None, intervals: list[float]) -> dict[str, AttributeValue]:
    if not call.recording or not call.target.settings.token_arrays:
        return {}
    attributes: dict[str, AttributeValue] = {}
    first = generated.counts[0] if generated and generated.counts else None
    plain = bool(call.loops) and not any(loop.assisted or loop.beams > 1 for loop in call.loops) and len(call.loops) == 1
    kept = len(intervals)
    for key, values in (
        (semconv.TOKEN_INTERVALS, intervals),
        (semconv.TOKEN_LOGPROBS, call.logprobs),
        (semconv.TOKEN_ENTROPIES, call.entropies),
    ):
        if not plain and key != semconv.TOKEN_INTERVALS:
            continue
        shown = values[: min(MAX_TOKENS_IN_ARRAYS, first if first is not None and plain else MAX_TOKENS_IN_ARRAYS)]
        if shown:
            attributes[key] = shown
            kept = min(kept, len(shown))
    if attributes and first is not None and kept < first:
        attributes[semconv.TOKENS_TRUNCATED] = True
    return attributes


def _content(call: GenerateCall, generated: Generated | None) -> tuple[Sequence[Message], Sequence[Message]]:
    target = call.target
    if not target.content or target.tokenizer is None:
        return (), ()
    limit = target.settings.max_content_chars
    prompt = _prompt(call.arguments, "input_ids")
    inputs = messages.input_messages(target.tokenizer, prompt, call.arguments.get("attention_mask"), max_chars=limit)
    outputs = messages.output_messages(target.tokenizer, generated.rows, generated.reasons, max_chars=limit) if generated else []
    return inputs, outputs


def _produced(call: GenerateCall) -> int | None:
    """Tokens that a failed request had produced: known for one row, which cannot have ended before; 0 before the first."""
    if not call.loops:
        return None
    loop = call.loops[-1]
    if len(call.loops) > 1 or loop.beams > 1 or (loop.rows or 1) > 1:
        return None
    return (loop.width or 0) - loop.prompt_width if loop.prompt_width is not None else 0


def _unobserved(call: GenerateCall) -> str | None:
    reasons = [call.target.unobserved] if call.target.unobserved else []
    if call.compiled and call.target.engine.expected:
        chunked = getattr(call.config, "prefill_chunk_size", None) is not None
        reasons.append("modules: compiled" if chunked else "modules of decode steps: compiled")
    if any(loop.assisted for loop in call.loops) and call.ring is not None:
        reasons.append("logits: several tokens a step")
    if call.sharded:
        reasons.append("logits: sharded")
    return "; ".join(reasons) or None


def describe_end(call: GenerateCall, result: Any, failure: Failure | None, now: int) -> RequestEnd:
    """The end record of ``call``, whose ``generate()`` returned ``result`` or failed."""
    generated: Generated | None = None
    inputs: list[int] | None = None
    with contain("counting input tokens"):
        inputs = _input_rows(call)
    if failure is None:
        with contain("counting output tokens"):
            generated = _generated(call, result)
    split = Modalities({}, {}, "text" if call.target.text_only else "unknown")
    with contain("counting tokens by modality"):
        split = _modalities(call, inputs)
    produced = _produced(call) if failure is not None else None
    attributes: dict[str, AttributeValue] = {}
    with contain("attributes of generate()"):
        attributes |= _configuration(call)
    intervals = _intervals(call, MAX_TOKENS_IN_ARRAYS)
    with contain("attributes of generate()"):
        attributes |= _latencies(call, generated, inputs, now)
        attributes |= _arrays(call, generated, intervals)
    attributes[semconv.DECODE_STEPS] = call.decode_steps
    rows = len(inputs) if inputs else _rows(call)
    if rows:
        attributes[semconv.BATCH_SIZE] = rows
    if inputs:
        attributes[semconv.SEQUENCE_INPUT_TOKENS] = inputs[:MAX_ROWS]
    if generated:
        attributes[semconv.SEQUENCE_OUTPUT_TOKENS] = generated.counts[:MAX_ROWS]
        attributes[semconv.FINISH_REASONS] = generated.reasons[:MAX_ROWS]
    elif failure is not None and rows:
        attributes[semconv.FINISH_REASONS] = [semconv.FINISH_ERROR] * min(MAX_ROWS, rows * (call.loops[0].returned if call.loops else 1))
    for key, value in (
        (semconv.KV_CACHE_BYTES, call.cache_bytes),
        (semconv.KV_CACHE_REUSED_TOKENS, call.reused),
        (semconv.UNOBSERVED, _unobserved(call)),
    ):
        if value is not None:
            attributes[key] = value
    if call.nonfinite:
        attributes[semconv.NONFINITE] = True
    if call.memory is not None:
        with contain("memory reading"):
            attributes |= call.memory.attributes()
    if call.warmup or compiled_graphs() > call.graphs:
        attributes[semconv.WARMUP] = True
    if call.part is not None and call.part.steps:
        attributes[semconv.PROFILER_STEPS] = call.part.steps
    if call.energy is not None:
        with contain("energy reading"):
            joules = call.energy.end(now=now)
            if joules is not None:
                attributes[semconv.ENERGY] = joules
                if generated and sum(generated.counts):
                    attributes[semconv.ENERGY_PER_OUTPUT_TOKEN] = joules / sum(generated.counts)
    if call.target.ids_on_spans and generated and generated.rows:
        attributes[semconv.TOKEN_IDS] = generated.rows[0][:MAX_TOKENS_IN_ARRAYS]
    prompt_messages: Sequence[Message] = ()
    output_messages: Sequence[Message] = ()
    with contain("content"):
        prompt_messages, output_messages = _content(call, generated)
    ttft, tpot = attributes.get(semconv.TTFT), attributes.get(semconv.TPOT)
    return RequestEnd(
        end_ns=call.epoch(now),
        failure=failure,
        attributes=attributes,
        input_tokens=sum(inputs) if inputs else None,
        output_tokens=sum(generated.counts) if generated else produced,
        longest_output=max(generated.counts, default=None) if generated else None,
        time_to_first_token=ttft if isinstance(ttft, float) else None,
        time_per_output_token=tpot if isinstance(tpot, float) else None,
        chunk_intervals=_intervals(call)[1:] if attributes.get(semconv.REQUEST_STREAM) else (),
        batch_size=rows,
        kv_cache_bytes=call.cache_bytes,
        step_seconds=call.seconds,
        entropies=call.entropies,
        top1_probabilities=call.top1_probabilities,
        nonfinite=call.nonfinite,
        spans_dropped=call.budget.dropped,
        overhead_ns=call.overhead,
        streaming=bool(attributes.get(semconv.REQUEST_STREAM)),
        modality="text" if call.target.text_only else "unknown",
        output_modality=split.generated,
        input_split=split.given,
        cached_split=split.cached,
        input_messages=prompt_messages,
        output_messages=output_messages,
    )


def _intervals(call: GenerateCall, most: int | None = None) -> list[float]:
    """Seconds between tokens, at most so many; the first is the time to the first token."""
    return [(after - before) / 1e9 for before, after in pairwise([call.start, *call.token_times[:most]])]


def _rows(call: GenerateCall) -> int | None:
    """Rows of the caller's batch where the prompt has no tokens: the first axis of whatever the model takes."""
    for name in ("inputs", "input_ids", "inputs_embeds", "input_features", "pixel_values", "input_values"):
        value = call.arguments.get(name)
        if isinstance(value, Tensor) and value.dim():
            return int(value.shape[0])
    loop: Loop | None = call.loops[0] if call.loops else None
    return max(1, loop.rows // max(1, loop.beams, loop.returned)) if loop is not None and loop.rows else None
