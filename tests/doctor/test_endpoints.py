"""Wrong endpoints, planted: each gives the problem and the fix; right ones accept a test span."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import pytest

from tests.doctor.conftest import Doctor
from tests.replay.receivers import scripted
from tests.support.otlp_receivers import RECEIVERS, dead_endpoint, grpc_receiver, http_receiver

trustme = pytest.importorskip("trustme")


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_a_test_span_is_accepted(doctor: Doctor, protocol: str) -> None:
    """It arrives once, under the service of the program, and the doctor has nothing to say."""
    with RECEIVERS[protocol]() as received:
        told = doctor(
            OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OTEL_SERVICE_NAME="patient",
            OTEL_EXPORTER_OTLP_HEADERS="x-team=a",
        )  # fmt: skip
    words = {"grpc": "gRPC", "http/protobuf": "HTTP"}[protocol]
    assert told.topic("endpoints")["traces"]["value"] == f"test span (inferspan doctor) accepted by {received.endpoint} by {words}"
    assert [span.name for span in received.spans()] == ["inferspan doctor"]
    resource = received.of("traces")[0].resource_spans[0].resource
    assert resource.attributes[0].value.string_value == "patient"
    assert {headers["x-team"] for _, _, headers, *_ in received.requests} == {"a"}
    assert (told.whole["problems"], told.code) == ([], 0)


def test_both_protocols_are_looked_at(doctor: Doctor) -> None:
    """Whatever is set, the doctor says what the port speaks."""
    with grpc_receiver() as received:
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    place = received.endpoint.removeprefix("http://")
    found = told.topic("endpoints")
    assert [found[f"{place} by {name}"]["value"] for name in ("gRPC", "HTTP")] == ["yes", "no"]


def test_nothing_is_sent_if_asked_for(doctor: Doctor) -> None:
    """``--no-send`` looks at the port only."""
    with scripted(lambda number, signal, message: (200, {}, b"")) as receiver:
        told = doctor("--no-send", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint)
    assert (receiver.requests, told.code) == ([], 0)


def test_http_to_a_port_of_grpc(doctor: Doctor) -> None:
    """The most common mistake has its name and its fix, once for all signals."""
    with grpc_receiver() as received:
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint)
    value, fix = told.problems["traces, metrics, logs"]
    assert value == f"{received.endpoint}: it speaks gRPC, and HTTP is set"
    assert fix == "set OTEL_EXPORTER_OTLP_PROTOCOL=grpc, or the address of its port for HTTP, often 4318"
    assert (len(told.problems), told.code) == (1, 1)


def test_grpc_to_a_port_of_http(doctor: Doctor) -> None:
    """And the other way round."""
    with http_receiver() as received:
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert told.problems["traces, metrics, logs"][1].startswith("set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or")


def test_nothing_listens(doctor: Doctor) -> None:
    """One problem for the address, with the variable to correct."""
    with dead_endpoint("closed") as address:
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=address)
    (name, (value, fix)) = next(iter(told.problems.items()))
    assert (name, value) == (address.removeprefix("http://"), "nothing listens there")
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in fix
    assert len(told.problems) == 1


def test_a_silent_port(doctor: Doctor) -> None:
    """What accepts connections and says nothing is no receiver."""
    with dead_endpoint("silent") as address:
        told = doctor("--timeout", "0.5", OTEL_EXPORTER_OTLP_ENDPOINT=address)
    assert told.problems["traces, metrics, logs"][0] == f"{address}: it speaks neither gRPC nor HTTP"


def test_an_unknown_host(doctor: Doctor) -> None:
    """The name is at fault, not the collector."""
    told = doctor(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://no-such-host.invalid:4318/v1/traces")
    assert told.problems["no-such-host.invalid:4318"] == ("its host name is not known", "correct the host in OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@pytest.mark.parametrize(("headers", "said"), [("", "no header is sent"), ("authorization=Bearer%20s3cret", "authorization=***")])
def test_a_receiver_that_wants_a_token(doctor: Doctor, headers: str, said: str) -> None:
    """401: the variable for the token, and which headers were sent, without their values."""
    with scripted(lambda number, signal, message: (401, {}, b"")) as receiver:
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint, OTEL_EXPORTER_OTLP_HEADERS=headers)
    value, fix = told.problems["traces"]
    assert "401: the token in OTEL_EXPORTER_OTLP_HEADERS is missing or not accepted" in value
    assert fix.startswith("set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20TOKEN")
    assert said in fix
    assert "s3cret" not in told.text


def test_a_receiver_of_grpc_that_wants_a_token(doctor: Doctor) -> None:
    """The same over gRPC."""

    class Refusing(grpc.ServerInterceptor):  # type: ignore[misc, unused-ignore]
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token"))

    server = grpc.server(ThreadPoolExecutor(2), interceptors=[Refusing()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    finally:
        server.stop(0).wait()
    assert "401: the token" in told.problems["traces"][0]


def test_a_receiver_of_traces_alone(doctor: Doctor) -> None:
    """Jaeger takes no metrics: that is a warning with two ways out."""
    with scripted(lambda number, signal, message: (200 if signal == "traces" else 404, {}, b"")) as receiver:
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint)
    fixes = {finding["name"]: finding["fix"] for finding in told.whole["warnings"]}
    assert fixes["metrics"] == "send metrics through a collector, or set OTEL_METRICS_EXPORTER=none"
    assert told.code == 0


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_an_address_without_a_scheme(doctor: Doctor, protocol: str) -> None:
    """Over HTTP it is no address, over gRPC it means TLS."""
    with RECEIVERS[protocol]() as received:
        place = received.endpoint.removeprefix("http://")
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=place, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    if protocol == "grpc":
        assert told.problems["traces, metrics, logs"] == (
            f"https://{place}: TLS is set, and it speaks without",
            f"set OTEL_EXPORTER_OTLP_ENDPOINT=http://{place}",
        )
    else:
        assert told.problems["OTEL_EXPORTER_OTLP_ENDPOINT"][1] == "it needs http:// or https:// in front"


@contextmanager
def https_receiver(folder: Path) -> Iterator[tuple[str, Path]]:
    """A receiver with TLS, and the certificate of its authority."""
    authority = trustme.CA()
    trusted = folder / "authority.pem"
    authority.cert_pem.write_to_path(trusted)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def get_request(self) -> tuple[Any, Any]:
            connection, address = super().get_request()
            return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", trusted
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_tls_to_a_plain_port(doctor: Doctor) -> None:
    """https:// where there is none."""
    with http_receiver() as received:
        address = received.endpoint.replace("http://", "https://")
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=address)
    assert told.problems["traces, metrics, logs"] == (
        f"{address}: TLS is set, and it speaks without",
        f"set OTEL_EXPORTER_OTLP_ENDPOINT={received.endpoint}",
    )


