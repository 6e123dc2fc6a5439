"""Setting OpenTelemetry up, by real programs that send to real receivers: what arrives, what is left alone, how they end."""

from __future__ import annotations

import json
import textwrap
import time

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer

from inferspan.export import otlp
from inferspan.settings import Settings
from tests.export.program import HOST, OURS, PROXIES, Program
from tests.support.otlp_receivers import RECEIVERS, Received, attributes_of, dead_endpoint, trace_ids


# ------------------------------------------------------------------------------------------------------------ what arrives
def test_everything_arrives_at_exit(program: Program, receiver: Received) -> None:
    """Traces, metrics with exemplars and logs of a program that just ends arrive, with headers, gzip and one resource."""
    (trace_id,) = program(
        "otlp.configure()\nspan = record()\nprint(json.dumps(f'{span.get_span_context().trace_id:032x}'))",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20x,team=ml",
        OTEL_SERVICE_NAME="chat",
        RANK="1",
        WORLD_SIZE="2",
    )
    assert [(span.name, span.trace_id.hex()) for span in receiver.spans()] == [("work", trace_id)]
    assert [metric.name for metric in receiver.metrics()] == ["h"]
    assert receiver.metrics()[0].histogram.data_points[0].exemplars[0].trace_id.hex() == trace_id
    assert [(log.body.string_value, log.trace_id.hex()) for log in receiver.logs()] == [("hello", trace_id)]
    for _, _, headers, encoding, _ in receiver.requests:
        assert (headers["authorization"], headers["team"]) == ("Bearer x", "ml")
        # "unknown" is what gRPC's server says; the receiver is on this machine, so nothing is compressed.
        assert encoding in ("none", "unknown")
    resources = [
        receiver.of("traces")[0].resource_spans[0].resource,
        receiver.of("metrics")[0].resource_metrics[0].resource,
        receiver.of("logs")[0].resource_logs[0].resource,
    ]
    assert resources[0] == resources[1] == resources[2]
    found = attributes_of(resources[0])
    assert found["service.name"] == "chat"
    assert (found["inferspan.distributed.rank"], found["inferspan.distributed.world_size"]) == (1, 2)
    assert {"host.name", "service.instance.id", "telemetry.sdk.version", "inferspan.framework.torch.version"} <= found.keys()


def test_compression_none_and_exporters_per_signal(program: Program, receiver: Received) -> None:
    """The specification's "none" works for both protocols, and a signal can be switched off."""
    (kinds,) = program(
        "otlp.configure()\nrecord()\nprint(json.dumps(kinds()))", OTEL_EXPORTER_OTLP_COMPRESSION="none", OTEL_METRICS_EXPORTER="none"
    )
    assert kinds == ["TracerProvider", "_ProxyMeterProvider", "LoggerProvider"]
    assert sorted(signal for signal, *_ in receiver.requests) == ["logs", "traces"]
    assert {encoding for _, _, _, encoding, _ in receiver.requests} <= {"none", "unknown"}


def test_seeded_programs_have_their_own_traces(program: Program, receiver: Received) -> None:
    """Two runs with the same seed send two traces, and drawing ids does not change seeded results."""
    body = """
    import random
    random.seed(42)
    expected = random.random()
    random.seed(42)
    otlp.configure()
    record()
    print(json.dumps(random.random() == expected))
    """
    assert program(body) + program(body) == [True, True]
    assert len(trace_ids(receiver.spans())) == 2


def test_flush_sends_without_waiting(program: Program, receiver: Received) -> None:
    """A flush sends what was recorded, and says so; one that comes after nothing new succeeds too."""
    body = """
    otlp.configure()
    record()
    print(json.dumps([otlp.force_flush(10), otlp.force_flush(10)]))
    os._exit(0)
    """
    assert program(body) == [[True, True]]
    assert [span.name for span in receiver.spans()] == ["work"]
    assert [log.body.string_value for log in receiver.logs()] == ["hello"]
    assert {metric.name for metric in receiver.metrics()} == {"h"}


def test_forked_child_sends_its_own(program: Program, receiver: Received) -> None:
    """After a fork parent and child both send, from different instances, with different ids, over both protocols."""
    body = """
    otlp.configure()
    record("before")
    otlp.force_flush(10)
    child = os.fork()
    record("child" if child == 0 else "parent")
    flushed = otlp.force_flush(10)
    if child == 0:
        os._exit(0 if flushed else 1)
    print(json.dumps([flushed, os.waitpid(child, 0)[1]]))
    """
    assert program(body) == [[True, 0]]
    assert sorted(span.name for span in receiver.spans()) == ["before", "child", "parent"]
    assert len(trace_ids(receiver.spans())) == 3
    instances = {
        attributes_of(resource.resource)["service.instance.id"] for message in receiver.of("traces") for resource in message.resource_spans
    }
    assert len(instances) == 2


