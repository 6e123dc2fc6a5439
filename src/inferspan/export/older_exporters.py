"""What OTLP exporters of releases before 1.45 lack: an HTTP client of their own, small requests of metrics, reasons of gRPC.

In comes an exporter of such a release, and it leaves with the behaviour of a later one: status and error of a failure are told to the
delivery, as is what a receiver rejects, a redirection is no success, retries draw from a generator of their own, and spans that are
packed already can be sent. These releases do not change any more, so their private parts are used as they are. Over gRPC all releases
are alike in dropping what a receiver rejects.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from inferspan.export.client.answers import LONGEST_BODY, taken_by, taken_over_http
from inferspan.export.delivery import tell_attempt, tell_taken

__all__ = ["MODULES_OF_RETRIES", "adapt", "export_packed", "in_parts", "sends_itself"]

_HTTP = "opentelemetry.exporter.otlp.proto.http"
MODULES_OF_RETRIES = (f"{_HTTP}.trace_exporter", f"{_HTTP}.metric_exporter", f"{_HTTP}._log_exporter")
"""Until 1.44 each of them draws the jitter of its retries."""


def adapt(exporter: Any, kind: str, signal: str) -> None:
    """Change an exporter that has just been made; one over HTTP of 1.45 or later is left as it is.

    Args:
        exporter: for spans, metrics or log records.
        kind: ``http`` or ``grpc``.
        signal: ``traces``, ``metrics`` or ``logs``.
    """
    if kind == "http" and sends_itself(exporter):
        # It is followed as a GET, and what a page of a login answers to that is a success.
        exporter._session.post = functools.partial(exporter._session.post, allow_redirects=False)
        exporter._export = _telling(exporter._export, signal)
    connect = getattr(exporter, "_initialize_channel_and_stub", None)
    if kind == "grpc" and connect is not None:
        details = _tells_no_details()

        def connect_and_tell() -> None:
            connect()
            exporter._client.Export = _telling_grpc(exporter._client.Export, details=details)

        exporter._initialize_channel_and_stub = connect_and_tell
        exporter._client.Export = _telling_grpc(exporter._client.Export, details=details)


def _tells_no_details() -> bool:
    """Whether the line of the exporter over gRPC about a failure has the code only, as before 1.43."""
    from opentelemetry.exporter.otlp.proto.grpc.version import __version__

    return tuple(int(part) for part in __version__.split(".")[:2]) < (1, 43)


def sends_itself(exporter: Any) -> bool:
    """Whether an exporter over HTTP has no client to send for it, as those before 1.45."""
    return not hasattr(exporter, "_client") and hasattr(exporter, "_export") and hasattr(exporter, "_session")


def _telling(post: Callable[..., Any], signal: str) -> Callable[..., Any]:
    """One attempt over HTTP that tells why it failed, and what was rejected; the exporter's line has no status if it would try again."""

    def call(data: bytes, *args: Any, **kwargs: Any) -> Any:
        try:
            response = post(data, *args, **kwargs)
        except Exception as error:
            tell_attempt(repr(error))
            raise
        status = response.status_code
        if status >= 300:
            tell_attempt(f"code: {status}")
        if 300 <= status < 400:
            raise sys.modules["requests"].exceptions.TooManyRedirects(f"code: {status}")
        if status < 300:
            with contextlib.suppress(Exception):  # of a body that is broken off: the status counts then
                tell_taken(taken_over_http(signal, response.headers.get("Content-Type") or "", response.content[:LONGEST_BODY]))
        return response

    return call


def _telling_grpc(export: Callable[..., Any], *, details: bool) -> Callable[..., Any]:
    """One attempt over gRPC that tells what was rejected and, with ``details``, those of a failure: the exporter's line has its code."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            response = export(*args, **kwargs)
        except Exception as error:
            if details:
                said = getattr(error, "details", None)
                tell_attempt(str(said()) if callable(said) else repr(error))
            raise
        tell_taken(taken_by(response))
        return response

    return call


@dataclasses.dataclass(frozen=True)
class _Packed:
    """Bytes that stand where the exporter expects spans, and the message of its encoder."""

    data: bytes

    def __len__(self) -> int:
        """For the exporter's metrics of its own: these spans are counted by us."""
        return 0

    def SerializePartialToString(self) -> bytes:
        """The bytes."""
        return self.data


def export_packed(exporter: Any) -> Callable[[bytes], bool]:
    """How an exporter of spans over HTTP sends an ``ExportTraceServiceRequest`` that is packed already, with its own retries and deadline.

    Args:
        exporter: one that ``adapt`` has changed.
    """
    export = type(exporter).export
    names = {**export.__globals__, "encode_spans": lambda packed: packed}
    # Names are looked up at each call, and the retries' generator is one of them.
    names["random"] = random.Random()
    send = types.FunctionType(export.__code__, names, export.__name__, export.__defaults__, export.__closure__)
    return lambda data: bool(send(exporter, _Packed(data)).name == "SUCCESS")


def in_parts(export: Callable[..., Any], most: int) -> Callable[..., Any]:
    """The ``export`` of a metric exporter that sends at most so many data points in a request, all parts also after one has failed.

    Args:
        export: of the exporter.
        most: data points; a metric that has more goes alone.
    """

    def call(metrics_data: Any, *args: Any, **kwargs: Any) -> Any:
        results = [export(part, *args, **kwargs) for part in _parts(metrics_data, most)]
        return next((result for result in results if result.name != "SUCCESS"), results[-1])

    return call


def _parts(metrics_data: Any, most: int) -> Iterator[Any]:
    scopes = [(resource, scope) for resource in metrics_data.resource_metrics for scope in resource.scope_metrics]
    blocks = [(resource, scope, metric) for resource, scope in scopes for metric in scope.metrics]
    start, points = 0, 0
    for index, (_, _, metric) in enumerate(blocks):
        more = len(metric.data.data_points)
        if points + more > most and index > start:
            yield _put_together(metrics_data, blocks[start:index])
            start, points = index, 0
        points += more
    yield _put_together(metrics_data, blocks[start:])


def _put_together(metrics_data: Any, blocks: list[tuple[Any, Any, Any]]) -> Any:
    resources: dict[int, tuple[Any, dict[int, tuple[Any, list[Any]]]]] = {}
    for resource, scope, metric in blocks:
        scopes = resources.setdefault(id(resource), (resource, {}))[1]
        scopes.setdefault(id(scope), (scope, []))[1].append(metric)
    return dataclasses.replace(
        metrics_data,
        resource_metrics=[
            dataclasses.replace(
                resource, scope_metrics=[dataclasses.replace(scope, metrics=metrics) for scope, metrics in scopes.values()]
            )
            for resource, scopes in resources.values()
        ],
    )
