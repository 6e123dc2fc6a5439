"""The totals of a request as attributes of its span: tokens, and the latencies that vLLM and SGLang have names for."""

from __future__ import annotations

from inferspan import semconv
from inferspan.records import AttributeValue, RequestEnd, RequestStart

__all__ = ["usage_attributes", "vllm_latency"]


def vllm_latency(start: RequestStart, end: RequestEnd) -> dict[str, AttributeValue]:
    """The latencies of a request under the names of vLLM and SGLang."""
    seconds = {phase: sum(values) for phase, values in end.step_seconds.items()}
    prefill, decode = seconds.get(semconv.SPAN_PREFILL, 0.0), seconds.get(semconv.SPAN_DECODE, 0.0)
    if end.time_in_queue is not None:
        # Steps are shared with other requests, so what counts are the phases.
        first = end.time_to_first_token or (end.end_ns - start.start_ns) / 1e9
        prefill, decode = first - end.time_in_queue, (end.end_ns - start.start_ns) / 1e9 - first
    found: dict[str, AttributeValue] = {
        semconv.LATENCY_E2E: (end.end_ns - start.start_ns) / 1e9,
        semconv.LATENCY_PREFILL: prefill,
        semconv.LATENCY_DECODE: decode,
        semconv.LATENCY_INFERENCE: prefill + decode,
    }
    if end.time_in_queue is not None:
        found[semconv.LATENCY_QUEUE] = end.time_in_queue
    if end.time_to_first_token is not None:
        found[semconv.LATENCY_TTFT] = end.time_to_first_token
    return found


def usage_attributes(end: RequestEnd) -> dict[str, AttributeValue]:
    """Tokens as a span has them: totals, and parts by modality, which agree with the usage counters."""
    found: dict[str, AttributeValue] = {}
    for total, key, parts, keys in (
        (end.input_tokens, semconv.INPUT_TOKENS, end.input_by_modality, semconv.INPUT_BY_MODALITY),
        (end.output_tokens, semconv.OUTPUT_TOKENS, end.output_by_modality, semconv.OUTPUT_BY_MODALITY),
    ):
        if total is not None:
            found[key] = total
            found |= {keys[modality]: tokens for modality, tokens in parts.items() if tokens and modality in keys}
    if end.cached_split:
        found[semconv.CACHE_READ_INPUT_TOKENS] = sum(end.cached_split.values())
    return found
