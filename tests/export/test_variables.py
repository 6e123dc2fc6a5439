"""The standard variables: which exporters they name, and what happens to wrong ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from inferspan.export import variables
from inferspan.settings import SettingsError


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("otlp_proto_http",)),
        ({"OTEL_TRACES_EXPORTER": ""}, ("otlp_proto_http",)),
        ({"OTEL_TRACES_EXPORTER": "none"}, ()),
        ({"OTEL_TRACES_EXPORTER": "console"}, ("console",)),
        ({"OTEL_TRACES_EXPORTER": " otlp , Console,otlp"}, ("otlp_proto_http", "console")),
        ({"OTEL_TRACES_EXPORTER": "otlp_proto_grpc"}, ("otlp_proto_grpc",)),
        ({"OTEL_METRICS_EXPORTER": "none"}, ("otlp_proto_http",)),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("otlp_proto_grpc",)),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, ("otlp_proto_http",)),
        ({"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}, ("otlp_proto_http",)),
    ],
)
def test_exporters_of_traces(environ: Mapping[str, str], expected: tuple[str, ...]) -> None:
    """The exporter list and the protocol, the signal's own before the general one, choose exporters."""
    assert variables.choose_exporters(environ, "traces") == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"OTEL_TRACES_EXPORTER": "otpl"}, "OTEL_TRACES_EXPORTER cannot be 'otpl': use otlp, console, none, or a list of them"),
        ({"OTEL_TRACES_EXPORTER": "otlp,x"}, "OTEL_TRACES_EXPORTER cannot be 'otlp,x': use otlp, console, none, or a list of them"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL cannot be 'http/json': use grpc or http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "tcp"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL cannot be 'tcp': use grpc or http/protobuf"),
    ],
)
def test_unknown_exporter_or_protocol_is_an_error(environ: Mapping[str, str], message: str) -> None:
    """The one error names the variable, its value and what is allowed."""
    with pytest.raises(SettingsError) as caught:
        variables.choose_exporters(environ, "traces")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("environ", "signals"),
    [
        ({}, []),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, ["traces", "metrics", "logs"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_LOGS_EXPORTER": "none"}, ["traces", "metrics"]),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, ["metrics"]),
        ({"OTEL_TRACES_EXPORTER": "console"}, ["traces"]),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, []),
    ],
)
def test_destinations(environ: Mapping[str, str], signals: list[str]) -> None:
    """An endpoint or an exporter names where a signal goes; a protocol, an empty value or "none" does not."""
    assert [signal for signal in variables.SIGNALS if variables.destination(environ, signal)] == signals
    assert variables.names_destination(environ) is bool(signals)


def test_configuration_file_is_a_destination() -> None:
    """A configuration file counts as a destination as a whole."""
    assert variables.names_destination({"OTEL_CONFIG_FILE": "otel.yaml"})


@pytest.mark.parametrize("text", ["abc", "0", "-5", "nan", "inf", ""])
def test_wrong_number_is_a_warning_and_the_default(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """A number that cannot be used is said so once and the default counts; an empty one counts as not set."""
    with caplog.at_level(logging.WARNING, logger="inferspan"):
        assert variables.positive_number({"A": text}, 7.0, "A") == 7.0
    expected = [f"A={text} is ignored, 7 is used: it must be a number above zero"] if text else []
    assert [record.getMessage() for record in caplog.records] == expected


def test_first_variable_that_is_set_counts() -> None:
    """Names are looked at in the order given."""
    assert variables.positive_number({"A": "", "B": " 2.5 ", "C": "3"}, 7.0, "A", "B", "C") == 2.5


@pytest.mark.parametrize(
    ("environ", "messages"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, []),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"},
            ["OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4318 cannot be reached: it needs http:// or https:// in front"],
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, []),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318/v1/traces"},
            [
                "OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318/v1/traces: /v1/traces is added to this variable, so leave the path"
                " away or set OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
            ],
        ),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, []),
    ],
)
def test_endpoints_that_cannot_work(environ: Mapping[str, str], messages: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """An endpoint without a scheme, or a base one with a signal's path, is a warning that says what to write."""
    variables.check_endpoints(environ, ("traces", "metrics"))
    assert caplog.messages == messages
