"""The main job, end to end: what Jaeger and Prometheus say about a language model equals what ``generate()`` returned.

The same program runs over HTTP and over gRPC; its session file is compared with what the collector received.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from tests.integration.conftest import RunProgram
from tests.integration.servers import Stack, eventually, post_json
from tests.integration.spans_seen import Seen, children, from_jaeger, from_otlp, log_records

pytestmark = pytest.mark.integration

SUCCESSFUL = ("single", "batched", "streamed")
MICROSECOND = 1000
SECOND = 1_000_000_000


@dataclass
class Job:
    """A finished run of the program: what it says it did, and the ways to ask what arrived."""

    service: str
    truth: dict[str, Any]
    stack: Stack
    session_file: Path

    def request(self, conversation: str) -> tuple[Seen, list[Seen]]:
        """The request span with this conversation id, and its whole trace, from Jaeger."""

        def look() -> tuple[Seen, list[Seen]]:
            (trace,) = self.stack.traces(self.service, **{semconv.CONVERSATION_ID: conversation})
            spans = from_jaeger(self.stack.trace(trace["traceID"]))
            (request,) = [span for span in spans if span.attributes.get(semconv.CONVERSATION_ID) == conversation]
            return request, spans

        try:
            return look()
        except ValueError:
            return eventually(look)

    @cached_property
    def received(self) -> list[dict[str, Any]]:
        """OTLP as the collector received it; all of it, for the program has ended and the servers have answered."""
        return eventually(self._received)

    def _received(self) -> list[dict[str, Any]]:
        lines = self.stack.raw_lines(self.service)
        conversations = {span.attributes.get(semconv.CONVERSATION_ID) for span in from_otlp(lines)}
        assert {*SUCCESSFUL, "failed", "forward"} <= conversations
        assert any("resourceMetrics" in line for line in lines)
        return lines

    @cached_property
    def spans(self) -> list[Seen]:
        """Every span that the collector received."""
        return from_otlp(self.received)

    def exact(self, conversation: str) -> Seen:
        """The request span with exact times and types."""
        (span,) = [span for span in self.spans if span.attributes.get(semconv.CONVERSATION_ID) == conversation]
        return span

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the current value over the series of this service with these labels; 0 if there is none."""
        selector = ",".join(f'{key}="{value}"' for key, value in {"service_name": self.service, **labels}.items())
        return sum(value for _, value in self.stack.query(f"{name}{{{selector}}}"))


