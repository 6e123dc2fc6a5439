"""The direct OTLP path for child spans in bulk: bytes packed by ``protobuf``, sent beside the SDK's pipeline to the same receiver.

In come framed spans, out go ``ExportTraceServiceRequest``s with the provider's resource, below the receivers' size limit, through an
exporter made from the same variables (endpoint, headers, TLS, compression, retries). Only for a provider of our own that has exactly
one OTLP exporter and no other processor: a session file, a console exporter or a processor of the host must see whole spans, so there
``raw_sink`` gives ``None``. The queue is bounded; what does not fit is refused and counted.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from inferspan import guard, semconv
from inferspan.export import protobuf, variables
from inferspan.export.delivery import Delivery, destination_of
from inferspan.export.exporters import REQUEST_LIMIT, build_exporter
from inferspan.export.older_exporters import export_packed, sends_itself
from inferspan.export.providers import SETUP
from inferspan.export.shutdown import Pipeline

__all__ = ["OtlpSpanSender", "raw_sink"]

QUEUE_BYTES = 24 * 1024 * 1024
WAKE_BYTES = REQUEST_LIMIT


class OtlpSpanSender:
    """A bounded queue of packed spans and the thread that sends them.

    Args:
        connect: makes the function that sends one request and says whether it arrived; called again in a forked child.
        head: the resource, the scope, the scope's schema and the resource's, as ``protobuf.request`` takes them.
        room: bytes that the queue may hold.
        limit: bytes of one request.
        delay: seconds after which spans are sent at the latest.
        delivery: records the outcome of each request.
    """

    def __init__(
        self,
        connect: Callable[[], Callable[[bytes], bool]],
        head: Callable[[], tuple[bytes, bytes, str, str]],
        *,
        room: int = QUEUE_BYTES,
        limit: int = REQUEST_LIMIT,
        delay: float = 5.0,
        delivery: Delivery | None = None,
    ) -> None:
        self._delivery = delivery or Delivery("traces")
        self._connect, self._head = connect, head
        self._room, self._limit, self._delay = room, limit, delay
        self._closed = False
        self._start()
        self._delivery.waits_in(self._waiting)

    def _start(self) -> None:
        self._pid = os.getpid()
        self._queue: deque[tuple[bytes, int]] = deque()
        self._queued = 0
        self._lock, self._sending, self._wake = threading.Lock(), threading.Lock(), threading.Event()
        self._send = self._connect()
        threading.Thread(target=self._run, name="inferspan-raw-spans", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Spans that were refused because the queue was full, that could not be sent, or that the receiver rejected."""
        return self._delivery.refused

    def _waiting(self) -> int:
        """Spans in the queue; in a forked child it still has those of the parent."""
        return sum([count for _, count in list(self._queue)]) if self._pid == os.getpid() else 0

    def offer(self, spans: bytes, count: int) -> int:
        """Queue results of ``protobuf.span``, joined.

        Args:
            spans: packed spans, one after the other.
            count: their number.

        Returns:
            How many were taken, from the first on.
        """
        if self._pid != os.getpid():
            self._start()
        taken = count
        with self._lock:
            room = 0 if self._closed else self._room - self._queued
            if len(spans) > room:
                spans, taken = protobuf.cut(spans, room)
            if taken:
                self._queue.append((spans, taken))
                self._queued += len(spans)
            wake = self._queued >= WAKE_BYTES
        if taken < count:
            self._delivery.overflowed(count - taken)
        if wake and not self._wake.is_set():
            self._wake.set()
        return taken

    def flush(self, timeout: float) -> bool:
        """Send the queued spans.

        Args:
            timeout: seconds after which no further request is begun.
        """
        if self._pid != os.getpid():
            return True
        deadline = time.monotonic() + timeout
        sent = True
        with self._sending:
            while time.monotonic() < deadline:
                slabs, count = self._take()
                if not slabs:
                    return sent
                sent = self._export(slabs, count) and sent
        return False

    def close(self, timeout: float) -> None:
        """Send the queued spans and accept no more.

        Args:
            timeout: seconds after which no further request is begun.
        """
        with self._lock:
            self._closed = True
        self.flush(timeout)
        self._wake.set()

    def _take(self) -> tuple[list[bytes], int]:
        """Spans for one request, and their number: up to the limit, or the one span that is larger by itself."""
        slabs: list[bytes] = []
        size = number = 0
        with self._lock:
            while self._queue:
                spans, count = self._queue[0]
                if size + len(spans) > self._limit:
                    if slabs:
                        break
                    whole, (spans, taken) = spans, protobuf.cut(spans, self._limit, least=True)
                    self._queue[0] = whole[len(spans) :], count - taken
                    slabs, size, number = [spans], len(spans), taken
                    if taken == count:
                        self._queue.popleft()
                    break
                self._queue.popleft()
                slabs.append(spans)
                size += len(spans)
                number += count
            self._queued -= size
        return slabs, number

    def _export(self, slabs: list[bytes], count: int) -> bool:
        token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        try:
            return self._delivery.attempt(lambda: self._send_now(slabs), count)
        finally:
            detach(token)

    def _send_now(self, slabs: list[bytes]) -> bool:
        with guard.contain("raw span export"):
            resource, scope, schema, resource_schema = self._head()
            return self._send(protobuf.request(resource, scope, schema, slabs, resource_schema_url=resource_schema))
        return False

    def _run(self) -> None:
        wake = self._wake
        while not self._closed:
            wake.wait(self._delay)
            wake.clear()
            self.flush(float("inf"))


