"""Builds the end record of a request with steps from its outcome and its measurements.

In: an ``Outcome``, as the adapter of the loop gives it, and the ``Measured`` of the recording. Out: one ``RequestEnd``, without
unknown values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from inferspan import semconv
from inferspan.capture.outcome import Outcome
from inferspan.guard import contain
from inferspan.records import AttributeValue, RequestEnd

__all__ = ["MAX_TOKENS_IN_ARRAYS", "Measured", "describe_end"]

MAX_ROWS = 1024
"""Entries of one per-sequence array on a request span."""
MAX_TOKENS_IN_ARRAYS = 1024
"""Values of one per-token array on a request span."""


class Measured(NamedTuple):
    """Measurements of a request. Times are readings of one monotonic clock, in nanoseconds.

    ``arrays``: whether per-token arrays are wanted; ``content``: whether spans may carry token ids; ``decode``: gives their texts;
    ``attributes``: readings of the machine (memory, profiler, warm-up) that stand on the span as they are.
    """

    start: int
    end: int
    offset: int
    """Added to a reading, gives nanoseconds since the epoch."""
    first_token: int | None
    token_times: Sequence[int]
    token_counts: Sequence[int]
    """Tokens that came at each of these times; empty if it was one each time."""
    step_seconds: Mapping[str, Sequence[float]]
    logprobs: Sequence[float]
    entropies: Sequence[float]
    top1_probabilities: Sequence[float]
    nonfinite: Mapping[tuple[str, str], int]
    attributes: Mapping[str, AttributeValue]
    step_rows: float | None
    """Sequences in a step, on average, where the adapter has told of each."""
    joules: float | None
    unobserved: Sequence[str]
    dropped: int
    overhead: int
    arrays: bool
    content: bool
    decode: Callable[[int], str] | None = None


def _latencies(outcome: Outcome, measured: Measured) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    duration = (measured.end - measured.start) / 1e9
    inputs, outputs = outcome.input_tokens, outcome.output_tokens
    if measured.first_token is not None:
        ttft = (measured.first_token - measured.start) / 1e9
        attributes[semconv.TTFT] = ttft
        computed = sum(inputs) - (outcome.reused_tokens or 0) * len(inputs) if inputs else 0
        if computed > 0 and ttft > 0:
            attributes[semconv.PREFILL_TOKENS_PER_SECOND] = computed / ttft
        longest = max(outputs, default=0) if outputs else 0
        if longest > 1:
            attributes[semconv.TPOT] = (duration - ttft) / (longest - 1)
    if outputs and sum(outputs) and duration > 0:
        attributes[semconv.TOKENS_PER_SECOND] = sum(outputs) / duration
    return attributes


def _intervals(measured: Measured, most: int | None = None) -> list[float]:
    """Seconds between tokens, at most so many; the first is the time to the first token."""
    return [(after - before) / 1e9 for before, after in pairwise([measured.start, *measured.token_times[:most]])]


def _by_token(intervals: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Intervals, one for each token: those that come together with another one take no time of their own."""
    if len(counts) != len(intervals):
        return [*intervals]
    return [seconds for interval, count in zip(intervals, counts, strict=True) for seconds in (interval, *[0.0] * (count - 1))]


def _arrays(outcome: Outcome, measured: Measured) -> dict[str, AttributeValue]:
    if not measured.arrays:
        return {}
    intervals = _intervals(measured, MAX_TOKENS_IN_ARRAYS)
    if measured.token_counts:
        intervals = _by_token(intervals, measured.token_counts[:MAX_TOKENS_IN_ARRAYS])
    attributes: dict[str, AttributeValue] = {}
    first = outcome.output_tokens[0] if outcome.output_tokens else None
    kept = len(intervals)
    most = min(MAX_TOKENS_IN_ARRAYS, first) if first is not None and outcome.tokens_of_first_row else MAX_TOKENS_IN_ARRAYS
    rows: list[tuple[str, Sequence[float]]] = [(semconv.TOKEN_INTERVALS, intervals)]
    if outcome.tokens_of_first_row:
        rows += [(semconv.TOKEN_LOGPROBS, measured.logprobs), (semconv.TOKEN_ENTROPIES, measured.entropies)]
    for key, values in rows:
        shown = values[:most]
        if shown:
            attributes[key] = shown
            kept = min(kept, len(shown))
    if attributes and first is not None and kept < first:
        attributes[semconv.TOKENS_TRUNCATED] = True
    return attributes