def test_large_batches_are_cut(program: Program, receiver: Received) -> None:
    """Twelve mebibytes of attributes, far over gRPC's default limit, arrive whole in requests of at most three."""
    body = """
    otlp.configure()
    tracer = trace.get_tracer("test")
    for number in range(400):
        tracer.start_span(str(number), attributes={"text": "x" * 30_000}).end()
    print(json.dumps(otlp.force_flush(20)))
    """
    assert program(body, OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none") == [True]
    assert [span.name for span in receiver.spans()] == [str(number) for number in range(400)]
    assert max(size for *_, size in receiver.requests) <= 3 * 1024 * 1024


# ------------------------------------------------------------------------------------------------- what is chosen, and when
def test_importing_loads_no_sdk(program: Program) -> None:
    """The module alone, and asking whether a destination is named, load neither the SDK nor an exporter, and start no thread."""
    body = """
    import threading
    otlp.automatic_setup(Settings())
    loaded = [name for name in ("opentelemetry.sdk", "grpc", "requests", "torch") if name in sys.modules]
    print(json.dumps([loaded, threading.active_count()]))
    """
    assert program(body) == [[[], 1]]


def test_without_destination_nothing_is_opened(program: Program) -> None:
    """With no destination, providers stay unset, and one line for the whole process names the two ways to get one."""
    body = """
    print(json.dumps([otlp.automatic_setup(Settings()), otlp.automatic_setup(Settings()), kinds()]))
    """
    assert program(body) == [[False, False, PROXIES]]
    (line,) = program.log("WARNING")
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in line and "session_file" in line and "INFERSPAN_SESSION_FILE" in line


@pytest.mark.parametrize(
    ("given", "environ", "told"),
    [
        ("{}", {}, 1),
        ("{'traces': host}", {}, 0),
        ("{'metrics': host}", {}, 0),
        ("{}", {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, 0),
        ("trace.set_tracer_provider(host) or {}", {}, 0),
    ],
)
def test_what_a_provider_of_the_program_sends_is_not_nothing(program: Program, given: str, environ: dict[str, str], told: int) -> None:
    """Nothing is said where one of the program's providers may send, or where sending is switched off."""
    body = f"""
    from opentelemetry.sdk.trace import TracerProvider
    host = TracerProvider(shutdown_on_exit=False)
    print(json.dumps(otlp.automatic_setup(Settings(), given={given})))
    """
    assert program(body, **environ) == [False]
    assert len(program.log("WARNING")) == told


def test_automatic_setup_opens_only_what_is_named(program: Program) -> None:
    """An endpoint for traces alone sets up traces alone."""
    with RECEIVERS["http/protobuf"]() as received:
        body = "print(json.dumps([otlp.automatic_setup(Settings()), kinds()]))\nrecord()"
        found = program(body, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{received.endpoint}/v1/traces")
    assert found == [[True, ["TracerProvider", *PROXIES[1:]]]]
    assert [signal for signal, *_ in received.requests] == ["traces"]


def test_disabled_sdk_does_nothing(program: Program, receiver: Received) -> None:
    """Under OTEL_SDK_DISABLED neither way of setting up opens or says anything."""
    body = """
    otlp.configure(session_file="s.jsonl")
    print(json.dumps([otlp.automatic_setup(Settings(session_file="s.jsonl")), kinds(), os.path.exists("s.jsonl")]))
    record()
    """
    assert program(body, OTEL_SDK_DISABLED="true") == [[False, PROXIES, False]]
    assert receiver.requests == []
    assert program.log("WARNING") == []


def test_console(program: Program) -> None:
    """The console exporter of the standard variables prints."""
    body = """
    sys.stdout = open("console.txt", "w")
    otlp.configure()
    record()
    """
    program(body, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none")
    assert json.loads((program.path / "console.txt").read_text())["name"] == "work"


def test_sampler(program: Program, receiver: Received) -> None:
    """The standard sampler variables count."""
    assert program("otlp.configure()\nrecord()\nprint(json.dumps(kinds()))", OTEL_TRACES_SAMPLER="always_off") == [OURS]
    assert receiver.spans() == []
    assert [metric.name for metric in receiver.metrics()] == ["h"]


@pytest.mark.parametrize(
    ("environ", "arguments", "message"),
    [
        ({}, "session_file='no/such/s.jsonl'", "inferspan setting 'session_file' cannot be 'no/such/s.jsonl': No such file or directory"),
        ({"INFERSPAN_SESSION_FILE": "s.jsonl"}, "session_file='no/such/s.jsonl'", "inferspan setting 'session_file' cannot be"),
        ({}, "session_fil='s.jsonl'", "unknown inferspan setting 'session_fil' (argument): did you mean 'session_file'?"),
    ],
)
def test_wrong_argument_is_one_error_and_nothing_is_set_up(program: Program, environ: dict[str, str], arguments: str, message: str) -> None:
    """An unknown setting, a path that cannot be written: one error that names it, and everything is as it was."""
    body = f"""
    import threading
    settings = []
    try:
        otlp.configure({arguments})
    except SettingsError as error:
        print(json.dumps([str(error), kinds(), threading.active_count()]))
    """
    ((found, kinds, threads),) = program(body, **environ)
    assert found.startswith(message)
    assert (kinds, threads) == (PROXIES, 1)


# ------------------------------------------------------------------------------------------------------- the host's providers
def test_provider_of_the_host_is_used_and_left_alone(program: Program, receiver: Received) -> None:
    """A provider that is set stays, with its processors, and is not shut down; the other signals are set up; one line says so."""
    body = """
    before = (host._active_span_processor._span_processors, host.id_generator, host.resource)
    otlp.configure()
    record()
    otlp.shutdown(5)
    record("late")
    same = trace.get_tracer_provider() is host
    untouched = before == (host._active_span_processor._span_processors, host.id_generator, host.resource)
    print(json.dumps([same, untouched, [span.name for span in memory.get_finished_spans()], kinds()]))
    """
    assert program(HOST + textwrap.dedent(body)) == [[True, True, ["work", "late"], OURS]]
    assert [signal for signal, *_ in receiver.requests].count("traces") == 0
    assert {signal for signal, *_ in receiver.requests} == {"metrics", "logs"}
    assert program.log("INFO") == ["The program has set up a provider for traces: it is used as it is"]


def test_session_file_that_was_asked_for_gets_the_hosts_spans_too(program: Program) -> None:
    """A session file named by the user is written beside what the host's provider does."""
    body = """
    otlp.automatic_setup(Settings(session_file="s.jsonl"))
    record()
    print(json.dumps([span.name for span in memory.get_finished_spans()]))
    """
    assert program(HOST + textwrap.dedent(body)) == [["work"]]
    lines = [json.loads(line) for line in (program.path / "s.jsonl").read_text().splitlines()]
    assert sorted(key for line in lines for key in line) == ["resourceLogs", "resourceMetrics", "resourceSpans"]


# ------------------------------------------------------------------------------------------------------------- session files
def test_session_file_alone(program: Program) -> None:
    """A session file without any destination in the environment is all there is: three signals in it, and no socket."""
    body = """
    otlp.configure(session_file="s.jsonl")
    record()
    print(json.dumps([kinds(), "requests" in sys.modules, "grpc" in sys.modules]))
    """
    assert program(body) == [[OURS, False, False]]
    lines = [json.loads(line) for line in (program.path / "s.jsonl").read_text().splitlines()]
    assert sorted(key for line in lines for key in line) == ["resourceLogs", "resourceMetrics", "resourceSpans"]
    assert "ERROR" not in program.errors and "WARNING" not in program.errors


def test_session_file_beside_otlp_and_a_second_configure(program: Program, receiver: Received) -> None:
    """File and receiver get the same; a second call adds a new file, the same file or none changes nothing but says so."""
    body = """
    otlp.configure(session_file="a.jsonl")
    record("one")
    otlp.configure()
    otlp.configure(session_file=os.path.abspath("a.jsonl"))
    otlp.configure(session_file="b.jsonl")
    record("two")
    """
    program(body)
    assert [span.name for span in receiver.spans()] == ["one", "two"]
    names = {}
    for file in ("a.jsonl", "b.jsonl"):
        lines = [json.loads(line) for line in (program.path / file).read_text().splitlines()]
        blocks = [block for line in lines for block in line.get("resourceSpans", ())]
        names[file] = [span["name"] for block in blocks for scope in block["scopeSpans"] for span in scope["spans"]]
        assert {key for line in lines for key in line} == {"resourceLogs", "resourceMetrics", "resourceSpans"}
    assert names == {"a.jsonl": ["one", "two"], "b.jsonl": ["two"]}
    assert program.log("INFO") == ["OpenTelemetry is set up already; nothing is changed"] * 2


def test_session_file_of_parent_and_child(program: Program) -> None:
    """A forked child appends whole lines to the file of its parent."""
    body = """
    otlp.configure(session_file="s.jsonl")
    record("before")
    child = os.fork()
    for _ in range(100):
        record("child" if child == 0 else "parent")
    otlp.force_flush(10)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    """
    program(body)
    lines = [json.loads(line) for line in (program.path / "s.jsonl").read_text().splitlines()]
    spans = [s for line in lines for r in line.get("resourceSpans", ()) for scope in r["scopeSpans"] for s in scope["spans"]]
    names = [span["name"] for span in spans]
    assert (names.count("before"), names.count("child"), names.count("parent")) == (1, 100, 100)
    assert len({span["spanId"] for span in spans}) == 201


# ---------------------------------------------------------------------------------------------------------------- the end
@pytest.mark.parametrize("protocol", list(RECEIVERS))
@pytest.mark.parametrize("kind", ["closed", "silent"])
def test_dead_collector_holds_up_the_exit_no_longer_than_promised(program: Program, kind: str, protocol: str) -> None:
    """With 1500 spans waiting for a collector that refuses or never answers, the program ends within the promised time, file written."""
    body = """
    otlp.configure(exit_timeout=5, session_file="s.jsonl")
    for number in range(1500):
        record()
    print(json.dumps(time.time()))
    """
    with dead_endpoint(kind) as endpoint:
        # A request waits for an hour, and without the limit the exit would.
        hour = {"OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}
        (finished,) = program(body, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, **hour)
        assert time.time() - finished < 60
    lines = [json.loads(line) for line in (program.path / "s.jsonl").read_text().splitlines()]
    spans = [s for line in lines for r in line.get("resourceSpans", ()) for scope in r["scopeSpans"] for s in scope["spans"]]
    assert len(spans) == 1500
    assert {key for line in lines for key in line} == {"resourceLogs", "resourceMetrics", "resourceSpans"}


# -------------------------------------------------------------------------------------------------- spans made after the fact
def test_span_parts() -> None:
    """A tracer of the SDK tells what its spans are made of, and takes finished ones; any other tracer gives nothing."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("inferspan", "1")
    parts = otlp.span_parts(tracer)
    assert parts is not None
    assert (parts.resource, parts.scope.name, parts.ids) == (provider.resource, "inferspan", provider.id_generator)
    with tracer.start_as_current_span("live"):
        pass
    (live,) = exporter.get_finished_spans()
    assert live.context is not None
    parts.hand_in("late", live.context, live.context, 1, 2, {"a": 1}, "ValueError")
    late = exporter.get_finished_spans()[1]
    assert (late.name, late.parent, late.start_time, late.end_time, late.attributes) == ("late", live.context, 1, 2, {"a": 1})
    assert (late.status.description, late.resource, late.instrumentation_scope) == ("ValueError", live.resource, live.instrumentation_scope)
    assert parts.processor is tracer.span_processor  # type: ignore[attr-defined]
    assert otlp.span_parts(NoOpTracer()) is None


def test_proxy_tracer_has_parts_once_a_provider_is_set(program: Program) -> None:
    """A tracer taken before there is a provider has no parts; after the set-up it has."""
    body = """
    tracer = trace.get_tracer("early")
    before = otlp.span_parts(tracer), otlp.queue_room(tracer)
    otlp.configure(session_file="s.jsonl")
    tracer.start_span("resolves").end()
    print(json.dumps([before, otlp.span_parts(tracer).scope.name, otlp.queue_room(tracer)]))
    """
    assert program(body) == [[[None, None], "early", 16383]]


def test_queue_room() -> None:
    """The room is that of the fullest batch queue behind a tracer; with none there it is not known."""
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = provider.get_tracer("t")
    assert otlp.queue_room(tracer) is None
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    assert otlp.queue_room(tracer) is None
    processors = [BatchSpanProcessor(InMemorySpanExporter(), max_queue_size=size, max_export_batch_size=size) for size in (500, 100)]
    for processor in processors:
        provider.add_span_processor(processor)
    assert otlp.queue_room(tracer) == 100
    for _ in range(40):
        tracer.start_span("s").end()
    assert otlp.queue_room(tracer) == 60
    provider.shutdown()
    assert otlp.queue_room(NoOpTracer()) is None


def test_destination_named() -> None:
    """A session file or a standard variable is a destination; nothing else is."""
    assert not otlp.destination_named(Settings(), {})
    assert otlp.destination_named(Settings(session_file="s.jsonl"), {})
    assert otlp.destination_named(Settings(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})
