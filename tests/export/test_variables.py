"""The standard variables: which exporters they name, and what happens to wrong ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from inferspan.export import variables
from inferspan.setting_checks import without_secrets


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
    ("environ", "expected", "message"),
    [
        ({"OTEL_TRACES_EXPORTER": "otpl"}, (), "OTEL_TRACES_EXPORTER=otpl: otpl is not used: use otlp, console, none, or a list of them"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp,x"},
            ("otlp_proto_http",),
            "OTEL_TRACES_EXPORTER=otlp,x: x is not used: use otlp, console, none, or a list of them",
        ),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            ("otlp_proto_http",),
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/json is ignored, http/protobuf is used: use grpc or http/protobuf",
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "tcp"},
            ("otlp_proto_http",),
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=tcp is ignored, http/protobuf is used: use grpc or http/protobuf",
        ),
    ],
)
def test_unknown_exporter_or_protocol_is_a_warning_and_the_nearest(
    environ: Mapping[str, str], expected: tuple[str, ...], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What no package provides is left out, a protocol that no exporter speaks is replaced; one warning names the variable."""
    assert variables.choose_exporters(environ, "traces") == expected
    assert variables.choose_exporters(environ, "traces") == expected
    assert caplog.messages == [message]


def test_logging_is_the_old_name_of_the_console(caplog: pytest.LogCaptureFixture) -> None:
    """The exporter that the specification called logging is the one it calls console now."""
    assert variables.choose_exporters({"OTEL_TRACES_EXPORTER": "logging"}, "traces") == ("console",)
    assert caplog.messages == []


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


def test_number_that_is_too_large_is_a_warning_and_the_default(caplog: pytest.LogCaptureFixture) -> None:
    """What the receiving end cannot hold is said with the limit."""
    assert variables.positive_number({"A": "9" * 30}, 7.0, "A", most=100) == 7.0
    assert caplog.messages == [f"A={'9' * 30} is ignored, 7 is used: it must be a number above zero, at most 100"]


def test_first_variable_that_is_set_counts() -> None:
    """Names are looked at in the order given."""
    assert variables.positive_number({"A": "", "B": " 2.5 ", "C": "3"}, 7.0, "A", "B", "C") == 2.5


@pytest.mark.parametrize(
    ("environ", "messages", "never"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, [], {}),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"},
            ["OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4318 cannot be reached: it needs http:// or https:// in front"],
            {"traces": ["otlp_proto_http"], "metrics": ["otlp_proto_http"]},
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, [], {}),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "unix:///run/c.sock", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, [], {}),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://[::1"},
            ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT cannot be reached: it is no address"],
            {"traces": ["otlp_proto_http"]},
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://me:secret@:1?key=secret", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT cannot be reached: it names no host and port"],
            {"traces": ["otlp_proto_grpc"]},
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318/v1/traces"},
            [
                "OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318: /v1/traces is added to this variable, so leave the path"
                " away or set OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
            ],
            {},
        ),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, [], {}),
    ],
)
def test_endpoints_that_cannot_work(
    environ: Mapping[str, str], messages: list[str], never: dict[str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """An endpoint that no exporter can use, or a base one with a signal's path, is a warning without secrets that says what to write."""
    assert variables.unreachable(environ, ("traces", "metrics")) == never
    assert caplog.messages == messages


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://host:4318/v1/traces", "http://host:4318/v1/traces"),
        ("http://user:pass@host:4318", "http://host:4318"),
        ("http://user:p@ss/w@host:4318", "http://host:4318"),
        ("user:pass@host:4317", "host:4317"),
        ("Invalid URL 'http://token@host/v1?key=abc': no", "Invalid URL 'http://host/v1?': no"),
    ],
)
def test_secrets_of_an_address_are_cut(text: str, expected: str) -> None:
    """Neither user, password nor query is left of an address in a text."""
    assert without_secrets(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://host:4318/v1/traces?key=abc#def", "http://host:4318"),
        ("host.local:4317", "host.local:4317"),
        ("http://[::1]:4318", "http://[::1]:4318"),
        ("http://user:p@ss@host:4318", "http://host:4318"),
        ("http://user:p'ss \"<@host:4318", "http://host:4318"),
        ("SECRET@host:4317", "host:4317"),
        ("http://[::1:SECRET", None),
        ("http://host:SECRET", None),
        ("http://user:SECRET/x@host:4318", None),
        ("http://host/v1?key=SECRET@more", None),
        ("http://user:SECRET", None),
        ("SECRET://x://host", None),
        ("Bearer SECRET", None),
        ("unix:///run/SECRET", None),
    ],
)
def test_address_of_an_endpoint(text: str, expected: str | None) -> None:
    """Scheme, host and port; nothing where it cannot be told which part of the endpoint is a secret."""
    assert variables.plain_address(text) == expected