_sinks: dict[InstrumentationScope, OtlpSpanSender] = {}
_making = threading.RLock()
"""Held while one is made: the first requests of a service begin together, and each sender beyond the first would send when nobody waits."""


def _forked() -> None:
    global _making
    # Who held it does not exist in the child.
    _making = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def raw_sink(tracer_provider: Any, *, scope: InstrumentationScope | None = None) -> OtlpSpanSender | None:
    """The sink for packed spans beside a provider, or ``None`` if spans have to go through the provider itself.

    Args:
        tracer_provider: a provider that ``configure`` made; any other gives ``None``.
        scope: scope of the spans, default ours without a version.
    """
    provider = SETUP.tracer_provider
    if provider is None or tracer_provider is not provider or len(SETUP.span_exporters) != 1:
        return None
    name = SETUP.span_exporters[0]
    processors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", None)
    if not name.startswith("otlp_proto_") or processors != SETUP.span_processors:
        return None
    scope = scope or InstrumentationScope(semconv.SCOPE)
    if scope not in _sinks:
        with _making:
            if scope not in _sinks:
                _make(provider, name, scope)
    return _sinks.get(scope)


def _make(provider: Any, name: str, scope: InstrumentationScope) -> None:
    connect = _CONNECT[name]
    with guard.contain("raw span sink"):  # it stands on private parts of the exporters
        bounds = {"most": variables.LONGEST_WAIT, "least": variables.SHORTEST_WAIT}
        delay = variables.positive_number(SETUP.environ, 5000, "OTEL_BSP_SCHEDULE_DELAY", **bounds) / 1000
        delivery = Delivery("traces", destination_of(name, "traces", SETUP.environ))
        sink = OtlpSpanSender(
            lambda: connect(build_exporter(name, "traces", SETUP.environ)),
            lambda: _head(provider, scope),
            delay=delay,
            delivery=delivery,
        )
        SETUP.pipelines.add(Pipeline("raw-spans", delivery.all_sent(sink.flush), sink.close))
        _sinks[scope] = sink


def _head(provider: Any, scope: InstrumentationScope) -> tuple[bytes, bytes, str, str]:
    resource = provider.resource  # another one after fork()
    return (
        protobuf.resource(resource.attributes),
        protobuf.scope(scope.name, scope.version, scope.attributes),
        scope.schema_url or "",
        resource.schema_url or "",
    )


def _over_http(exporter: Any) -> Callable[[bytes], bool]:
    if sends_itself(exporter):
        return export_packed(exporter)
    export = exporter._client.export
    return lambda data: bool(export(data).success)


def _over_grpc(exporter: Any) -> Callable[[bytes], bool]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    for used in ("_translate_data", "_export"):
        getattr(exporter, used)
    # The exporter receives bytes that are packed already; retries, deadline and reconnection stay its own.
    exporter._translate_data = ExportTraceServiceRequest.FromString
    exporter._count_data = lambda data: 0  # asked for from 1.42 on
    return lambda data: exporter._export(data).name == "SUCCESS"


_CONNECT: dict[str, Callable[[Any], Callable[[bytes], bool]]] = {"otlp_proto_http": _over_http, "otlp_proto_grpc": _over_grpc}
