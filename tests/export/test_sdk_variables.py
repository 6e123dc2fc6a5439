"""Variables that the SDK and its exporters would fail on."""

from __future__ import annotations

import pytest

from inferspan.export.sdk_variables import unusable
from tests.export.program import Program
from tests.support.otlp_receivers import RECEIVERS

HTTP, GRPC = "http/protobuf", "grpc"


@pytest.mark.parametrize(
    ("protocol", "text", "rest", "names"),
    [
        (HTTP, "a=%F0%9F%98%80,b=1", "b=1", "a"),
        (HTTP, "b=1, a=x%0Ay ,c=2", "b=1,c=2", "a"),
        (HTTP, "a=😀,b=%7F", None, "a, b"),
        (HTTP, "c2Vjc+mV0=%01", None, "an entry"),
        (GRPC, "a=%C3%A9,b=1", "b=1", "a"),
        (GRPC, "a-bin=x,b=y z", "b=y z", "a-bin"),
        (GRPC, "a!=x,B=1", "B=1", "an entry"),
    ],
)
def test_headers_that_cannot_be_sent(protocol: str, text: str, rest: str | None, names: str) -> None:
    """They are left out, and named without their values; the others are kept as they stand."""
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_LOGS_HEADERS"):
        (found,) = unusable({name: text, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})
        assert (found.name, found.rest) == (name, rest)
        assert f" {names} cannot be sent" in found.reason


@pytest.mark.parametrize(
    ("protocol", "text"),
    [
        (HTTP, "a=%C3%A9,b=x y,c=%09,d-bin=x"),
        (HTTP, "not a header, Authorization: Bearer abc="),
        (GRPC, "Authorization=Bearer%20abc==,b_1.c=,d=~"),
        (GRPC, "not a header, Authorization: Bearer abc="),
    ],
)
def test_headers_that_can_be_sent(protocol: str, text: str) -> None:
    """So can those that exporters leave out by themselves: they do no harm, and part of them may be a secret."""
    assert unusable({"OTEL_EXPORTER_OTLP_HEADERS": text, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}) == []


@pytest.mark.parametrize(("protocol", "text"), [(HTTP, "hunter2%F0%9F%98%80"), (GRPC, "hunter2%C3%A9")])
def test_telemetry_arrives_without_the_header_that_cannot_be_sent(program: Program, protocol: str, text: str) -> None:
    """One warning names variable and header, the other headers are sent, and the value is nowhere."""
    body = "otlp.configure()\nrecord()\nprint(json.dumps([otlp.force_flush(20), os.environ['OTEL_EXPORTER_OTLP_HEADERS']]))\nos._exit(0)"
    with RECEIVERS[protocol]() as received:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        assert program(body, OTEL_EXPORTER_OTLP_HEADERS=f"token={text},team=ml", **environ) == [[True, f"token={text},team=ml"]]
    assert {headers["team"] for _, _, headers, _, _ in received.requests} == {"ml"}
    (line,) = program.log("WARNING")
    assert line.startswith("OTEL_EXPORTER_OTLP_HEADERS is used in part: the header token cannot be sent: ")
    assert "hunter2" not in program.errors
