"""Whether endpoints can be reached, in both protocols, and whether they accept telemetry; if not, the reason and the fix."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from inferspan import semconv
from inferspan.doctor.findings import Finding, Look, note, ok, problem, warning
from inferspan.export.client.endpoints import Endpoint, endpoint_of
from inferspan.export.client.probing import Listener, listener_at
from inferspan.export.client.sending import ACCEPTED, Answer, connect
from inferspan.export.variables import SIGNALS

__all__ = ["endpoints"]

_PORTS = {4317: "grpc", 4318: "http/protobuf"}
_NAMES = {"grpc": "gRPC", "http/protobuf": "HTTP"}
_TEST_SPAN = "inferspan doctor"


def endpoints(look: Look) -> Iterator[Finding]:
    """For each address, what listens there; for each signal, what became of a request."""
    chosen: dict[str, list[str]] = look.shared.get("ours", {})
    found = [
        endpoint_of(signal, look.environ, protocol="grpc" if kind == "grpc" else "http/protobuf", seconds=look.seconds)
        for signal in SIGNALS
        for kind in chosen.get(signal, ())
        if kind in ("grpc", "http")
    ]
    if not found:
        yield note("endpoint", "telemetry is not sent by OTLP")
        yield from _collector_here()
        return
    listeners: dict[tuple[str, int], Listener] = {}
    disagreeing: dict[tuple[str, str], list[str]] = {}
    for endpoint in found:
        if endpoint.fault:
            yield problem(endpoint.signal, f"{endpoint.address}: {endpoint.fault}", f"set {_variable(endpoint)} to {_corrected(endpoint)}")
            continue
        place = endpoint.place
        if place not in listeners:
            listeners[place] = listener_at(*place, seconds=look.seconds)
            yield from _reached(endpoint, listeners[place])
        mismatch = _mismatch(endpoint, listeners[place])
        if mismatch is not None:
            disagreeing.setdefault((f"{endpoint.address}: {mismatch[0]}", mismatch[1]), []).append(endpoint.signal)
        elif look.send and not listeners[place].reason:
            yield _sent(endpoint, look)
    for (text, fix), signals in disagreeing.items():
        yield problem(", ".join(signals), text, fix)


def _variable(endpoint: Endpoint) -> str:
    return endpoint.source or "OTEL_EXPORTER_OTLP_ENDPOINT"


def _corrected(endpoint: Endpoint) -> str:
    return "http://localhost:4317" if endpoint.protocol == "grpc" else "an address such as http://localhost:4318"


def _reached(endpoint: Endpoint, listener: Listener) -> Iterator[Finding]:
    host, port = endpoint.place
    name = f"{host}:{port}"
    source = endpoint.source or "default"
    if listener.reason:
        yield problem(name, listener.reason, _fix_of(endpoint, listener), source)
        return
    yield note(name, f"speaks {listener.words}", source)
    for protocol, yes in (("gRPC", listener.grpc), ("HTTP", listener.http)):
        yield note(f"{name} by {protocol}", "yes" if yes else "no")


def _fix_of(endpoint: Endpoint, listener: Listener) -> str:
    host, port = endpoint.place
    if "nothing listens" in listener.reason:
        other = [each for each in _PORTS if each != port and not listener_at(host, each, 0.5).reason]
        if other:
            return f"port {other[0]} of {host} listens: is {_variable(endpoint)}=http://{host}:{other[0]} meant?"
        return f"start the collector (inferspan stack up on this machine), or correct {_variable(endpoint)}"
    if "host name" in listener.reason:
        return f"correct the host in {_variable(endpoint)}"
    return f"check {_variable(endpoint)}, the firewall, and whether the collector listens on all interfaces"


def _mismatch(endpoint: Endpoint, listener: Listener) -> tuple[str, str] | None:
    """What the listener speaks instead of what is set, and the fix; ``None`` if they agree."""
    host, port = endpoint.place
    variable, bare = _variable(endpoint), f"{'https' if listener.tls else 'http'}://{host}:{port}"
    if listener.reason:
        return None
    if endpoint.secure != listener.tls:
        if endpoint.secure:
            return "TLS is set, and it speaks without", f"set {variable}={bare}"
        return "it speaks TLS, and that is not set", f"set {variable}={bare}"
    wanted = listener.grpc if endpoint.protocol == "grpc" else listener.http
    if wanted:
        return None
    if listener.grpc or listener.http:
        other = "grpc" if listener.grpc else "http/protobuf"
        usual = 4317 if endpoint.protocol == "grpc" else 4318
        return (
            f"it speaks {_NAMES[other]}, and {_NAMES[endpoint.protocol]} is set",
            f"set OTEL_EXPORTER_OTLP_PROTOCOL={other}, or the address of its port for {_NAMES[endpoint.protocol]}, often {usual}",
        )
    return "it speaks neither gRPC nor HTTP", f"correct {variable}: this is no receiver for OTLP"


def _sent(endpoint: Endpoint, look: Look) -> Finding:
    """A test span, or an empty request of another signal, and its acceptance."""
    what = f"test span ({_TEST_SPAN})" if endpoint.signal == "traces" else f"empty request of {endpoint.signal}"
    by = f"{endpoint.address} by {_NAMES[endpoint.protocol]}"
    try:
        client = connect(endpoint)
    except ImportError as error:
        return problem(endpoint.signal, f"cannot be sent to {by}", str(error))
    except OSError as error:
        return problem(endpoint.signal, f"a certificate or key cannot be read: {error.strerror}", "correct OTEL_EXPORTER_OTLP_*CERTIFICATE")
    try:
        answer = client.send(_request(endpoint.signal, look))
    except Exception as error:  # of a library, about headers that cannot be sent and the like
        return problem(endpoint.signal, f"{what} cannot be sent to {by} ({type(error).__name__})", "check OTEL_EXPORTER_OTLP_HEADERS")
    finally:
        client.close()
    return _of_answer(endpoint, answer, what, by)


def _of_answer(endpoint: Endpoint, answer: Answer, what: str, by: str) -> Finding:
    if answer.state == ACCEPTED and not answer.rejected:
        words = f", it says: {answer.reason}" if answer.reason else ""
        return ok(endpoint.signal, f"{what} accepted by {by}{words}", endpoint.source)
    if answer.state == ACCEPTED:
        return problem(endpoint.signal, f"{what} rejected by {by}", f"it says: {answer.reason or 'nothing'}", endpoint.source)
    reason = answer.reason
    text = f"{by}: {reason}"
    if "no receiver" in reason and endpoint.signal != "traces":
        fix = f"send {endpoint.signal} through a collector, or set OTEL_{endpoint.signal.upper()}_EXPORTER=none"
        return warning(endpoint.signal, text, fix, endpoint.source)
    if "no receiver" in reason:
        fix = f"correct the path in {_variable(endpoint)}"
    elif "token" in reason:
        sent = ", ".join(f"{key}=***" for key in sorted(endpoint.headers))
        headers = f"headers are sent: {sent}" if sent else "no header is sent"
        fix = f"set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20TOKEN; {headers}"
    elif "certificate" in reason:
        text, fix = f"{by}: {reason.partition(':')[0]}", "set OTEL_EXPORTER_OTLP_CERTIFICATE to the file of its authority"
    else:
        fix = f"see the log of what listens there; {_variable(endpoint)} names it"
    return problem(endpoint.signal, text, fix, endpoint.source)


def _request(signal: str, look: Look) -> bytes:
    if signal != "traces":
        return b""  # a request without items
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    now = time.time_ns()
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    attribute = resource.resource.attributes.add(key="service.name")
    attribute.value.string_value = service_name(look)
    scope = resource.scope_spans.add()
    scope.scope.name = semconv.SCOPE
    times = {"start_time_unix_nano": now - 1_000_000, "end_time_unix_nano": now}
    scope.spans.add(trace_id=os.urandom(16), span_id=os.urandom(8), name=_TEST_SPAN, kind=1, **times)
    return bytes(request.SerializeToString())


def service_name(look: Look) -> str:
    """The service under which the program's telemetry is found."""
    from opentelemetry.util.re import parse_env_headers

    named = look.environ.get("OTEL_SERVICE_NAME", "").strip()
    attributes = parse_env_headers(look.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""), liberal=True)
    return named or attributes.get("service.name", "") or look.name or "unknown_service:python"


def _collector_here() -> Iterator[Finding]:
    """A collector on this machine that nothing is sent to."""
    for port, protocol in _PORTS.items():
        listener = listener_at("127.0.0.1", port, 0.5)
        if listener.grpc if protocol == "grpc" else listener.http:
            word = "" if protocol == "http/protobuf" else " and OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
            text = f"something listens there: OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:{port}{word} would send to it"
            yield note(f"localhost:{port}", text)
