"""Decoding: steps that wait for the host, that wait for memory, that grow with the cache, and time between steps."""

from __future__ import annotations

from collections.abc import Iterator

from inferspan import semconv
from inferspan.text.quantities import bytes_text, seconds_text

from ..cause import LIKELY, POSSIBLE, SURE, Cause, Part, shown_by
from ..figures import Figures
from ..requests import Phase, Request, median
from ..spans import SpanLike, number, taken, text, whole
from ..wording import percent, times

__all__ = ["draft_rejected", "kv_growth", "launch_bound", "outside_steps", "weights_bound"]

GPU_BUSY = {semconv.HW_GPU_TASK: "general"}
_MUCH = 0.3
"""Share of the time that a phase must have for a rule about it."""
_BUSY = 0.6
"""Share of a step that kernels take, or of the time that a GPU is busy, below which the host is the limit."""
_FEW_ROWS = 8
_GROWTH = 1.5
"""Last quarter of the steps of a request to the first, in time and in length."""
_LONG = 64
_OUTSIDE = 0.5
"""Share of a phase outside of its steps."""
_SOME = 0.25
"""Time between steps that there is in any case, as a share of the steps."""
_LITTLE_ACCEPTED = 0.4
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "float64": 64}


def launch_bound(figures: Figures) -> Iterator[Cause]:
    """Phases in which the device waits for the host to launch kernels."""
    for name in (semconv.SPAN_DECODE, semconv.PHASE_FORWARD, semconv.SPAN_PREFILL):
        phases = [phase for request in figures.requests if request.on_gpu for phase in request.phases if phase.name == name]
        seconds = sum(phase.step_seconds or 0.0 for phase in phases)
        if not phases or seconds < _MUCH * figures.total:
            continue
        bounds = [found for phase in phases for span in (phase.span, *phase.steps) if (found := text(span, semconv.DEVICE_BOUND))]
        busy, shown, from_where, sure = _busy(figures, phases, name)
        if bounds:
            if bounds.count("launch") * 2 <= len(bounds):
                continue
            sure = SURE
        elif busy is None or busy >= _BUSY:
            continue
        compiled = any(text(one.span, semconv.MODEL_COMPILE_MODE) not in (None, "none") for one in figures.requests)
        static = any(text(one.span, semconv.MODEL_CACHE) == "static" for one in figures.requests)
        waiting = seconds * (1 - busy) if busy is not None else None
        told = f"the device works {percent(busy)} of it ({from_where})" if busy is not None else "estimated kernel time is well below it"
        yield Cause(
            rule="launch_bound",
            title=f"{name} waits for the host to launch kernels: {told}",
            place=name,
            seconds=seconds if waiting is None else waiting,
            gain=waiting,
            basis="estimated",
            sure=sure,
            figures={
                "step_seconds": seconds, "busy_share": busy, "busy_source": from_where if busy is not None else None,
                "steps_bound_by_launch": bounds.count("launch") or None, "steps_with_bound": len(bounds) or None, "compiled": compiled,
            },
            spans=shown_by(shown or [step for phase in phases for step in phase.steps]),
            advice=_launch_advice(name, compiled=compiled, static=static),
            setting='generate(..., cache_implementation="static")' if name == semconv.SPAN_DECODE and not static
            else 'torch.compile(model, mode="reduce-overhead")',
        )  # fmt: skip


def _launch_advice(name: str, *, compiled: bool, static: bool) -> str:
    if compiled:
        return "Let CUDA graphs launch the whole pass: compile for reduced overhead and keep shapes fixed; else use larger batches."
    if name == semconv.SPAN_DECODE and not static:
        return (
            "Use a static cache, for which generate() compiles the decode step, so that one launch runs many kernels; else use larger"
            " batches."
        )
    return "Compile the model, so that one launch runs many kernels, or use larger batches."


def _busy(figures: Figures, phases: list[Phase], name: str) -> tuple[float | None, list[SpanLike], str, str]:
    """Share of the steps in which the device works, steps that show it, where it is from, and how sure it is."""
    profiled = [step for phase in phases for step in phase.steps if number(step, semconv.PROFILER_KERNEL_TIME) and step.seconds > 0]
    if profiled:
        shares = [min(1.0, (number(step, semconv.PROFILER_KERNEL_TIME) or 0.0) / taken(step)) for step in profiled]
        return median(shares), profiled, "kernels of profiled steps", SURE
    utilization = figures.metrics.mean(semconv.M_GPU_UTILIZATION, GPU_BUSY)
    # The reading is of the whole time: it belongs to the steps only where these are most of it.
    in_steps = sum(phase.step_seconds or 0.0 for phase in phases)
    if utilization is not None and figures.wall > 0 and in_steps >= 0.7 * figures.wall:
        return min(1.0, utilization * figures.wall / in_steps), [], f"GPU utilisation during {name}", LIKELY
    return None, [], "", POSSIBLE