def _sequences(outcome: Outcome, rows: int | None) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    if rows:
        attributes[semconv.BATCH_SIZE] = rows
    if outcome.input_tokens:
        attributes[semconv.SEQUENCE_INPUT_TOKENS] = outcome.input_tokens[:MAX_ROWS]
    if outcome.output_tokens is not None:
        attributes[semconv.SEQUENCE_OUTPUT_TOKENS] = outcome.output_tokens[:MAX_ROWS]
    if outcome.finish_reasons is not None:
        attributes[semconv.FINISH_REASONS] = outcome.finish_reasons[:MAX_ROWS]
    elif outcome.failure is not None and rows:
        attributes[semconv.FINISH_REASONS] = [semconv.FINISH_ERROR] * min(MAX_ROWS, rows * outcome.returned)
    return attributes


def _readings(outcome: Outcome, measured: Measured) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    for key, value in (
        (semconv.KV_CACHE_BYTES, outcome.cache_bytes),
        (semconv.KV_CACHE_REUSED_TOKENS, outcome.reused_tokens),
        (semconv.SPECULATIVE_DRAFTED, outcome.drafted_tokens),
        (semconv.SPECULATIVE_ACCEPTED, outcome.accepted_tokens),
        (semconv.UNOBSERVED, "; ".join(measured.unobserved) or None),
    ):
        if value is not None:
            attributes[key] = value
    if outcome.drafted_tokens and outcome.accepted_tokens is not None:
        attributes[semconv.SPECULATIVE_ACCEPTANCE] = outcome.accepted_tokens / outcome.drafted_tokens
    attributes.update(measured.attributes)
    if measured.joules is not None:
        attributes[semconv.ENERGY] = measured.joules
        tokens = sum(outcome.output_tokens) if outcome.output_tokens else 0
        if tokens:
            attributes[semconv.ENERGY_PER_OUTPUT_TOKEN] = measured.joules / tokens
    if measured.content and outcome.sequences and outcome.sequences[0]:
        attributes[semconv.TOKEN_IDS] = outcome.sequences[0][:MAX_TOKENS_IN_ARRAYS]
    return attributes


def describe_end(outcome: Outcome, measured: Measured) -> RequestEnd:
    """The end record of a request; a part of it that cannot be made is left out."""
    attributes: dict[str, AttributeValue] = dict(outcome.attributes)
    inputs, outputs = outcome.input_tokens, outcome.output_tokens
    rows = len(inputs) if inputs else outcome.rows
    with contain("attributes of a request"):
        attributes |= _latencies(outcome, measured)
        attributes |= _arrays(outcome, measured)
    if outcome.unseen_steps is not None:
        # Of those that were not seen, one was the prefill if that was not seen either.
        prefill = 0 if measured.step_seconds.get(semconv.SPAN_PREFILL) or not outcome.unseen_steps else 1
        attributes[semconv.DECODE_STEPS] = len(measured.step_seconds.get(semconv.SPAN_DECODE, ())) + outcome.unseen_steps - prefill
    with contain("attributes of a request"):
        attributes |= _sequences(outcome, rows)
        attributes |= _readings(outcome, measured)
    ttft, tpot = attributes.get(semconv.TTFT), attributes.get(semconv.TPOT)
    streaming = bool(attributes.get(semconv.REQUEST_STREAM))
    return RequestEnd(
        end_ns=measured.end + measured.offset,
        failure=outcome.failure,
        attributes=attributes,
        input_tokens=sum(inputs) if inputs else None,
        output_tokens=sum(outputs) if outputs is not None else outcome.produced,
        longest_output=max(outputs, default=None) if outputs is not None else None,
        time_to_first_token=ttft if isinstance(ttft, float) else None,
        time_per_output_token=tpot if isinstance(tpot, float) else None,
        chunk_intervals=_intervals(measured)[1:] if streaming else (),
        batch_size=rows,
        kv_cache_bytes=outcome.cache_bytes,
        step_seconds=measured.step_seconds,
        entropies=measured.entropies,
        top1_probabilities=measured.top1_probabilities,
        token_entropies=measured.entropies[: outputs[0]] if outcome.tokens_of_first_row and outputs else (),
        nonfinite=measured.nonfinite,
        spans_dropped=measured.dropped,
        overhead_ns=measured.overhead,
        streaming=streaming,
        step_rows=measured.step_rows if outcome.step_rows is None else outcome.step_rows,
        drafted_tokens=outcome.drafted_tokens,
        accepted_tokens=outcome.accepted_tokens,
        modality=outcome.modality,
        output_modality=outcome.output_modality,
        input_split=outcome.input_split,
        cached_split=outcome.cached_split,
        input_messages=outcome.input_messages,
        output_messages=outcome.output_messages,
        sequences=outcome.sequences,
        figures=outcome.figures,
        nonfinite_logits=outcome.nonfinite_logits,
        decode=measured.decode,
    )
