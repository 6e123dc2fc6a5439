"""The prompt: passes that take most of the time, and what of them could be spared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from inferspan import semconv

from ..cause import LIKELY, SURE, Cause, shown_by
from ..figures import Figures
from ..requests import Request
from ..spans import SpanLike, number, text, whole
from ..wording import percent

__all__ = ["long_prefill", "slow_encoder"]

_MUCH = 0.4
_LONG = 256
"""Tokens of a row."""
_ENCODERS = (semconv.STAGE_VISION_ENCODE, semconv.STAGE_AUDIO_ENCODE, semconv.STAGE_TEXT_ENCODE, semconv.STAGE_VAE_DECODE)
_LONGEST_TEXT = 20_000
_MOST_TEXTS = 500


def long_prefill(figures: Figures) -> Iterator[Cause]:
    """Passes over long prompts that take most of the time."""
    found = [
        (request, phase) for request in figures.requests if (phase := request.phase(semconv.SPAN_PREFILL)) is not None
    ]
    rows = sum(request.rows for request, _ in found)
    reused = sum(number(request.span, semconv.CACHE_READ_INPUT_TOKENS) or 0.0 for request, _ in found)
    tokens = sum(number(request.span, semconv.INPUT_TOKENS) or 0.0 for request, _ in found) - reused
    seconds = sum(phase.step_seconds if phase.step_seconds is not None else phase.seconds for _, phase in found)
    if not rows or tokens / rows < _LONG or seconds < _MUCH * figures.total:
        return
    padded = _padding(found)
    alike = _alike([request for request, _ in found if not number(request.span, semconv.CACHE_READ_INPUT_TOKENS)])
    batching = any(request.queue for request, _ in found)
    advice = "Keep the keys and values of what prompts have in common and pass them as past_key_values."
    if batching:
        advice += " Divide long prompts into chunks, so that other requests decode meanwhile."
    seconds *= 1 - padded
    gain = seconds * alike if alike else None
    yield Cause(
        rule="long_prefill",
        title=f"prefill takes {percent(seconds / figures.total)} of the time, for {tokens / rows:,.0f} tokens of the prompt a row"
        + (f", of which {percent(alike)} begin alike" if alike else ""),
        place=semconv.SPAN_PREFILL,
        seconds=seconds,
        gain=gain,
        sure=SURE,
        figures={
            "prefill_seconds": seconds, "computed_tokens": tokens, "tokens_per_row": tokens / rows, "reused_tokens": reused or None,
            "common_share": alike, "prefill_tokens_per_second": tokens / seconds if seconds else None,
        },
        spans=shown_by(phase.span for _, phase in found),
        advice=advice,
        setting="ContinuousBatchingConfig(max_batch_tokens=...)" if batching else "generate(..., past_key_values=...)",
    )  # fmt: skip


def _padding(found: Sequence[tuple[Request, object]]) -> float:
    """Share of the positions that are padding, which has its own rule."""
    real = padded = 0.0
    for request, _ in found:
        width, inputs = request.width, request.inputs
        if width and inputs and not whole(request.span, semconv.KV_CACHE_REUSED_TOKENS):
            real += sum(inputs)
            padded += width * len(inputs)
    return 1 - real / padded if padded > real else 0.0


def _alike(requests: list[Request]) -> float | None:
    """Share of the prompts that begin as an earlier one did, by their texts; ``None`` without captured content."""
    texts = [found for request in requests[:_MOST_TEXTS] if (found := _prompt(request.span))]
    if len(texts) < 2:
        return None
    seen: list[str] = []
    shared = 0
    for one in texts:
        shared += max((_common(one, other) for other in seen[-50:]), default=0)
        seen.append(one)
    share = shared / sum(map(len, texts))
    return share if share >= 0.1 else None


def _common(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _prompt(span: SpanLike) -> str:
    """The text of a prompt; of a batch that of its rows in order."""
    given = span.attributes.get(semconv.INPUT_MESSAGES)
    try:
        messages = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return ""
    parts: list[str] = []
    waiting = [messages]
    while waiting and len(parts) < 1_000:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += [value for key, value in reversed(one.items()) if key in ("parts", "content")]
        elif isinstance(one, list | tuple):
            waiting += reversed(one)
        elif isinstance(one, str):
            parts.append(one)
    return "\n".join(parts)[:_LONGEST_TEXT]


def slow_encoder(figures: Figures) -> Iterator[Cause]:
    """An encoder or decoder of a multimodal model or pipeline that takes most of the time."""
    for name in _ENCODERS:
        spans = _stages(figures, name)
        seconds = sum(span.seconds for span in spans)
        if not spans or seconds < _MUCH * figures.total:
            continue
        yield Cause(
            rule="slow_encoder",
            title=f"{name} takes {percent(seconds / figures.total)} of the time, in {len(spans):,} calls",
            place=name if any(phase.name == name for request in figures.requests for phase in request.phases) else semconv.SPAN_PREFILL,
            seconds=seconds,
            gain=seconds,
            basis="at most",
            sure=LIKELY,
            figures={"seconds": seconds, "calls": len(spans)},
            spans=shown_by(spans),
            advice="Decode in tiles or with a smaller decoder." if name == semconv.STAGE_VAE_DECODE
            else "Keep encodings that come again, give it smaller or fewer inputs, or compile it alone.",
        )  # fmt: skip


def _stages(figures: Figures, name: str) -> list[SpanLike]:
    """Spans of a stage of the model: phases of their own, or inside of a phase or step."""
    found: dict[int, SpanLike] = {}
    for request in figures.requests:
        for phase in request.phases:
            for span in (phase.span, *phase.span.children, *(child for step in phase.steps for child in step.children)):
                if text(span, semconv.STAGE_NAME) == name:
                    found[id(span)] = span
    return list(found.values())