def weights_bound(figures: Figures) -> Iterator[Cause]:
    """Decode steps of few rows that read all weights for each of them."""
    phases = _decode(figures)
    seconds = sum(phase.step_seconds or 0.0 for _, phase in phases)
    if not phases or seconds < _MUCH * figures.total:
        return
    rows = sum(request.rows * phase.ran for request, phase in phases) / max(1, sum(phase.ran for _, phase in phases))
    bits = min((_bits(request) for request, _ in phases), default=32)
    if rows > _FEW_ROWS:
        return
    bounds = [found for _, phase in phases for span in (phase.span, *phase.steps) if (found := text(span, semconv.DEVICE_BOUND))]
    spans = [span for _, phase in phases for span in (phase.span, *phase.steps)]
    peaks = [share for span in spans if (share := number(span, semconv.DEVICE_PEAK_SHARE)) is not None]
    activity = figures.metrics.mean(semconv.M_MEMORY_ACTIVITY)
    if bounds:
        if bounds.count("memory") * 2 <= len(bounds):
            return
    elif activity is None or activity < 0.5:
        return
    cache = max((whole(request.span, semconv.KV_CACHE_BYTES) or 0 for request, _ in phases), default=0)
    weights = max((_weights(request) for request, _ in phases), default=0.0)
    if weights and cache > weights:
        return  # then the cache is what is read
    busy = f", whose bus is busy {percent(activity)} of the time" if activity else ""
    reached = f" at {percent(median(peaks))} of its peak" if peaks else busy
    quantized = bits < 16
    part = weights / (weights + cache) if weights else 1.0
    yield Cause(
        rule="weights_bound",
        title=f"decode reads {bytes_text(weights) if weights else 'all weights'} for each step of {rows:.2g} rows:"
        f" memory is the limit{reached}",
        place=semconv.SPAN_DECODE,
        seconds=seconds,
        gain=None if quantized else seconds * part * (1 - _next_bits(bits) / bits),
        basis="estimated",
        sure=SURE if bounds else LIKELY,
        figures={
            "step_seconds": seconds, "rows": rows, "weights_bytes": weights or None, "cache_bytes": cache or None, "bits": bits,
            "peak_share": median(peaks) if peaks else None, "memory_activity": activity,
        },
        spans=shown_by(step for _, phase in phases for step in phase.steps),
        advice="Decode more requests together: a step of more rows reads the weights once for all of them."
        + ("" if quantized else f" Quantized to {_next_bits(bits)} bits, a step reads that much less."),
        setting="generate_batch() or larger batches" + ("" if quantized else "; from_pretrained(..., quantization_config=...)"),
    )  # fmt: skip


def _next_bits(bits: int) -> int:
    return 16 if bits >= 32 else 8


def _bits(request: Request) -> int:
    given = whole(request.span, semconv.MODEL_QUANTIZATION_BITS)
    return given or _BITS.get(text(request.span, semconv.MODEL_DTYPE) or "", 16)


def _weights(request: Request) -> float:
    return (whole(request.span, semconv.MODEL_PARAMETERS) or 0) * _bits(request) / 8


def kv_growth(figures: Figures) -> Iterator[Cause]:
    """Decode steps that become slower as the sequence becomes longer."""
    extra, all_seconds, shown, growth, lengths, cache = 0.0, 0.0, [], [], [], 0
    for request, phase in _decode(figures):
        steps = [step for step in phase.steps if whole(step, semconv.SEQUENCE_LENGTH)]
        if len(steps) < _LONG:
            continue
        quarter = len(steps) // 4
        first, last = steps[:quarter], steps[-quarter:]
        begin, end = median(map(taken, first)), median(map(taken, last))
        longer = (whole(last[-1], semconv.SEQUENCE_LENGTH) or 0) / (whole(first[0], semconv.SEQUENCE_LENGTH) or 1)
        if begin <= 0 or end < _GROWTH * begin or longer < _GROWTH:
            continue
        # Median of each quarter, so that single slow steps are no growth.
        quarters = [median(map(taken, steps[at * quarter : (at + 1) * quarter])) for at in range(4)]
        extra += sum(max(0.0, one - begin) for one in quarters) / 4 * phase.ran
        all_seconds += phase.step_seconds or 0.0
        growth.append(end / begin)
        lengths.append(whole(last[-1], semconv.SEQUENCE_LENGTH) or 0)
        cache = max(cache, whole(request.span, semconv.KV_CACHE_BYTES) or 0)
        shown.extend(last[-3:])
    if not growth or extra < 0.05 * figures.total:
        return
    yield Cause(
        rule="kv_growth",
        title=f"decode steps become {times(median(growth))} as long as at the start while the sequence grows to {max(lengths):,} tokens",
        place=semconv.SPAN_DECODE,
        seconds=extra,
        gain=extra,
        basis="at most",
        sure=SURE,
        figures={"growth": median(growth), "length": max(lengths), "cache_bytes": cache or None, "step_seconds": all_seconds},
        spans=shown_by(shown),
        advice="Bound what each step reads: a sliding window, a quantized cache, a shorter context, or attention that reads the cache once"
        " (sdpa, flash_attention_2).",
        setting='generate(..., cache_implementation="quantized")',
    )


