"""Totals of the requests on one model, kept in the process: what ``handle.summary()`` returns with no destination at all."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inferspan.records import RequestEnd, RequestStart
from inferspan.text.numbers import counted

__all__ = ["Summary", "Totals", "percentile"]

_FOUND = {
    "low": "low confidence", "loop": "a loop", "flat": "flat logits", "nonfinite": "NaN or Inf", "collapsed": "collapsed entropy",
    "drift": "a drift",
}  # fmt: skip
KEPT = 4096
"""Latest values that percentiles are taken of."""


def percentile(values: Sequence[float], share: float) -> float | None:
    """Percentile by linear interpolation between the two nearest values (as numpy's default); ``None`` of nothing.

    Args:
        values: in any order.
        share: 0 for the smallest to 1 for the largest.
    """
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class Totals:
    """Totals of the requests on a model; times in seconds, ``None`` where nothing was measured.

    Times to first token and per token are of requests that did not fail, as in the metrics and in the report.
    """

    requests: int
    errors: int
    forwards: int
    input_tokens: int
    output_tokens: int
    seconds: float
    ttft_p50: float | None
    ttft_p95: float | None
    tpot_p50: float | None
    tpot_p95: float | None
    tokens_per_second: float | None
    spans_dropped: int
    detail_kept: int = 0
    """Requests whose detail became spans, of those that the setting `keep` decided about."""
    detail_left_out: int = 0
    pipelines: int = 0
    """Those of the requests that are calls of a diffusion pipeline, which have no tokens."""
    findings: Mapping[str, int] = field(default_factory=dict)
    """Requests by the kind of what was found about their output: ``low``, ``loop``, ``flat`` or ``nonfinite``."""

    def __str__(self) -> str:
        """One line for a person."""
        failed = f" ({self.errors} failed)" if self.errors else ""
        generating = self.requests - self.pipelines
        calls = [counted(generating, "generate() call")] if generating or not self.pipelines else []
        calls += [counted(self.pipelines, "pipeline call")] if self.pipelines else []
        parts = [" · ".join(calls) + failed]
        if self.forwards:
            parts.append(counted(self.forwards, "plain forward"))
        if generating:
            parts.append(f"{counted(self.input_tokens, 'token')} in, {self.output_tokens} out")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tokens/s")
        for label, value in (("TTFT p50", self.ttft_p50), ("TTFT p95", self.ttft_p95), ("time per token p50", self.tpot_p50)):
            if value is not None:
                parts.append(f"{label} {value * 1000:.1f} ms")
        decided = self.detail_kept + self.detail_left_out
        parts += [f"{_FOUND.get(kind, kind)} in {counted(number, 'request')}" for kind, number in self.findings.items()]
        if decided:
            parts.append(f"detail of {self.detail_kept} of {counted(decided, 'request')} kept")
        return " · ".join(parts)


@dataclass
class Summary:
    """Adds requests up; nested ones (draft models, retries) are left out, as in the usage metrics."""

    _requests: int = 0
    _errors: int = 0
    _forwards: int = 0
    _pipelines: int = 0
    _input: int = 0
    _output: int = 0
    _seconds: float = 0.0
    _generating: float = 0.0
    _dropped: int = 0
    _kept: int = 0
    _left_out: int = 0
    _ttft: list[float] = field(default_factory=list)
    _tpot: list[float] = field(default_factory=list)
    _findings: Counter[str] = field(default_factory=Counter)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, start: RequestStart, end: RequestEnd, seconds: float) -> None:
        """Count one request that has ended."""
        with self._lock:
            self._dropped += end.spans_dropped
            if start.kind == "forward":
                self._forwards += not start.nested
                return
            if start.nested:
                return
            self._pipelines += start.kind == "pipeline"
            self._requests += 1
            self._errors += end.failure is not None
            self._input += end.input_tokens or 0
            self._output += end.output_tokens or 0
            self._seconds += seconds
            self._findings.update(end.findings)
            if end.output_tokens:
                self._generating += seconds
            for values, value in ((self._ttft, end.time_to_first_token), (self._tpot, end.time_per_output_token)):
                if value is not None and end.failure is None:
                    values.append(value)
                    del values[:-KEPT]

    def decided(self, *, kept: bool) -> None:
        """Count one request whose detail has become spans, or has not."""
        with self._lock:
            self._kept += kept
            self._left_out += not kept

    def renew_lock(self) -> None:
        """Called in a forked child, where no thread is left to release it."""
        self._lock = threading.RLock()

    def totals(self) -> Totals:
        """The totals so far."""
        with self._lock:
            return Totals(
                requests=self._requests,
                errors=self._errors,
                forwards=self._forwards,
                pipelines=self._pipelines,
                input_tokens=self._input,
                output_tokens=self._output,
                seconds=self._seconds,
                ttft_p50=percentile(self._ttft, 0.5),
                ttft_p95=percentile(self._ttft, 0.95),
                tpot_p50=percentile(self._tpot, 0.5),
                tpot_p95=percentile(self._tpot, 0.95),
                tokens_per_second=self._output / self._generating if self._generating else None,
                spans_dropped=self._dropped,
                detail_kept=self._kept,
                detail_left_out=self._left_out,
                findings=dict(self._findings),
            )
