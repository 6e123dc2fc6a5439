"""Requests as OpenTelemetry metrics: the gen_ai families and our own, and the totals of ``handle.summary()``.

One value per request and metric, which the hand-over thread records, or the collection that comes first; see ``waiting``. What is
known of single steps and modules is recorded there as well.
Histograms take exemplars from the request's span; counters are recorded in a context without a span, because the SDK's reservoir for
sums draws from the global random generator. A broken meter takes nothing down, and is tried again at the next request.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context

from inferspan import semconv
from inferspan.export.sdk import record_at
from inferspan.guard import contain, guarded
from inferspan.records import KIND_BATCH, AttributeValue, ModuleBatch, Record, RequestEnd, RequestStart
from inferspan.settings import Settings

from .activations import ActivationLabels, values_of
from .first_request import FirstRequest, first_request
from .roofline import roofline_values
from .summary import Summary
from .waiting import Waiting

__all__ = ["RequestMetrics"]

MOST_ADAPTERS = 50
"""Values of the adapter label; a service may have any number of adapters."""
AT_ONCE = 8
"""Values recorded before others can have the interpreter: some 40 us."""
# Not empty, or the SDK would take the current context and with it the current span.
_NO_SPAN = Context({"inferspan": True})


class _Of(NamedTuple):
    """The request that a value is of: exemplars name its span, and have the time of its end, or the present time if that is 0."""

    context: Context
    end_ns: int = 0


class RequestMetrics:
    """The synchronous instruments of one meter.

    Args:
        meter: returns the meter; asked again after it failed.
        settings: which gen_ai families and optional metrics there are.
        first: the first request of the process.
        waiting: what takes the values of requests for the hand-over thread; default is to record them at once.
    """

    def __init__(
        self, meter: Callable[[], Any], settings: Settings, first: FirstRequest = first_request, waiting: Waiting | None = None
    ) -> None:
        self._meter = meter
        self._settings = settings
        self._first = first
        self._instruments: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._adapters: set[AttributeValue] = set()
        self._activations = ActivationLabels()
        self.summary = Summary()
        self.waiting = Waiting(lambda: False) if waiting is None else waiting

    def renew_locks(self) -> None:
        """Called in a forked child, where no thread is left to release them."""
        self._lock = threading.Lock()
        self.summary.renew_lock()
        self.waiting.renew()

    # ------------------------------------------------------------------------------------------------------ instruments
    def _instrument(self, name: str) -> Any:
        instrument = self._instruments.get(name)
        if instrument is None:
            with self._lock:
                metric = semconv.METRICS[name]
                meter = self._meter()
                if metric.instrument == semconv.HISTOGRAM:
                    instrument = meter.create_histogram(
                        name, unit=metric.unit, description=metric.brief, explicit_bucket_boundaries_advisory=metric.buckets
                    )
                else:
                    create = {semconv.COUNTER: "counter", semconv.UP_DOWN_COUNTER: "up_down_counter", semconv.GAUGE: "gauge"}[
                        metric.instrument
                    ]
                    instrument = getattr(meter, f"create_{create}")(name, unit=metric.unit, description=metric.brief)
                self._instruments[name] = instrument
        return instrument

    def _record(self, name: str, value: float, attributes: Mapping[str, AttributeValue], of: _Of | None = None) -> None:
        with contain("request metrics"):
            instrument = self._instrument(name)
            if semconv.METRICS[name].instrument == semconv.HISTOGRAM:
                context = _NO_SPAN if of is None else of.context
                if of is None or not of.end_ns or not record_at(instrument, value, attributes, context, of.end_ns):
                    instrument.record(value, attributes, context)
            elif semconv.METRICS[name].instrument == semconv.GAUGE:
                instrument.set(value, attributes, _NO_SPAN)
            else:
                instrument.add(value, attributes, _NO_SPAN)

    def _later(self, name: str, value: float, attributes: Mapping[str, AttributeValue], of: _Of | None = None) -> None:
        self.waiting.put(self._record, name, value, attributes, of)

    # --------------------------------------------------------------------------------------------------------- requests
    def _labels(self, start: RequestStart) -> dict[str, AttributeValue]:
        labels: dict[str, AttributeValue] = {semconv.PROVIDER_NAME: start.model.provider}
        if start.operation is not None:
            labels[semconv.OPERATION_NAME] = start.operation
        if start.model.name is not None:
            labels[semconv.REQUEST_MODEL] = labels[semconv.RESPONSE_MODEL] = start.model.name
        return labels | self._adapter(start)

    def _adapter(self, start: RequestStart) -> dict[str, AttributeValue]:
        """The label of the active adapters; a value that came first keeps its name, so both ends of a request agree."""
        adapter = start.model.attributes.get(semconv.ADAPTER)
        if adapter is None:
            return {}
        if adapter not in self._adapters:
            if len(self._adapters) >= MOST_ADAPTERS:
                return {semconv.ADAPTER: semconv.OTHER_ADAPTER}
            self._adapters.add(adapter)
        return {semconv.ADAPTER: adapter}

    def _model(self, start: RequestStart) -> dict[str, AttributeValue]:
        named: dict[str, AttributeValue] = {semconv.REQUEST_MODEL: start.model.name} if start.model.name is not None else {}
        return named | self._adapter(start)

    @staticmethod
    def _name(start: RequestStart) -> str:
        return start.model.name or start.model.architecture

    @guarded("metrics of a started request")
    def started(self, start: RequestStart) -> None:
        """Note a request in flight, and how long the process took to get to its first one."""
        self.waiting.look()
        if start.kind == KIND_BATCH:
            return
        waited = self._first.take(start.start_ns)
        if waited is not None:
            self._later(semconv.M_FIRST_REQUEST, waited, self._model(start))
        if start.kind != "forward" and not start.nested:
            self._later(semconv.M_ACTIVE, 1, self._model(start))

    @guarded("metrics of an ended request")
    def ended(self, start: RequestStart, end: RequestEnd, span: Any, *, third_party: bool) -> None:
        """Record the metrics of a request that has ended.

        Args:
            start: how it began.
            end: how it ended.
            span: its span, for exemplars.
            third_party: whether another library has opened a gen_ai span around it and records the client metrics.
        """
        if end.spans_dropped:
            self._later(semconv.M_SPANS_DROPPED, end.spans_dropped, {semconv.DROP_REASON: "budget"})
        if end.overhead_ns:
            self.waiting.add(self._record, semconv.M_OVERHEAD, end.overhead_ns / 1e9)
        if start.kind == KIND_BATCH:
            self._batch(start, end)
            return
        of = _Of(trace.set_span_in_context(span, _NO_SPAN), end.end_ns)
        seconds = max(0.0, (end.end_ns - start.start_ns) / 1e9)
        self.summary.add(start, end, seconds)
        if start.kind != "forward" and not start.nested:
            self._later(semconv.M_ACTIVE, -1, self._model(start))
        if start.kind == "forward":
            self._forward(start, end, seconds, of, third_party=third_party)
        elif start.kind == "pipeline" and not start.nested:
            self._pipeline(start, end, seconds, of, third_party=third_party)
        elif not start.nested:
            self._generate(start, end, seconds, of, third_party=third_party)
        for name, took in end.stages:
            self._later(semconv.M_STAGE_DURATION, took, {semconv.STAGE_NAME: name, **self._model(start)}, of)
        if end.roofline is not None and not start.nested:
            with contain("roofline"):
                for name, value, labels in roofline_values(end.roofline.figures, self._model(start)):
                    self._later(name, value, labels, of)
        for kind in end.findings:
            self._later(semconv.M_HEALTH_FINDINGS, 1, {**self._model(start), semconv.HEALTH_KIND: kind})
        for figure, shift in end.drift.items():
            self._later(semconv.M_HEALTH_DRIFT, shift, {**self._model(start), semconv.HEALTH_FIGURE: figure})
        for (place, kind), count in end.nonfinite.items():
            labels = {semconv.MODEL_NAME: self._name(start), semconv.MODULE_NAME: place, semconv.NONFINITE_KIND: kind}
            self._later(semconv.M_NONFINITE, count, labels)

    def _batch(self, start: RequestStart, end: RequestEnd) -> None:
        """Record the state in which the steps of a batch have left the loop."""
        figures, model = end.batch, self._model(start)
        for name, value in (
            (semconv.M_BATCH_WAITING, None if figures is None else figures.waiting),
            (semconv.M_KV_BLOCKS_USED, None if figures is None else figures.blocks_used),
            (semconv.M_KV_BLOCKS_LIMIT, None if figures is None else figures.blocks_limit),
        ):
            if value is not None:
                self._later(name, value, model)

    def _forward(self, start: RequestStart, end: RequestEnd, seconds: float, of: _Of, *, third_party: bool) -> None:
        if end.timed:
            self._later(semconv.M_FORWARD_DURATION, seconds, {semconv.MODEL_NAME: self._name(start), **self._adapter(start)}, of)
        if start.operation == semconv.OPERATION_EMBEDDINGS and not start.nested and not third_party:
            self._embeddings(end, seconds, self._labels(start), of)

    def _embeddings(self, end: RequestEnd, seconds: float, labels: Mapping[str, AttributeValue], of: _Of) -> None:
        failing = self._with_error(labels, end)
        if self._settings.semconv in ("dup", "latest"):
            self._later(semconv.M_EMBEDDINGS_DURATION, seconds, failing, of)
            if end.input_tokens is not None and end.failure is None:
                self._later(semconv.M_EMBEDDINGS_INPUT, end.input_tokens, labels, of)
        if self._settings.semconv in ("dup", "legacy"):
            self._legacy(end, seconds, labels, failing, of)

    @staticmethod
    def _with_error(labels: Mapping[str, AttributeValue], end: RequestEnd) -> dict[str, AttributeValue]:
        return {**labels, semconv.ERROR_TYPE: end.failure.type} if end.failure is not None else dict(labels)

    def _generate(self, start: RequestStart, end: RequestEnd, seconds: float, of: _Of, *, third_party: bool) -> None:
        labels = self._labels(start)
        failing = self._with_error(labels, end)
        self._later(semconv.M_SERVER_DURATION, seconds, failing, of)
        if end.failure is None:
            for name, value in ((semconv.M_SERVER_TTFT, end.time_to_first_token), (semconv.M_SERVER_TPOT, end.time_per_output_token)):
                if value is not None:
                    self._later(name, value, labels, of)
        if not third_party and self._settings.semconv in ("dup", "latest"):
            self._latest(end, seconds, labels, failing, of)
        if not third_party and self._settings.semconv in ("dup", "legacy"):
            self._legacy(end, seconds, labels, failing, of)
        model = self._model(start)
        if end.batch_size:
            self._later(semconv.M_BATCH_SIZE, end.batch_size, model, of)
        if end.step_rows is not None:
            self._later(semconv.M_STEP_ROWS, end.step_rows, model, of)
        for counter, count in (
            (semconv.M_SPECULATIVE_DRAFTED, end.drafted_tokens),
            (semconv.M_SPECULATIVE_ACCEPTED, end.accepted_tokens),
        ):
            if count is not None:
                self._later(counter, count, model)
        if end.kv_cache_bytes is not None:
            self._later(semconv.M_KV_CACHE, end.kv_cache_bytes, model)
        if end.time_in_queue is not None:
            self._later(semconv.M_TIME_IN_QUEUE, end.time_in_queue, model, of)
        if end.preemptions:
            self._later(semconv.M_PREEMPTIONS, end.preemptions, model)

    def _pipeline(self, start: RequestStart, end: RequestEnd, seconds: float, of: _Of, *, third_party: bool) -> None:
        """A call that has no tokens."""
        failing, model = self._with_error(self._labels(start), end), self._model(start)
        self._later(semconv.M_SERVER_DURATION, seconds, failing, of)
        if not third_party and self._settings.semconv in ("dup", "latest"):
            self._later(semconv.M_INFERENCE_DURATION, seconds, failing, of)
        if not third_party and self._settings.semconv in ("dup", "legacy"):
            self._later(semconv.M_LEGACY_DURATION, seconds, failing, of)
        if end.batch_size:
            self._later(semconv.M_BATCH_SIZE, end.batch_size, model, of)

    def _latest(
        self, end: RequestEnd, seconds: float, labels: Mapping[str, AttributeValue], failing: Mapping[str, AttributeValue], of: _Of
    ) -> None:
        self._later(semconv.M_INFERENCE_DURATION, seconds, failing, of)
        for counter, by_modality in (
            (semconv.M_USAGE_INPUT, end.input_by_modality),
            (semconv.M_USAGE_OUTPUT, end.output_by_modality),
            (semconv.M_USAGE_CACHE_READ, end.cached_split),
        ):
            for modality, tokens in by_modality.items():
                self._later(counter, tokens, {**labels, semconv.TOKEN_MODALITY: modality})
        if end.failure is None:
            # Usage counts the tokens of a failed call as far as they are known; a distribution is of completed calls.
            for histogram, total in ((semconv.M_OPERATION_INPUT, end.input_tokens), (semconv.M_OPERATION_OUTPUT, end.output_tokens)):
                if total is not None:
                    self._later(histogram, total, labels, of)
        self._chunks(end, labels, of, semconv.M_FIRST_CHUNK, semconv.M_PER_CHUNK)

    def _legacy(
        self, end: RequestEnd, seconds: float, labels: Mapping[str, AttributeValue], failing: Mapping[str, AttributeValue], of: _Of
    ) -> None:
        self._later(semconv.M_LEGACY_DURATION, seconds, failing, of)
        for kind, tokens in (("input", end.input_tokens), ("output", end.output_tokens)):
            if tokens is not None and end.failure is None:
                self._later(semconv.M_LEGACY_USAGE, tokens, {**labels, semconv.TOKEN_TYPE: kind}, of)
        self._chunks(end, labels, of, semconv.M_LEGACY_FIRST_CHUNK, semconv.M_LEGACY_PER_CHUNK)

    def _chunks(self, end: RequestEnd, labels: Mapping[str, AttributeValue], of: _Of, first: str, following: str) -> None:
        if end.streaming and end.failure is None and end.time_to_first_token is not None:
            self._later(first, end.time_to_first_token, labels, of)
            for seconds in end.chunk_intervals:
                self._later(following, seconds, labels, of)

    def has_steps(self, end: RequestEnd) -> bool:
        """Whether ``steps`` would record anything of the request that ended so."""
        return any(end.step_seconds.values()) or (self._settings.entropy_metric and bool(end.entropies))

    @guarded("metrics of steps")
    def steps(self, start: RequestStart, end: RequestEnd, span: Any, pause: Callable[[], None] = lambda: None) -> None:
        """Record durations by phase and, where the settings want it, certainty of a request's steps; runs off the model's path.

        Args:
            start: how the request began.
            end: how it ended.
            span: its span, for exemplars.
            pause: called every few values, to let others have the interpreter.
        """
        model = self._model(start)
        for phase, seconds in end.step_seconds.items():
            self._record_many(semconv.M_STEP_DURATION, seconds, {semconv.PHASE: phase, **model}, span, pause)
        if end.batch is not None:
            self._record_many(semconv.M_BATCH_REQUESTS, end.batch.requests, model, span, pause)
            self._record_many(semconv.M_BATCH_TOKENS, end.batch.tokens, model, span, pause)
        if self._settings.entropy_metric and not start.nested:
            for name, values in ((semconv.M_ENTROPY, end.entropies), (semconv.M_TOP1, end.top1_probabilities)):
                self._record_many(name, values, model, span, pause)

    @guarded("request metrics")
    def _record_many(
        self, name: str, values: Sequence[float], attributes: Mapping[str, AttributeValue], span: Any, pause: Callable[[], None]
    ) -> None:
        """Record values of one request in a histogram.

        A bucket keeps one exemplar, and these would all name the same span: only the first value of each bucket is given it, which
        saves most of the time that the SDK takes.
        """
        if not values:
            return
        record, buckets = self._instrument(name).record, semconv.METRICS[name].buckets or ()
        context, seen = trace.set_span_in_context(span, _NO_SPAN), set[int]()
        for count, value in enumerate(values, 1):
            bucket = bisect_left(buckets, value)
            record(value, attributes, _NO_SPAN if bucket in seen else context)
            seen.add(bucket)
            if not count % AT_ONCE:
                pause()

    def measures(self, record: Record) -> bool:
        """Whether ``modules`` would record anything of a record."""
        return isinstance(record, ModuleBatch) and self.has_modules(record)

    def has_modules(self, batch: ModuleBatch) -> bool:
        """Whether ``modules`` would record anything of such a batch."""
        return self._settings.module_metric or bool(batch.statistics) or batch.stages > 0

    @guarded("metrics of modules")
    def modules(self, start: RequestStart, batch: ModuleBatch, calls: Iterable[Sequence[Any]], span: Any) -> None:
        """Record some module calls of a batch; runs off the model's path.

        Args:
            start: the request.
            batch: what the calls are of.
            calls: those to record, in the layout of ``ModuleCall``.
            span: the request's span, for exemplars.
        """
        name, of = self._name(start), _Of(trace.set_span_in_context(span, _NO_SPAN))
        labels: dict[str, AttributeValue]
        for _, _, info, begun, ended, _, _, _, slot in calls:
            if info.stage is not None:
                labels = {semconv.STAGE_NAME: info.stage.name, **self._model(start)}
                self._record(semconv.M_STAGE_DURATION, (ended - begun) / 1e9, labels, of)
            if slot is None and not self._settings.module_metric:
                continue
            labels = {
                semconv.MODEL_NAME: name,
                semconv.MODULE_NAME: info.name,
                semconv.MODULE_TYPE: info.type,
            }
            if info.layer_index is not None:
                labels[semconv.MODULE_LAYER_INDEX] = info.layer_index
            if self._settings.module_metric:
                self._record(semconv.M_MODULE_DURATION, (ended - begun) / 1e9, {**labels, semconv.PHASE: batch.phase.name}, of)
            statistics = batch.statistics.get(slot, {}) if slot is not None else {}
            if self._settings.activation_metric:
                for metric, value in values_of(statistics):
                    self._record(metric, value, self._activations.of(name, info), of)
            imbalance = statistics.get(semconv.EXPERTS_IMBALANCE)
            if isinstance(imbalance, float):
                layer = {key: labels[key] for key in (semconv.MODEL_NAME, semconv.MODULE_LAYER_INDEX) if key in labels}
                self._record(semconv.M_EXPERTS_IMBALANCE, imbalance, layer, of)
            for kind, key in (("nan", semconv.OUTPUT_STAT_NAN_COUNT), ("inf", semconv.OUTPUT_STAT_INF_COUNT)):
                count = statistics.get(key)
                if isinstance(count, int) and count:
                    self._record(semconv.M_NONFINITE, count, {**labels, semconv.NONFINITE_KIND: kind})

    @guarded("metrics of dropped spans")
    def dropped(self, count: int, reason: str) -> None:
        """Count spans of ours that were left out."""
        if count:
            self._record(semconv.M_SPANS_DROPPED, count, {semconv.DROP_REASON: reason})