def test_a_plain_address_of_a_port_with_tls(doctor: Doctor, tmp_path: Path) -> None:
    """http:// where TLS is spoken."""
    with https_receiver(tmp_path) as (place, _):
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{place}")
    assert told.problems["traces, metrics, logs"] == (
        f"http://{place}: it speaks TLS, and that is not set",
        f"set OTEL_EXPORTER_OTLP_ENDPOINT=https://{place}",
    )


def test_a_certificate_that_is_not_trusted(doctor: Doctor, tmp_path: Path) -> None:
    """The variable for the authority; with it, everything is well."""
    with https_receiver(tmp_path) as (place, trusted):
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=f"https://{place}")
        well = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=f"https://{place}", OTEL_EXPORTER_OTLP_CERTIFICATE=str(trusted))
    assert told.problems["traces"] == (
        f"https://{place} by HTTP: its certificate is not trusted",
        "set OTEL_EXPORTER_OTLP_CERTIFICATE to the file of its authority",
    )
    assert (well.whole["problems"], well.code) == ([], 0)


def test_grpc_over_tls(doctor: Doctor, tmp_path: Path) -> None:
    """The certificate counts there as well."""
    authority = trustme.CA()
    trusted = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(trusted)
    issued = authority.issue_cert("127.0.0.1")
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(issued.private_key_pem.bytes(), chain)]))
    server.start()
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"https://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    try:
        told = doctor("--timeout", 60, **environ)
        trusting = doctor("--timeout", 60, **environ, OTEL_EXPORTER_OTLP_CERTIFICATE=str(trusted))
    finally:
        server.stop(0).wait()
    assert told.topic("endpoints")[f"127.0.0.1:{port}"]["value"] == "speaks gRPC over TLS"
    assert told.problems["traces"][1] == "set OTEL_EXPORTER_OTLP_CERTIFICATE to the file of its authority"
    # The server has no service at all: the connection came about.
    assert "it speaks gRPC, but has no receiver for this signal" in trusting.problems["traces"][0]


def test_an_exporter_that_is_not_installed(doctor: Doctor, tmp_path: Path) -> None:
    """The package for the protocol is named."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name.startswith('opentelemetry.exporter.otlp.proto.grpc'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing)\n"
    )
    with grpc_receiver() as received:
        told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="grpc", PYTHONPATH=str(folder))
    assert told.problems["traces"] == (
        "the exporter for OTLP over gRPC is not installed",
        "pip install opentelemetry-exporter-otlp-proto-grpc",
    )


def test_something_else_than_a_receiver(doctor: Doctor) -> None:
    """A server of another protocol on the port is told from a collector."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        told = doctor("--timeout", "1", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        listener.close()
    assert "it speaks neither gRPC nor HTTP" in told.problems["traces, metrics, logs"][0]


def test_without_a_destination(doctor: Doctor) -> None:
    """Nothing leaves the process, and the two ways to change that are named."""
    told = doctor()
    value, fix = told.problems["destination"]
    assert value == "none is named: nothing leaves the process"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in fix
    assert "INFERSPAN_SESSION_FILE" in fix
