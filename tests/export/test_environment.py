"""What the environment says of the set-up: its numbers, its exporters, its files, and one warning for each thing that is wrong with it."""

from __future__ import annotations

import importlib.util
import inspect
import time

import pytest
from opentelemetry.sdk._logs import LoggerProvider

from tests.export.program import HOST, OURS, PROXIES, Program
from tests.support.otlp_receivers import RECEIVERS, attributes_of, dead_endpoint, trace_ids

needs_configuration = pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry.configuration") is None, reason="opentelemetry-configuration is not installed: it needs a later SDK"
)


def test_processor_settings(program: Program) -> None:
    """Our queue and batch are large and metrics go every 15 seconds, unless the standard variables say otherwise; wrong ones are ignored."""
    body = """
    otlp.configure()
    batch = trace.get_tracer_provider()._active_span_processor._span_processors[0]._batch_processor
    (reader,) = metrics.get_meter_provider()._measurement_consumer._reader_storages
    print(json.dumps([batch._max_queue_size, batch._max_export_batch_size, batch._schedule_delay_millis, reader._export_interval_millis]))
    os._exit(0)
    """
    assert program(body) == [[16384, 2048, 5000, 15000]]
    set_ = {"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_SCHEDULE_DELAY": "700", "OTEL_METRIC_EXPORT_INTERVAL": "60000"}
    assert program(body, **set_) == [[100, 100, 700, 60000]]
    assert program(body, **set_, OTEL_BSP_MAX_EXPORT_BATCH_SIZE="50") == [[100, 50, 700, 60000]]
    assert program.log("WARNING") == []
    wrong = {"OTEL_BSP_MAX_QUEUE_SIZE": "9" * 20, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "-1", "OTEL_METRIC_EXPORT_INTERVAL": "0"}
    assert program(body, **wrong) == [[16384, 2048, 5000, 15000]]
    assert [line.split("=")[0] for line in program.log("WARNING")] == list(wrong)


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("OTEL_METRIC_EXPORT_INTERVAL", "15000"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "30000"),
        ("OTEL_BSP_SCHEDULE_DELAY", "5000"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "1000"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10"),
    ],
)
def test_tiny_times_are_warnings(program: Program, name: str, default: str) -> None:
    """A time in which nothing can be done is one warning and the default, and the SDK has nothing to say about it."""
    with RECEIVERS["http/protobuf"]() as received:
        body = "otlp.configure()\nrecord()\nsys.exit(0 if otlp.force_flush(20) else 1)"
        program(body, **{name: "0.001", "OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint})
    (line,) = program.errors.splitlines()
    assert line.startswith(f"inferspan WARNING {name}=0.001 is ignored, {default} is used: it must be a number above zero, at least ")


def test_wrong_argument_of_a_sampler_is_one_line(program: Program) -> None:
    """Everything is sampled then, and the SDK does not say it again."""
    with RECEIVERS["http/protobuf"]() as received:
        environ = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "half", "OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint}
        assert program("otlp.configure()\nrecord()\nprint(json.dumps(os.environ['OTEL_TRACES_SAMPLER_ARG']))", **environ) == ["half"]
    assert len(received.spans()) == 1
    (line,) = program.errors.splitlines()
    assert line.startswith("inferspan WARNING OTEL_TRACES_SAMPLER_ARG=half is ignored: ")


def test_wrong_variables_of_the_sdk_are_warnings(program: Program) -> None:
    """Limits, filters, samplers and files that do not exist cost a warning each, never the program, and what is right counts."""
    body = """
    before = dict(os.environ)
    otlp.configure()
    record()
    limits = trace.get_tracer_provider()._span_limits
    print(json.dumps([kinds(), limits.max_events, limits.max_links, limits.max_span_attributes, before == dict(os.environ)]))
    os._exit(0)
    """
    wrong = {
        "OTEL_SPAN_EVENT_COUNT_LIMIT": "few",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "-1",
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "7" * 5000,
        "OTEL_METRICS_EXEMPLAR_FILTER": "some",
        "OTEL_TRACES_SAMPLER": "sometimes",
        "OTEL_PYTHON_ID_GENERATOR": "dice",
        "OTEL_BLRP_MAX_QUEUE_SIZE": "9" * 20,
        "OTEL_BLRP_SCHEDULE_DELAY": "soon",
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "nobody",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "no/such/file.pem",
        "OTEL_EXPORTER_OTLP_HEADERS": "Bearer secret",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "sideways",
        "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER": "nobody",
        "OTEL_PYTHON_TRACER_PROVIDER": "nobody",
        "OTEL_PYTHON_METER_PROVIDER": "nobody",
        "OTEL_PYTHON_LOGGER_PROVIDER": "nobody",
    }
    if "log_record_limits" not in inspect.signature(LoggerProvider).parameters:
        # Before 1.45 the SDK reads it at each log record, the program's too, and raises there.
        del wrong["OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"]
    assert program(body, **wrong, OTEL_SPAN_LINK_COUNT_LIMIT="7") == [[OURS, 128, 7, 128, True]]
    told = [line.replace(":", "=").split("=")[0] for line in program.log("WARNING")]
    assert sorted(told) == sorted(wrong)
    assert "Traceback" not in program.errors
    assert "secret" not in program.errors


@pytest.mark.parametrize(
    ("name", "value", "rest"),
    [
        ("OTEL_RESOURCE_ATTRIBUTES", "a", []),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=x,a,=b", ["team"]),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=x,", ["team"]),
        ("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "maybe", []),
        ("OTEL_PYTHON_CONTEXT", "nobody", []),
    ],
)
def test_line_of_the_sdk_that_names_no_variable_is_one_of_ours(program: Program, name: str, value: str, rest: list[str]) -> None:
    """One warning names the variable, the SDK is not asked about it, and the usable part of its value counts."""
    body = "otlp.configure()\nfound = trace.get_tracer_provider().resource.attributes\nprint(json.dumps([k for k in found if k in 'team a']))"
    assert program(f"{body}\nos._exit(0)", **{name: value}) == [rest]
    (line,) = program.errors.splitlines()
    assert line.startswith(f"inferspan WARNING {name}={value} is ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1:HUNTER2"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:HUN@TER2@127.0.0.1:port"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:'HUNTER2 <\"@127.0.0.1:9"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9/?key=HUNTER2'HUNTER2"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "HUNTER2@127.0.0.1:9"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "HUNTER2=HUNTER2\nHUNTER2"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "-----BEGIN PRIVATE KEY-----\nHUNTER2"),
        ("OTEL_TRACES_EXPORTER", "http://me:HUNTER2@127.0.0.1:9"),
        ("INFERSPAN_STEPS", "http://me:HUNTER2@127.0.0.1:9"),
    ],
)
def test_secret_of_the_environment_is_in_no_line(program: Program, name: str, value: str) -> None:
    """Neither a warning nor a failed request says anything of a user, a password, a key or a header."""
    body = "otlp.automatic_setup(Settings.resolve())\nrecord()\notlp.force_flush(1)\nprint(1)\nos._exit(0)"
    assert program(body, **{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1", name: value}) == [1]
    assert "HUN" not in program.errors
    assert "TER2" not in program.errors


@needs_configuration
@pytest.mark.parametrize(
    ("headers", "said"),
    [("{authorization: HUNTER2}", "does not match the schema at tracer_provider"), ('"HUNTER2', "in line"), ("*HUNTER2", "in line")],
)
def test_secret_of_a_configuration_file_is_in_no_line(program: Program, headers: str, said: str) -> None:
    """What is wrong with the file is said without a value of it, by us and by the packages that read it."""
    (program.path / "otel.yaml").write_text(CONFIG.replace("/v1/traces", f"/v1/traces, headers: {headers}"))
    assert program("otlp.configure()\nprint(1)\nos._exit(0)", OTEL_CONFIG_FILE="otel.yaml", OTEL_TRACES_EXPORTER="none") == [1]
    assert said in program.errors
    assert "HUNTER2" not in program.errors


@pytest.mark.parametrize(
    ("name", "value", "kinds"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", OURS),
        ("OTEL_METRICS_EXPORTER", "prometheus", [OURS[0], PROXIES[1], OURS[2]]),
        ("OTEL_TRACES_EXPORTER", "zipkin,otlp", OURS),
        ("INFERSPAN_SESSION_FILE", "no/such/s.jsonl", OURS),
        ("INFERSPAN_CONFIG", "no/such/file.yaml", OURS),
        ("INFERSPAN_PRESET", "huge", OURS),
    ],
)
@pytest.mark.parametrize("call", ["otlp.configure()", "otlp.automatic_setup(Settings.resolve())"])
def test_wrong_choice_of_the_environment_is_one_warning(program: Program, name: str, value: str, kinds: list[str], call: str) -> None:
    """What the environment asks for and cannot be had is one warning that names the variable; the rest is set up."""
    body = f"{call}\nprint(json.dumps(kinds()))\nos._exit(0)"
    assert program(body, **{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", name: value}) == [kinds]
    (line,) = program.log("WARNING")
    assert line.startswith(name)


@pytest.mark.parametrize("call", ["otlp.configure()", "otlp.automatic_setup(Settings())"])
def test_missing_exporter_package_is_a_warning(program: Program, call: str) -> None:
    """An exporter that is not installed costs a warning a signal, which names the package."""
    body = f"""
    for signal in ("trace", "metric", "_log"):
        sys.modules[f"opentelemetry.exporter.otlp.proto.grpc.{{signal}}_exporter"] = None
    {call}
    print(json.dumps(kinds()))
    """
    found = program(body, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert found == [PROXIES]
    assert len(program.log("WARNING")) == 3
    assert all("pip install opentelemetry-exporter-otlp-proto-grpc" in line for line in program.log("WARNING"))


# ------------------------------------------------------------------------------------------------------ configuration files
CONFIG = """
file_format: "1.0"
resource: {attributes: [{name: service.name, value: from-file}]}
tracer_provider:
  processors: [{batch: {exporter: {otlp_http: {endpoint: ENDPOINT/v1/traces}}}}]
meter_provider:
  readers: [{periodic: {exporter: {otlp_http: {endpoint: ENDPOINT/v1/metrics}}}}]
"""


@needs_configuration
def test_configuration_file_is_followed(program: Program) -> None:
    """OTEL_CONFIG_FILE sets everything up, with our ids, and is closed under our deadline."""
    with RECEIVERS["http/protobuf"]() as received:
        (program.path / "otel.yaml").write_text(CONFIG.replace("ENDPOINT", received.endpoint))
        body = "otlp.automatic_setup(Settings())\nimport random\nrandom.seed(1)\nrecord()\nprint(json.dumps(kinds()))"
        found = [program(body, OTEL_CONFIG_FILE="otel.yaml") for _ in range(2)]
    assert found == [[["TracerProvider", "MeterProvider", "ProxyLoggerProvider"]]] * 2
    assert len(trace_ids(received.spans())) == 2
    assert {attributes_of(message.resource_spans[0].resource)["service.name"] for message in received.of("traces")} == {"from-file"}
    with dead_endpoint("silent") as endpoint:
        (program.path / "otel.yaml").write_text(CONFIG.replace("ENDPOINT", endpoint))
        body = "otlp.configure(exit_timeout=5)\nrecord()\nprint(json.dumps(time.time()))"
        (finished,) = program(body, OTEL_CONFIG_FILE="otel.yaml", OTEL_EXPORTER_OTLP_TIMEOUT="3600")
        assert time.time() - finished < 60


@needs_configuration
def test_configuration_file_leaves_the_hosts_provider(program: Program) -> None:
    """The part of the file for a signal that the host has set up is not used."""
    with RECEIVERS["http/protobuf"]() as received:
        (program.path / "otel.yaml").write_text(CONFIG.replace("ENDPOINT", received.endpoint))
        body = "otlp.configure()\nrecord()\nprint(json.dumps(trace.get_tracer_provider() is host))"
        assert program(HOST + body, OTEL_CONFIG_FILE="otel.yaml") == [True]
    assert {signal for signal, *_ in received.requests} == {"metrics"}


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("sys.modules['opentelemetry.configuration'] = None", "pip install opentelemetry-configuration"),
        ("open('otel.yaml', 'w').write('file_format: [')", "OTEL_CONFIG_FILE=otel.yaml is ignored"),
        pytest.param("", "OTEL_CONFIG_FILE=otel.yaml is ignored: there is no such file", marks=needs_configuration),
    ],
)
def test_configuration_file_that_cannot_be_used_is_a_warning(program: Program, before: str, message: str) -> None:
    """A missing package, a missing file and a broken file are one warning, and the other variables count."""
    body = f"{before}\notlp.configure()\nprint(json.dumps(kinds()))\nos._exit(0)"
    assert program(body, OTEL_CONFIG_FILE="otel.yaml", OTEL_LOGS_EXPORTER="none") == [[*OURS[:2], PROXIES[2]]]
    (line,) = program.log("WARNING")
    assert message in line


def test_configuration_file_without_the_propagators_it_takes_is_a_warning(program: Program) -> None:
    """OpenTelemetry's reader of the file raises when OTEL_PROPAGATORS names what is not installed: the other variables count."""
    body = "sys.modules.pop('opentelemetry.propagate', None)\notlp.configure()\nprint(json.dumps(kinds()))\nos._exit(0)"
    variables = {"OTEL_CONFIG_FILE": "otel.yaml", "OTEL_PROPAGATORS": "nan", "OTEL_LOGS_EXPORTER": "none"}
    assert program(body, **variables) == [[*OURS[:2], PROXIES[2]]]
    (line,) = program.log("WARNING")
    assert "OTEL_CONFIG_FILE=otel.yaml is ignored" in line