@pytest.fixture(scope="module", params=["http/protobuf", "grpc"])
def job(request: pytest.FixtureRequest, stack: Stack, run_program: RunProgram, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The program has run with one of the two protocols."""
    service = "main-job-" + request.param.partition("/")[0]
    session_file = tmp_path_factory.mktemp(service) / "session.otlp.jsonl"
    truth = run_program(
        "programs/main_job.py",
        OTEL_SERVICE_NAME=service,
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
        OTEL_EXPORTER_OTLP_PROTOCOL=request.param,
        OTEL_EXPORTER_OTLP_ENDPOINT=stack.grpc if request.param == "grpc" else stack.http,
        INFERSPAN_SESSION_FILE=str(session_file),
    )
    return Job(service, truth, stack, session_file)


@pytest.mark.parametrize("conversation", SUCCESSFUL)
def test_tree_in_jaeger(job: Job, conversation: str) -> None:
    """A request has a prefill with one step and a decode with a step for each further token; sampled steps have all layers."""
    request, spans = job.request(conversation)
    steps = max(job.truth["requests"][conversation]["output"])
    prefill, decode = children(spans, request)
    assert (prefill.name, decode.name) == (semconv.SPAN_PREFILL, semconv.SPAN_DECODE)
    prefill_steps, decode_steps = children(spans, prefill), children(spans, decode)
    assert [step.name for step in prefill_steps] == [semconv.SPAN_PREFILL_STEP]
    assert [step.name for step in decode_steps] == [semconv.SPAN_DECODE_STEP] * (steps - 1)
    every_step = prefill_steps + decode_steps
    assert [step.attributes[semconv.STEP_INDEX] for step in every_step] == list(range(steps))

    layers = job.truth["layers"]
    sampled = []
    for step in every_step:
        modules = children(spans, step)
        if modules:
            sampled.append(step.attributes[semconv.STEP_INDEX])
            assert [module.name for module in modules] == [f"layer {number}" for number in range(layers)]
            inner = [[span.name for span in children(spans, module)] for module in modules]
            assert inner == [[f"layer {number} self_attn", f"layer {number} mlp"] for number in range(layers)]
    assert sampled[:2] == [0, 1]
    gaps = [later - earlier for earlier, later in pairwise(sampled[1:])]
    assert gaps == sorted(gaps)
    assert len(sampled) < steps


def test_request_is_under_the_callers_span(job: Job) -> None:
    """A request made inside a span of the program is its child; one made outside is a root."""
    single, spans = job.request("single")
    assert (single.trace, single.parent) == (job.truth["caller"]["trace"], job.truth["caller"]["span"])
    assert {span.name for span in spans} >= {"handle question"}
    for conversation in ("batched", "streamed", "failed", "forward"):
        assert job.request(conversation)[0].parent == ""


@pytest.mark.parametrize("conversation", SUCCESSFUL)
def test_counts_equal_the_result(job: Job, conversation: str) -> None:
    """Tokens, sequences and finish reasons on the request span are those of the returned tensor."""
    truth, request = job.truth["requests"][conversation], job.exact(conversation)
    expected = {
        semconv.INPUT_TOKENS: sum(truth["input"]),
        semconv.OUTPUT_TOKENS: sum(truth["output"]),
        semconv.TEXT_INPUT_TOKENS: sum(truth["input"]),
        semconv.TEXT_OUTPUT_TOKENS: sum(truth["output"]),
        semconv.SEQUENCE_INPUT_TOKENS: truth["input"],
        semconv.SEQUENCE_OUTPUT_TOKENS: truth["output"],
        semconv.FINISH_REASONS: truth["finish"],
        semconv.BATCH_SIZE: len(truth["input"]),
        semconv.DECODE_STEPS: max(truth["output"]) - 1,
        semconv.REQUEST_STREAM: True if conversation == "streamed" else None,
        semconv.USER_ID: "somebody" if conversation == "batched" else None,
    }
    assert {key: request.attributes.get(key) for key in expected} == expected


REQUIRED = {
    "request": (
        semconv.OPERATION_NAME, semconv.PROVIDER_NAME, semconv.REQUEST_MODEL, semconv.RESPONSE_MODEL, semconv.REQUEST_MAX_TOKENS,
        semconv.NUM_BEAMS, semconv.DO_SAMPLE, semconv.TTFT, semconv.TPOT, semconv.TOKENS_PER_SECOND, semconv.PREFILL_TOKENS_PER_SECOND,
        semconv.KV_CACHE_BYTES, semconv.MEMORY_START, semconv.MEMORY_END, semconv.MEMORY_PEAK, semconv.MEMORY_PEAK_EXACT,
        semconv.TOKEN_LOGPROBS, semconv.TOKEN_ENTROPIES, semconv.TOKEN_INTERVALS, semconv.MODEL_NAME, semconv.MODEL_ARCHITECTURE,
        semconv.MODEL_TYPE, semconv.MODEL_PARAMETERS, semconv.MODEL_DTYPE, semconv.MODEL_ATTENTION, semconv.DEVICE, semconv.DEVICE_TYPE,
    ),
    "phase": (semconv.PHASE,),
    "step": (
        semconv.PHASE, semconv.STEP_INDEX, semconv.STEP_TOKENS, semconv.SEQUENCE_LENGTH, semconv.LOGITS_ENTROPY, semconv.LOGITS_MAX,
        semconv.LOGITS_MIN, semconv.LOGITS_MEAN, semconv.LOGITS_STD, semconv.LOGITS_MARGIN, semconv.LOGITS_TOP1,
        semconv.LOGITS_CHOSEN_LOGPROB, semconv.LOGITS_CHOSEN_RANK, semconv.LOGITS_NAN_COUNT, semconv.LOGITS_INF_COUNT,
    ),
    "module": (
        semconv.PHASE, semconv.STEP_INDEX, semconv.MODULE_NAME, semconv.MODULE_TYPE, semconv.MODULE_LAYER_INDEX, semconv.INPUT_SHAPES,
        semconv.OUTPUT_SHAPES, semconv.INPUT_DTYPES, semconv.OUTPUT_DTYPES,
    ),
}  # fmt: skip
"""What every span of a successful text request on a CPU has."""
TYPES: dict[str, type] = {"string": str, "int": int, "double": float, "boolean": bool}
CONTENT = {row.key for row in semconv.ATTRIBUTES if "content capture" in row.brief}


def level(span: Seen) -> str:
    """Which row of the span table a span of ours is."""
    if semconv.MODULE_NAME in span.attributes:
        return "module"
    if semconv.STEP_INDEX in span.attributes:
        return "step"
    return "phase" if semconv.PHASE in span.attributes and semconv.MODEL_NAME not in span.attributes else "request"


def type_of(value: Any) -> str:
    """The type of an attribute as the table writes it."""
    if isinstance(value, list):
        kinds = {type_of(item) for item in value} or {"any"}
        return f"{kinds.pop()}[]" if len(kinds) == 1 else f"mixed{sorted(kinds)}"
    return next(name for name, kind in TYPES.items() if type(value) is kind)


def ours(job: Job) -> list[Seen]:
    """All spans but the program's own."""
    return [span for span in job.spans if span.name != "handle question"]


def test_attributes_are_those_of_the_table(job: Job) -> None:
    """Each attribute of each span is in the table, on a level that the table names, with the table's type; none is content."""
    table = {row.key: row for row in semconv.ATTRIBUTES}
    wrong = set()
    for span in ours(job):
        for key, value in span.attributes.items():
            row = table.get(key)
            if row is None or level(span) not in row.on or type_of(value) != row.type or key in CONTENT:
                wrong.add((level(span), key, type_of(value), row and (row.on, row.type)))
    assert wrong == set()


def test_required_attributes_are_there(job: Job) -> None:
    """Every span of a successful request has what its level must have."""
    traces = {job.exact(conversation).trace for conversation in SUCCESSFUL}
    missing = {
        (level(span), span.name if level(span) != "module" else "module", key)
        for span in ours(job)
        if span.trace in traces
        for key in REQUIRED[level(span)]
        if key not in span.attributes
    }
    assert missing == set()


def test_statistics_equal_those_of_a_plain_run(job: Job) -> None:
    """Entropy and log-probability of each step are those computed in double precision from the logits of an uninstrumented run."""
    request = job.exact("single")
    steps = [span for span in job.spans if span.trace == request.trace and level(span) == "step"]
    steps.sort(key=lambda span: span.attributes[semconv.STEP_INDEX])
    truth = job.truth["statistics"]
    assert [step.attributes[semconv.LOGITS_ENTROPY] for step in steps] == pytest.approx(truth["entropies"], rel=1e-3, abs=1e-4)
    assert [step.attributes[semconv.LOGITS_CHOSEN_LOGPROB] for step in steps] == pytest.approx(truth["logprobs"], rel=1e-3, abs=1e-4)
    assert [step.attributes[semconv.LOGITS_CHOSEN_RANK] for step in steps] == [1] * len(steps)
    assert request.attributes[semconv.TOKEN_ENTROPIES] == pytest.approx(truth["entropies"], rel=1e-3, abs=1e-4)
    assert request.attributes[semconv.TOKEN_LOGPROBS] == pytest.approx(truth["logprobs"], rel=1e-3, abs=1e-4)


def test_times_are_nested_and_ordered(job: Job) -> None:
    """Every span lies inside its parent and inside the program's run; phases and steps follow one another."""
    by_id = {span.id: span for span in job.spans}
    assert len(by_id) == len(job.spans)
    for span in job.spans:
        assert job.truth["start_ns"] <= span.start <= span.end <= job.truth["end_ns"], span.name
        if span.parent:
            parent = by_id[span.parent]
            assert parent.trace == span.trace
            assert parent.start <= span.start <= span.end <= parent.end, f"{span.name} is not inside {parent.name}"
    for parent in job.spans:
        siblings = [span for span in children(job.spans, parent) if level(span) in ("phase", "step")]
        for earlier, later in pairwise(siblings):
            assert earlier.end <= later.start, f"{earlier.name} overlaps {later.name}"


@pytest.mark.parametrize("conversation", SUCCESSFUL)
def test_latencies_agree_with_the_spans(job: Job, conversation: str) -> None:
    """Time to first token ends the prefill, and with the time per further token it gives the duration."""
    request = job.exact(conversation)
    prefill, decode = children(job.spans, request)
    attributes, duration = request.attributes, (request.end - request.start) / SECOND
    longest = max(job.truth["requests"][conversation]["output"])
    assert attributes[semconv.TTFT] == pytest.approx((prefill.end - request.start) / SECOND, abs=0.005)
    assert prefill.end <= decode.start
    assert attributes[semconv.TTFT] + attributes[semconv.TPOT] * (longest - 1) == pytest.approx(duration, rel=0.02, abs=0.002)
    assert attributes[semconv.TOKENS_PER_SECOND] == pytest.approx(attributes[semconv.OUTPUT_TOKENS] / duration, rel=0.02)
    assert len(attributes[semconv.TOKEN_INTERVALS]) == longest
    assert sum(attributes[semconv.TOKEN_INTERVALS]) <= duration * 1.01


def test_failed_request(job: Job) -> None:
    """The request that raised is an error with the exception's class, and so is the phase it failed in; all its spans are closed."""
    request, spans = job.request("failed")
    exact = job.exact("failed")
    assert request.error
    assert request.attributes[semconv.ERROR_TYPE] == "ValueError"
    assert exact.attributes[semconv.FINISH_REASONS] == ["error"]
    assert exact.attributes[semconv.INPUT_TOKENS] == sum(job.truth["requests"]["failed"]["input"])
    assert [(name, fields["exception.type"]) for name, fields in exact.events] == [("exception", "ValueError")]
    prefill, decode = children(spans, request)
    assert (prefill.error, decode.error) == (False, True)
    assert decode.attributes[semconv.ERROR_TYPE] == "ValueError"
    assert len(children(spans, decode)) == 2
    assert {span.name for span in spans if span.error} <= {request.name, semconv.SPAN_DECODE, semconv.SPAN_DECODE_STEP}


def test_plain_forward(job: Job) -> None:
    """A plain call of the model is a span of its own with the layers under it, and no GenAI request."""
    request, spans = job.request("forward")
    assert request.name.startswith(semconv.SPAN_FORWARD + " ")
    assert [key for key in request.attributes if key.startswith("gen_ai.") and key != semconv.CONVERSATION_ID] == []
    assert [span.name for span in children(spans, request)] == [f"layer {number}" for number in range(job.truth["layers"])]


def test_request_metrics_in_prometheus(job: Job) -> None:
    """Counts and sums in Prometheus are those of the requests that were made."""
    requests = job.truth["requests"]
    inputs, outputs = ({name: sum(requests[name][side]) for name in SUCCESSFUL} for side in ("input", "output"))
    prefills = len(SUCCESSFUL) + 1
    decodes = sum(max(requests[name]["output"]) - 1 for name in SUCCESSFUL) + 2
    text = ("gen_ai_operation_name", "text_completion")
    # The request that failed had generated two tokens: usage counts them, distributions are of successful calls.
    partial = job.exact("failed").attributes[semconv.OUTPUT_TOKENS]
    assert partial == 2
    expected = {
        ("gen_ai_server_request_duration_seconds_count", "error_type", ""): 3,
        ("gen_ai_server_request_duration_seconds_count", "error_type", "ValueError"): 1,
        ("gen_ai_client_inference_duration_seconds_count", "error_type", ""): 3,
        ("gen_ai_client_operation_duration_seconds_count", "error_type", ""): 3,
        ("gen_ai_client_inference_operation_input_tokens_sum", "error_type", ""): sum(inputs.values()),
        ("gen_ai_client_inference_operation_output_tokens_sum", "error_type", ""): sum(outputs.values()),
        ("gen_ai_client_inference_usage_output_tokens_total", "gen_ai_token_modality", "text"): sum(outputs.values()) + partial,
        ("gen_ai_client_token_usage_sum", "gen_ai_token_type", "output"): sum(outputs.values()),
        ("gen_ai_server_time_to_first_token_seconds_count", *text): 3,
        ("gen_ai_server_time_per_output_token_seconds_count", *text): 3,
        ("gen_ai_client_inference_time_to_first_chunk_seconds_count", *text): 1,
        ("gen_ai_client_operation_time_per_output_chunk_seconds_count", *text): outputs["streamed"] - 1,
        ("inferspan_generate_step_duration_seconds_count", "inferspan_phase", "prefill"): prefills,
        ("inferspan_generate_step_duration_seconds_count", "inferspan_phase", "decode"): decodes,
        ("inferspan_batch_size_sum", "deployment_environment_name", "test"): sum(len(each["input"]) for each in requests.values()),
        ("inferspan_forward_duration_seconds_count", "deployment_environment_name", "test"): 1,
        ("inferspan_generate_active", "deployment_environment_name", "test"): 0,
    }

    def look() -> None:
        assert {row: job.metric(row[0], **{row[1]: row[2]}) for row in expected} == expected

    eventually(look)
    duration = sum(span.end - span.start for name in SUCCESSFUL for span in [job.exact(name)]) / SECOND
    assert job.metric("gen_ai_server_request_duration_seconds_sum", error_type="") == pytest.approx(duration, rel=0.01)
    ttft = sum(job.exact(name).attributes[semconv.TTFT] for name in SUCCESSFUL)
    assert job.metric("gen_ai_server_time_to_first_token_seconds_sum") == pytest.approx(ttft, rel=0.01)


def test_machine_metrics_in_prometheus(job: Job) -> None:
    """The process is measured too, with the same labels as the requests, and no reading is invented."""
    for name in ("process_memory_usage_bytes", "process_cpu_time_seconds_total", "process_thread_count", "system_memory_limit_bytes"):
        assert job.metric(name) > 0, name
    (labels,) = [labels for labels, _ in job.stack.query(f'process_memory_usage_bytes{{service_name="{job.service}"}}')]
    assert labels.keys() >= {"service_name", "service_instance_id", "host_name", "job", "instance", "deployment_environment_name"}


def test_exemplars_lead_to_traces(job: Job) -> None:
    """Every exemplar of our histograms names a trace of ours in Jaeger."""
    ids = {span.trace for span in job.spans}
    for name in ("gen_ai_server_request_duration_seconds_bucket", "gen_ai_server_time_to_first_token_seconds_bucket"):
        exemplars = eventually(lambda name=name: job.stack.exemplars(f'{name}{{service_name="{job.service}"}}') or [][0])  # type: ignore[misc]
        found = {exemplar["labels"]["trace_id"] for exemplar in exemplars}
        assert found
        assert found <= ids
        for trace in found:
            assert job.stack.trace(trace)


def test_metrics_made_of_spans_cover_requests_and_phases_only(job: Job) -> None:
    """The collector counts requests and phases, not steps and modules."""
    requests = [span for span in ours(job) if level(span) in ("request", "phase")]
    expected: dict[str, int] = {"handle question": 1}
    for span in requests:
        expected[span.name] = expected.get(span.name, 0) + 1

    def look() -> None:
        counted: dict[str, float] = {}
        for labels, value in job.stack.query(f'traces_span_metrics_calls_total{{service_name="{job.service}"}}'):
            counted[labels["span_name"]] = counted.get(labels["span_name"], 0) + value
        assert counted == expected

    eventually(look)


def test_resource(job: Job) -> None:
    """All three kinds of telemetry carry one resource with the service, the host and the versions of the frameworks."""
    resources = [
        {item["key"]: item["value"] for item in resource["resource"]["attributes"]}
        for line in job.received
        for group in line.values()
        for resource in group
    ]
    assert all(resource == resources[0] for resource in resources)
    wanted = {"service.name", "service.instance.id", semconv.HOST_NAME, semconv.TORCH_VERSION, semconv.TRANSFORMERS_VERSION}
    assert wanted | {"telemetry.sdk.version", "deployment.environment.name"} <= resources[0].keys()


def test_no_content_leaves_when_it_is_off(job: Job) -> None:
    """No exported byte, to the collector or the session file, holds a prompt, an output or a piece of one."""
    exported = json.dumps(job.received, ensure_ascii=False) + job.session_file.read_text(encoding="utf-8")
    words = {word for text in job.truth["texts"] for word in text.split() if len(word) > 7}
    assert {"zanzibarium", "Quokkaville"} <= words
    outputs = {text.strip() for text in job.truth["texts"] if len(text.strip()) > 8}
    own_words = {"sequence", "original", "language"}  # may stand in names of ours
    assert [word for word in sorted((words - own_words) | outputs) if word in exported] == []
    assert "quokka" not in exported.lower()
    events = [record["event"] for record in log_records(job.received)]
    assert [event for event in events if event != semconv.EVALUATION_EVENT] == [semconv.INFERENCE_EXCEPTION_EVENT]


def test_session_file_holds_what_the_collector_received(job: Job) -> None:
    """The same spans, with the same attributes and times, stand in the session file."""
    lines = [json.loads(line) for line in job.session_file.read_text(encoding="utf-8").splitlines()]

    def comparable(spans: list[Seen]) -> dict[str, Seen]:
        return {span.id: span for span in spans}

    assert comparable(from_otlp(lines)) == comparable(job.spans)
    assert any("resourceMetrics" in line for line in lines)


def test_session_file_can_be_replayed(job: Job) -> None:
    """The collector accepts every line of the session file as OTLP JSON, and Jaeger shows the trace again."""
    paths = {"resourceSpans": "traces", "resourceMetrics": "metrics", "resourceLogs": "logs"}
    request = job.exact("batched")
    for line in job.session_file.read_text(encoding="utf-8").splitlines():
        (kind,) = json.loads(line).keys()
        # Other trace ids, so that Jaeger does not put both into one trace; another service, so that no other test counts them.
        body = re.sub(r'(?<="traceId":")\w+', lambda found: found[0][::-1], line).replace(job.service, f"replay-of-{job.service}")
        answer = post_json(f"{job.stack.http}/v1/{paths[kind]}", body)
        assert not any(answer.get("partialSuccess", {}).values()), answer
    expected = sorted(span.name for span in job.spans if span.trace == request.trace)

    def look() -> None:
        assert sorted(span.name for span in from_jaeger(job.stack.trace(request.trace[::-1]))) == expected

    eventually(look)
