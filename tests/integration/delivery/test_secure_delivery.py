"""TLS and bearer tokens from a program to the agent and from there to a gateway, as the overlays set them up.

Certificates come from an authority made for the test. Who speaks plain text, trusts another authority, or shows a wrong token or none, is
refused before anything is acknowledged.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc  # type: ignore[import-untyped, unused-ignore]
import pytest
import trustme
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

from tests.integration.conftest import plain_environment
from tests.integration.delivery.fleet import ALL_TO_ONE, Fleet, Node, running_fleet, send
from tests.integration.delivery.telemetry_made import request_spans, trace_message
from tests.integration.servers import eventually
from tests.support.otlp_receivers import Received, grpc_receiver

pytestmark = pytest.mark.integration

TOKENS = {"programs": "token-of-the-programs", "gateway": "token-of-the-agents"}
NAMES = ("localhost", "otelcol-gateway", "127.0.0.1")
PROGRAM = """
import torch
import inferspan

model = torch.nn.Linear(4, 4)
handle = inferspan.instrument(model)
model(torch.ones(1, 4))
inferspan.flush()
"""


@dataclass(frozen=True)
class Secured:
    """An agent before a gateway, both with TLS and tokens, and where it all ends."""

    agent: Node
    gateway: Node
    last: Received
    folder: Path

    @property
    def https(self) -> str:
        """Where programs send to."""
        return f"https://localhost:{self.agent.ports[1]}"

    def trust(self, authority: str = "ca", *, certified: bool = True) -> ssl.SSLContext:
        """What a client needs to know of the authority; by default it has a certificate of its own, too."""
        context = ssl.create_default_context(cafile=str(self.folder / f"{authority}.pem"))
        if certified:
            context.load_cert_chain(self.folder / "ca-host.pem", self.folder / "ca-host.key")
        return context


def authority(folder: Path, name: str) -> None:
    """Make a certificate authority, and with it a certificate for this host."""
    made = trustme.CA(organization_name=name)
    host = made.issue_cert(*NAMES)
    made.cert_pem.write_to_path(str(folder / f"{name}.pem"))
    host.private_key_pem.write_to_path(str(folder / f"{name}-host.key"))
    for pem in host.cert_chain_pems:
        pem.write_to_path(str(folder / f"{name}-host.pem"), append=True)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Agent and gateway with both overlays; the gateway asks for certificates of its agents, too."""
    folder = tmp_path_factory.mktemp("secure")
    for name in ("ca", "other"):
        authority(folder, name)
    for name, token in TOKENS.items():
        (folder / f"{name}.token").write_text(f"{token}\n", encoding="utf-8")
    own = {"OTELCOL_TLS_CERT": str(folder / "ca-host.pem"), "OTELCOL_TLS_KEY": str(folder / "ca-host.key")}
    with running_fleet(folder, plain_environment()) as fleet, grpc_receiver() as last:
        gateway = _gateway(fleet, last, own)
        agent = _agent(fleet, gateway, own)
        gateway.start(wait=False)
        agent.start()
        gateway.ready()
        yield Secured(agent, gateway, last, folder)


def _gateway(fleet: Fleet, last: Received, own: dict[str, str]) -> Node:
    share = {
        "OTELCOL_BASELINE_PERCENT": "100",
        "OTELCOL_DECISION_WAIT_AFTER_ROOT": "1s",
        "OTELCOL_TOKEN_FILE": str(fleet.folder / "gateway.token"),
        "OTELCOL_TLS_CLIENT_CA": str(fleet.folder / "ca.pem"),
    }
    return fleet.gateway(last.endpoint, overlays=["gateway-tls.yaml", "gateway-token.yaml", ALL_TO_ONE], **own, **share)


