"""Telemetry as it arrives -> the figures of a live display, in bounded memory.

In come decoded OTLP JSON objects (a line of a session file, or a message of a receiver), of any number of processes. Out come requests
as they end, and a ``Snapshot``: requests that run, rates over a window, percentiles, readings of the machine, modules by time, warnings.
A figure that nobody has sent is ``None``.

Time is that of the newest telemetry, going on by our clock: rates of a file that is read later, or of a host with another clock, are right.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.analysis.levels import MODULE, PHASE, REQUEST, STEP, level_of, module_operation
from inferspan.metrics.summary import percentile
from inferspan.report.otlp_lines import Value, attributes_of, moment, number, objects, text_of, whole_number
from inferspan.report.running.machine import Machine

from .readings import Readings
from .tokens import Token, Tokens

__all__ = ["Ended", "Figures", "Hot", "Snapshot"]

WINDOW = 60.0
"""Seconds of the rates and percentiles."""
_MOST_ENDED = 4096
_MOST_MODULES = 2000
_MOST_WARNINGS = 100
_ERROR_CODES = (2, "2", "STATUS_CODE_ERROR")
_STEPS = (semconv.SPAN_PREFILL_STEP, semconv.SPAN_DECODE_STEP)
_MOST_HELD = 256
"""Requests that wait for tokens of theirs; a source that is never idle must not fill the memory."""


class Ended(NamedTuple):
    """A request that has ended; times in seconds, ``end_ns`` in nanoseconds since the epoch, 0 if it is not known."""

    name: str
    end_ns: int
    seconds: float | None
    input_tokens: int | None
    output_tokens: int | None
    ttft: float | None
    tpot: float | None
    finish_reasons: tuple[str, ...]
    error_type: str | None
    failed: bool
    findings: tuple[str, ...]
    service: str
    tokens: tuple[Token, ...]
    """Text and probability of the tokens of the first sequence, as far as they were captured."""


class Hot(NamedTuple):
    """A module, the seconds that its recorded calls took together, and their number; ``device`` if it is device time."""

    name: str
    seconds: float
    calls: int
    device: bool


class Snapshot(NamedTuple):
    """The figures at a moment; rates and percentiles are of the requests that ended in the last ``window`` seconds."""

    services: tuple[str, ...]
    running: int | None
    ended: int
    failed: int
    window: float
    requests_per_second: float | None
    tokens_per_second: float | None
    ttft: tuple[float, float] | None
    tpot: tuple[float, float] | None
    machines: tuple[Machine, ...]
    hottest: tuple[Hot, ...]
    warnings: tuple[tuple[str, int], ...]
    age: float | None
    """Seconds since something arrived last."""


@dataclass(slots=True)
class _Span:
    name: str
    attributes: Mapping[str, Any]


class Figures:
    """Takes telemetry in, from several threads if need be, and says how things stand.

    Args:
        window: seconds that rates and percentiles look back.
        clock: monotonic seconds.
    """

    def __init__(self, *, window: float = WINDOW, clock: Callable[[], float] = time.monotonic) -> None:
        self._window, self._clock = window, clock
        self._lock = threading.Lock()
        self._recent: deque[Ended] = deque(maxlen=_MOST_ENDED)
        self._modules: OrderedDict[str, tuple[float, int, bool]] = OrderedDict()
        self._warnings: Counter[str] = Counter()
        self._readings = Readings()
        self._services: OrderedDict[str, None] = OrderedDict()
        self._ended = self._failed = 0
        self._last: float | None = None
        self._first_ns = self._newest_ns = 0
        self._tokens = Tokens()
        self._held: list[tuple[str, str, Ended]] = []

    def take(self, line: Mapping[str, Any]) -> list[Ended]:
        """Take in a decoded OTLP JSON object.

        Returns:
            The requests that ended, in order of their ends. One of which texts of tokens are still to come waits for the next call;
            with an empty object it comes without them.
        """
        ended: list[Ended] = []
        with self._lock:
            if line:
                self._last = self._clock()
            for block in objects(line, "resourceSpans"):
                service = self._service(block)
                for holder in objects(block, "scopeSpans"):
                    scope = holder.get("scope")
                    if isinstance(scope, dict) and scope.get("name") == semconv.SCOPE:
                        for raw in objects(holder, "spans"):
                            self._span(raw, service)
            for block in objects(line, "resourceMetrics"):
                self._newest_ns = max(self._newest_ns, self._readings.take(block, self._service(block)))
            ended = self._complete(last=not line)
        return ended

    def snapshot(self) -> Snapshot:
        """The figures now."""
        with self._lock:
            age = None if self._last is None else self._clock() - self._last
            now = self._newest_ns / 1e9 + (age or 0.0)
            recent = [one for one in self._recent if now - one.end_ns / 1e9 <= self._window]
            seconds = min(self._window, max(now - self._first_ns / 1e9, 1e-3))
            tokens = [one.output_tokens for one in recent if one.output_tokens is not None]
            hottest = sorted(self._modules.items(), key=lambda item: -item[1][0])[:10]
            return Snapshot(
                services=tuple(self._services),
                running=self._readings.running(now),
                ended=self._ended,
                failed=self._failed,
                window=seconds,
                requests_per_second=len(recent) / seconds if self._ended else None,
                tokens_per_second=sum(tokens) / seconds if tokens else None,
                ttft=_middle_and_tail([one.ttft for one in recent if not one.failed]),
                tpot=_middle_and_tail([one.tpot for one in recent if not one.failed]),
                machines=self._readings.machines(now),
                hottest=tuple(Hot(name, *rest) for name, rest in hottest),
                warnings=tuple(self._warnings.most_common(10)),
                age=age,
            )

    def _service(self, block: Mapping[str, Any]) -> str:
        resource = block.get("resource")
        name = str(attributes_of(resource, {}).get("service.name", "")) if isinstance(resource, dict) else ""
        if name and (name in self._services or len(self._services) < _MOST_WARNINGS):
            self._services[name] = None
        return name

    def _complete(self, *, last: bool) -> list[Ended]:
        """The requests whose tokens are complete, or that need not wait for them any longer."""
        ended: list[Ended] = []
        waiting: list[tuple[str, str, Ended]] = []
        spare = len(self._held) - _MOST_HELD
        for place, (trace, request, one) in enumerate(self._held):
            tokens = self._tokens.of(trace, request)
            rows = max(1, len(one.finish_reasons))
            short = len(tokens) < (one.output_tokens or 0) // rows and (tokens or self._tokens.waits(trace))
            if short and not last and place >= spare:
                waiting.append((trace, request, one))
            else:
                self._tokens.forget(trace, request)
                ended.append(one._replace(tokens=tokens))
        self._held = waiting
        if last:
            self._tokens.clear()
        return sorted(ended, key=lambda one: one.end_ns)

    def _span(self, raw: Mapping[str, Any], service: str) -> None:
        attributes = attributes_of(raw, {})
        span = _Span(text_of(raw.get("name")), attributes)
        level = level_of(span)
        begin, end = moment(raw.get("startTimeUnixNano")), moment(raw.get("endTimeUnixNano"))
        seconds = (end - begin) / 1e9 if 0 < begin <= end else None
        trace, identity, parent = (text_of(raw.get(key)).lower() for key in ("traceId", "spanId", "parentSpanId"))
        if not trace or not identity:
            return  # as in the report
        self._newest_ns = max(self._newest_ns, end)
        if level == MODULE:
            self._module(span, seconds)
        if level == STEP and span.name in _STEPS:
            self._step(trace, parent, attributes)
        if level == PHASE:
            self._tokens.phase(trace, identity, parent)
        if level != REQUEST or semconv.LOAD_KIND in attributes or attributes.get(semconv.NESTED) is True:
            return
        status = raw.get("status")
        failed = isinstance(status, dict) and status.get("code") in _ERROR_CODES
        one = _ended(span, end, seconds, failed, service)
        self._first_ns = min(self._first_ns or begin, begin)
        self._ended += 1
        self._failed += failed
        if failed:
            self._warn(f"failed: {one.error_type or 'error'}")
        for kind in one.findings:
            self._warn(kind)
        if attributes.get(semconv.NONFINITE) is True and "nonfinite" not in one.findings:
            self._warn("nonfinite")
        dropped = whole_number(attributes.get(semconv.SPANS_DROPPED), 0)
        if dropped:
            self._warn("spans over the budget", dropped)
        self._recent.append(one)
        self._held.append((trace, identity, one))

    def _step(self, trace: str, parent: str, attributes: Mapping[str, Value]) -> None:
        texts, index = _texts(attributes.get(semconv.STEP_TOKEN_TEXTS)), whole_number(attributes.get(semconv.STEP_INDEX), 0)
        if texts and index is not None:
            logprob = number(attributes.get(semconv.LOGITS_CHOSEN_LOGPROB))
            self._tokens.step(trace, parent, index, (texts[0], None if logprob is None else math.exp(min(0.0, logprob))))

    def _module(self, span: _Span, seconds: float | None) -> None:
        name = text_of(span.attributes.get(semconv.MODULE_NAME)) or span.name
        name = module_operation(name, span.attributes.get(semconv.PHASE))
        measured = number(span.attributes.get(semconv.DEVICE_TIME))
        spent = seconds if measured is None else max(0.0, measured)
        if spent is None:
            return
        total, calls, device = self._modules.pop(name, (0.0, 0, False))
        self._modules[name] = (total + spent, calls + 1, device or measured is not None)
        if len(self._modules) > _MOST_MODULES:
            self._modules.popitem(last=False)  # the one that was called longest ago

    def _warn(self, kind: str, count: int = 1) -> None:
        if kind in self._warnings or len(self._warnings) < _MOST_WARNINGS:
            self._warnings[kind] += count


def _ended(span: _Span, end: int, seconds: float | None, failed: bool, service: str) -> Ended:
    attributes = span.attributes
    error = attributes.get(semconv.ERROR_TYPE)
    return Ended(
        name=span.name,
        end_ns=end,
        seconds=seconds,
        input_tokens=whole_number(attributes.get(semconv.INPUT_TOKENS), 0),
        output_tokens=whole_number(attributes.get(semconv.OUTPUT_TOKENS), 0),
        ttft=number(attributes.get(semconv.TTFT)),
        tpot=number(attributes.get(semconv.TPOT)),
        finish_reasons=_texts(attributes.get(semconv.FINISH_REASONS)),
        error_type=error if isinstance(error, str) else None,
        failed=failed,
        findings=_texts(attributes.get(semconv.HEALTH_KINDS)),
        service=service,
        tokens=(),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(part for part in value if isinstance(part, str)) if isinstance(value, tuple) else ()


def _middle_and_tail(values: list[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    middle, tail = percentile(known, 0.5), percentile(known, 0.95)
    return None if middle is None or tail is None else (middle, tail)