def outside_steps(figures: Figures) -> Iterator[Cause]:
    """Time of prefill and decode in which the model does not run: preparation, choice of tokens, streamers, stopping criteria."""
    for name in (semconv.SPAN_DECODE, semconv.SPAN_PREFILL):
        found = [
            (request, phase, phase.seconds - phase.stage_seconds - inside)
            for request in figures.requests
            for phase in request.phases
            if phase.name == name and (inside := phase.step_seconds) is not None and _whole_steps(request, phase)
        ]
        seconds = sum(max(0.0, outside) for _, _, outside in found)
        usual = sum(phase.typical_seconds for _, phase, _ in found)
        whole_time = sum(phase.seconds for _, phase, _ in found)
        # Compared with typical steps: a few that were held up say nothing about the time between them.
        if not found or seconds < _OUTSIDE * (seconds + usual) or seconds < 0.15 * figures.total:
            continue
        steps = sum(phase.ran for _, phase, _ in found)
        nested = sum(span.seconds for request, _, _ in found for span in request.nested)
        if nested > 0.5 * seconds:
            continue  # a draft model, which has its rule
        decode = name == semconv.SPAN_DECODE
        where = "between the steps of the model" if decode else "before and after its passes"
        yield Cause(
            rule="outside_steps",
            title=f"{percent(seconds / whole_time)} of {name} is {where}, {seconds_text(seconds / max(1, steps))} for each",
            place=name,
            seconds=seconds,
            gain=max(0.0, seconds - _SOME * usual),
            sure=SURE,
            figures={"outside_seconds": seconds, "phase_seconds": whole_time, "steps": steps, "seconds_per_step": seconds / max(1, steps)},
            spans=shown_by(phase.span for _, phase, _ in found),
            advice="Look at what runs on the host there: logits processors, stopping criteria, the streamer and its reader."
            if decode else "Look at what generate() does before the model runs: preparation of inputs, moving them, making a large cache.",
            setting="generate(logits_processor=..., stopping_criteria=..., streamer=...)" if decode else "generate(...) and its inputs",
        )  # fmt: skip


def _whole_steps(request: Request, phase: Phase) -> bool:
    """Whether the time of steps is known: on a device, the host only launches them, and waits between them."""
    return not request.on_gpu or any(number(step, semconv.DEVICE_TIME) is not None for step in phase.steps)


def draft_rejected(figures: Figures) -> Iterator[Cause]:
    """Speculative decoding whose drafts are mostly rejected."""
    found = [one for one in figures.requests if number(one.span, semconv.SPECULATIVE_ACCEPTANCE) is not None]
    if not found:
        return
    drafted = sum(number(request.span, semconv.SPECULATIVE_DRAFTED) or 0.0 for request in found)
    accepted = sum(number(request.span, semconv.SPECULATIVE_ACCEPTED) or 0.0 for request in found)
    if not drafted or accepted / drafted >= _LITTLE_ACCEPTED:
        return
    share = accepted / drafted
    drafts = sum(span.seconds for request in found for span in request.nested)
    outside = sum(
        max(0.0, phase.seconds - phase.step_seconds)
        for request in found for phase in request.phases
        if phase.name == semconv.SPAN_DECODE and phase.step_seconds is not None
    )  # fmt: skip
    seconds = drafts or outside
    yield Cause(
        rule="draft_rejected",
        title=f"of {drafted:,.0f} drafted tokens {percent(share)} are accepted: drafting costs more than it saves",
        place=semconv.SPAN_DECODE,
        seconds=seconds,
        gain=seconds * (1 - share),
        sure=SURE if drafts else LIKELY,
        figures={"acceptance": share, "drafted": drafted, "accepted": accepted, "draft_seconds": drafts or None},
        spans=shown_by(request.span for request in found),
        parts=[Part("draft model", drafts)] if drafts else [],
        advice="Use a draft model that resembles the model, draft fewer tokens, or none.",
        setting="generate(..., assistant_model=..., num_assistant_tokens=...)",
    )


def _decode(figures: Figures) -> list[tuple[Request, Phase]]:
    return [(request, phase) for request in figures.requests if (phase := request.phase(semconv.SPAN_DECODE)) is not None and phase.steps]