def _agent(fleet: Fleet, gateway: Node, own: dict[str, str], name: str = "agent", token: str = "gateway") -> Node:
    tokens = {"OTELCOL_TOKEN_FILE": str(fleet.folder / "programs.token"), "GATEWAY_TOKEN_FILE": str(fleet.folder / f"{token}.token")}
    shown = {"GATEWAY_TLS_CERT": own["OTELCOL_TLS_CERT"], "GATEWAY_TLS_KEY": own["OTELCOL_TLS_KEY"]}
    overlays = ["agent-tls.yaml", "agent-token.yaml"]
    return fleet.agent(gateway.grpc, name=name, overlays=overlays, GATEWAY_TLS_CA=str(fleet.folder / "ca.pem"), **own, **tokens, **shown)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_program_sends_through_tls_with_its_token(secured: Secured, protocol: str) -> None:
    """A program that was given authority and token by OpenTelemetry's own variables gets its spans through both collectors."""
    port = secured.agent.ports[1 if protocol == "http/protobuf" else 0]
    service = f"secured-{protocol[:4]}"
    # These two would count instead of the authority given here: the HTTP exporter's library prefers them.
    kept = {name: value for name, value in plain_environment().items() if name not in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")}
    environment = {
        **kept,
        "OTEL_SERVICE_NAME": service,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://localhost:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(secured.folder / "ca.pem"),
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{TOKENS['programs']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    result = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr

    def look() -> None:
        seen = {
            (kind, item.value.string_value)
            for kind in ("traces", "metrics")
            for message in secured.last.of(kind)
            for holder in (message.resource_spans if kind == "traces" else message.resource_metrics)
            for item in holder.resource.attributes
            if item.key == "service.name"
        }
        assert {("traces", service), ("metrics", service)} <= seen

    eventually(look)


def test_a_wrong_token_is_refused(secured: Secured) -> None:
    """The right token is acknowledged; a wrong one and none are 401, at the agent and at the gateway."""
    for node, right in ((secured.agent, TOKENS["programs"]), (secured.gateway, TOKENS["gateway"])):
        url = f"https://localhost:{node.ports[1]}"
        answers = {
            token: send(url, "traces", trace_message(request_spans()), token=token, tls=secured.trust()).status
            for token in (right, "wrong", "", *(set(TOKENS.values()) - {right}))
        }
        assert answers == {token: 200 if token == right else 401 for token in answers}
    print("token: right 200; wrong, missing and the other hop's 401")


def test_a_wrong_token_is_refused_over_grpc(secured: Secured) -> None:
    """The same over gRPC: UNAUTHENTICATED, after which a sender does not try again."""
    credentials = grpc.ssl_channel_credentials((secured.folder / "ca.pem").read_bytes())
    codes = {}
    with grpc.secure_channel(f"localhost:{secured.agent.ports[0]}", credentials) as channel:
        export = trace_service_pb2_grpc.TraceServiceStub(channel).Export
        for token in (TOKENS["programs"], "wrong", ""):
            metadata = [("authorization", f"Bearer {token}")] if token else []
            try:
                export(trace_message(request_spans()), metadata=metadata, timeout=20)
                codes[token] = grpc.StatusCode.OK
            except grpc.RpcError as error:
                codes[token] = error.code()
    refused = grpc.StatusCode.UNAUTHENTICATED
    assert codes == {TOKENS["programs"]: grpc.StatusCode.OK, "wrong": refused, "": refused}


def test_plain_text_and_strangers_are_refused(secured: Secured) -> None:
    """Plain HTTP to the TLS port is not taken, and a client that trusts another authority does not send."""
    message = trace_message(request_spans())
    plain = send(secured.https.replace("https", "http"), "traces", message, token=TOKENS["programs"])
    stranger = send(secured.https, "traces", message, token=TOKENS["programs"], tls=secured.trust("other"))
    assert (plain.status, stranger.status) == (400, 0)


def test_an_agent_without_a_certificate_is_refused(secured: Secured) -> None:
    """A gateway that asks for certificates does not hear a client that has none, whatever its token."""
    url, message = f"https://localhost:{secured.gateway.ports[1]}", trace_message(request_spans())
    answers = [send(url, "traces", message, token=TOKENS["gateway"], tls=secured.trust(certified=each)) for each in (True, False)]
    assert [answer.status for answer in answers] == [200, 0]


def test_an_agent_with_a_wrong_token_loses_what_it_took(secured: Secured, fleet: Fleet) -> None:
    """A gateway that refuses the agent's token makes the agent drop: this cannot heal by waiting, and its log says so."""
    for name in ("programs.token", "ca.pem", "ca-host.pem", "ca-host.key"):
        shutil.copy(secured.folder / name, fleet.folder / name)
    (fleet.folder / "wrong.token").write_text("wrong\n", encoding="utf-8")
    own = {"OTELCOL_TLS_CERT": str(fleet.folder / "ca-host.pem"), "OTELCOL_TLS_KEY": str(fleet.folder / "ca-host.key")}
    agent = _agent(fleet, secured.gateway, own, "stray", "wrong").start()
    spans = request_spans()
    url = f"https://localhost:{agent.ports[1]}"
    assert send(url, "traces", trace_message(spans), token=TOKENS["programs"], tls=secured.trust()).acknowledged

    def look() -> None:
        log = agent.log.read_text(encoding="utf-8")
        assert "Unauthenticated" in log and "Dropping data" in log

    eventually(look)
    assert spans[0].trace_id not in {span.trace_id for span in secured.last.spans()}
