"""Captured content: where it goes in each mode, and that nothing of it leaves when it is off."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import inferspan
from tests.cases.models import llama, prompt

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = (
    "inferspan.tokens.ids", "inferspan.token.ids", "inferspan.token.texts", "inferspan.logits.top_k.ids", "inferspan.logits.top_k.texts",
    "inferspan.analysis.most_common.ids", "inferspan.analysis.most_common.texts", "inferspan.analysis.most_common.counts",
)  # fmt: skip
MESSAGES = ("gen_ai.input.messages", "gen_ai.output.messages")


class _Tokenizer:
    """Texts that cannot come from anywhere else."""

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return "quokka" + "-".join(map(str, ids))


class _Everything:
    """Providers of all three signals in memory."""

    def __init__(self) -> None:
        self.span_exporter, self.reader, self.log_exporter = InMemorySpanExporter(), InMemoryMetricReader(), InMemoryLogRecordExporter()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.span_exporter))
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.logger_provider = LoggerProvider(shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self.log_exporter))

    def instrument(self, model: Any, **settings: Any) -> inferspan.Handle:
        return inferspan.instrument(
            model,
            _Tokenizer(),
            tracer_provider=self.tracer_provider,
            meter_provider=self.meter_provider,
            logger_provider=self.logger_provider,
            **{"nvml": False, "host": False, "allocator": False, **settings},
        )

    def keys(self) -> set[str]:
        """Keys of content on spans."""
        inferspan.flush()
        present = {key for span in self.span_exporter.get_finished_spans() for key in span.attributes or {}}
        return present & {*IDS, *MESSAGES}

    def request(self) -> dict[str, Any]:
        (span,) = (span for span in self.span_exporter.get_finished_spans() if span.parent is None)
        return dict(span.attributes or {})

    def content_events(self) -> list[Any]:
        """Events with messages; an event that judges the output has none."""
        inferspan.flush()
        records = [log.log_record for log in self.log_exporter.get_finished_logs()]
        return [record for record in records if record.event_name == "gen_ai.client.inference.operation.details"]

    def bytes_sent(self) -> bytes:
        inferspan.flush()
        parts: list[Any] = [encode_spans(self.span_exporter.get_finished_spans()), encode_logs(self.log_exporter.get_finished_logs())]
        data = self.reader.get_metrics_data()
        parts += [encode_metrics(data)] if data else []
        return b"".join(part.SerializeToString() for part in parts)


def _generate(model: Any, **options: Any) -> Any:
    return model.generate(prompt(1, 7), **{"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, **options})


@pytest.mark.parametrize(("mode", "spans", "events"), [
    ("NO_CONTENT", False, False), ("SPAN_ONLY", True, False), ("EVENT_ONLY", False, True), ("SPAN_AND_EVENT", True, True), ("true", False, False),
])  # fmt: skip
def test_modes(mode: str, spans: bool, events: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Messages, token ids and texts stand on spans or in the event as the standard variable says; an unknown mode is none."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", mode)
    everything = _Everything()
    model = llama()
    with everything.instrument(model):
        output = _generate(model)
    assert everything.keys() == ({*IDS, *MESSAGES} if spans else set())
    told = "quokka" + "-".join(map(str, prompt(1, 7)[0].tolist()))
    answered = "quokka" + "-".join(map(str, output[0, 7:].tolist()))
    inputs = [{"role": "user", "parts": [{"type": "text", "content": told}]}]
    outputs = [{"role": "assistant", "parts": [{"type": "text", "content": answered}], "finish_reason": "length"}]
    if spans:
        assert [json.loads(everything.request()[key]) for key in MESSAGES] == [inputs, outputs]
    records = everything.content_events()
    assert len(records) == events
    if events:
        record = records[0]
        body = json.loads(json.dumps(dict(record.attributes or {}), default=dict))
        assert (body[MESSAGES[0]], body[MESSAGES[1]]) == (inputs, outputs)
        (span,) = (span for span in everything.span_exporter.get_finished_spans() if span.parent is None)
        assert span.context is not None and (record.trace_id, record.span_id) == (span.context.trace_id, span.context.span_id)
    assert any("=true is ignored" in line for line in caplog.messages) == (mode == "true")


def _event(everything: _Everything) -> Any:
    (record,) = everything.content_events()
    return record


def test_the_event_has_severity_debug() -> None:
    """The conventions have content at DEBUG, so that it can be told from what somebody should look at."""
    everything, model = _Everything(), llama()
    with everything.instrument(model, capture_content="EVENT_ONLY"):
        _generate(model)
    assert _event(everything).severity_number is SeverityNumber.DEBUG


def test_the_event_has_the_inference_attributes_of_the_span() -> None:
    """Parameters, usage, reasons and what the caller knows are in the event as on the span; names of our own are on the span only."""
    everything, model = _Everything(), llama()
    caller = inferspan.context(conversation_id="c-1", prompt_name="greeting", user_id="u")
    with everything.instrument(model, capture_content="EVENT_ONLY", compat_vllm_latency=True), caller:
        _generate(model, do_sample=True, temperature=0.5, top_k=7)
    span, event = everything.request(), dict(_event(everything).attributes)
    expected = {key: value for key, value in span.items() if key.startswith("gen_ai.") and not key.startswith("gen_ai.latency.")}
    assert {key: value for key, value in event.items() if key not in MESSAGES} == expected
    assert expected.keys() >= {
        "gen_ai.conversation.id", "gen_ai.prompt.name", "gen_ai.request.temperature", "gen_ai.request.top_k", "gen_ai.request.max_tokens",
        "gen_ai.usage.input_tokens", "gen_ai.usage.text.output_tokens", "gen_ai.response.finish_reasons", "gen_ai.provider.name",
    }  # fmt: skip


def test_the_event_of_a_failed_request_has_the_error() -> None:
    """A request that failed sends what it was asked, with the type of the error."""
    everything, model = _Everything(), llama()
    with everything.instrument(model, capture_content="EVENT_ONLY"), pytest.raises(RuntimeError):
        _generate(model, logits_processor=[_raise])
    (event,) = (dict(record.attributes or {}) for record in everything.content_events())
    assert event["error.type"] == "RuntimeError"
    assert event["gen_ai.response.finish_reasons"] == ("error",)
    assert MESSAGES[0] in event
    assert MESSAGES[1] not in event


def test_an_attribute_of_the_program_on_the_span_is_in_the_event() -> None:
    """What the program puts on the span while the request runs belongs to the inference as well."""
    everything, model = _Everything(), llama()

    def note(input_ids: Any, scores: Any) -> Any:
        trace.get_current_span().set_attributes({"gen_ai.agent.name": "poet", "app.tenant": "blue"})
        return scores

    with everything.instrument(model, capture_content="EVENT_ONLY"):
        _generate(model, logits_processor=[note])
    event = dict(_event(everything).attributes)
    assert event["gen_ai.agent.name"] == "poet"
    assert "app.tenant" not in event


@pytest.mark.parametrize("form", ["json", "structured"])
def test_content_format(form: str) -> None:
    """On the span messages are JSON texts or lists and maps, as the setting says; in the event they are always lists and maps."""
    everything, model = _Everything(), llama()
    with TracerProvider(shutdown_on_exit=False).get_tracer("test").start_as_current_span("maps") as span:
        span.set_attribute("map", {"key": [{}]})
    if not span.attributes:  # type: ignore[attr-defined]
        form = "json"  # this SDK takes no maps on spans, and logs that
    with everything.instrument(model, capture_content="SPAN_AND_EVENT", content_format=form):
        _generate(model)
    event = dict(_event(everything).attributes)
    plain = {key: json.loads(json.dumps(event[key], default=dict)) for key in MESSAGES}
    assert plain[MESSAGES[0]][0]["role"] == "user"
    for key in MESSAGES:
        value = everything.request()[key]
        assert isinstance(value, str) == (form == "json")
        assert (json.loads(value) if form == "json" else json.loads(json.dumps(value, default=dict))) == plain[key]


def test_a_session_file_keeps_lists_and_maps(tmp_path: Path) -> None:
    """A session file has structured messages as OTLP has them, and the report reads them back."""
    from inferspan.export.files.session_file import SpanFileExporter
    from inferspan.report.session import read_session

    everything, model = _Everything(), llama()
    path = tmp_path / "session.jsonl"
    exporter = SpanFileExporter(path)
    everything.tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
    with everything.instrument(model, capture_content="SPAN_ONLY", content_format="structured"):
        _generate(model)
    inferspan.flush()
    exporter.shutdown()
    read = read_session(path).requests[0].span.attributes[MESSAGES[0]]
    assert json.loads(json.dumps(read)) == json.loads(json.dumps(everything.request()[MESSAGES[0]], default=dict))


def _raise(input_ids: Any, scores: Any) -> Any:
    raise RuntimeError("no more")


def test_nothing_leaves_when_it_is_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No byte of spans, metrics, logs, session file or log lines holds texts or ids, not even where an exception quotes them."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Quoting(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
            rows = input_ids.tolist()
            raise ValueError(f"{input_ids} {rows} {tuple(rows[0])} {input_ids.numpy()} {rows[0]!r} {[(1, rows[0])]}")

    path = tmp_path / "session.jsonl"
    everything, model = _Everything(), llama()
    with caplog.at_level(logging.WARNING), everything.instrument(model, session_file=str(path), modules="all", every_step=True):
        output = _generate(model)
        with pytest.raises(ValueError, match="tensor"):
            _generate(model, stopping_criteria=StoppingCriteriaList([Quoting()]))
        model(prompt(1, 7))
        sent = everything.bytes_sent()
    sent += path.read_bytes() + "\n".join(caplog.messages).encode()
    assert b"gen_ai.usage.output_tokens" in sent and b"ValueError" in sent and b"values left out" in sent
    assert b"quokka" not in sent
    for row in (prompt(1, 7)[0].tolist(), output[0, 7:].tolist()):
        for separator in (", ", ",", " ", "  ", "-", '","'):
            for start in range(len(row) - 2):
                assert separator.join(map(str, row[start : start + 3])).encode() not in sent
    assert everything.keys() == set()


def test_bounds() -> None:
    """Texts are cut at the limit with a mark, and a message attribute stays below 32 KiB."""

    class Long(_Tokenizer):
        def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
            return "ü" * 20_000

    for limit, most in ((10, 600), (30_000, 32 * 1024)):
        everything, model = _Everything(), llama()
        with inferspan.instrument(model, Long(), tracer_provider=everything.tracer_provider, meter_provider=everything.meter_provider,
                                  capture_content="SPAN_ONLY", max_content_chars=limit, nvml=False, host=False, allocator=False):  # fmt: skip
            model.generate(prompt(3, 5), max_new_tokens=2, do_sample=False)
        texts = [everything.request()[key] for key in MESSAGES]
        assert [(len(text.encode()) <= most, "truncated" in text) for text in texts] == [(True, True)] * 2


def test_failing_tokenizer(contained: list[Any]) -> None:
    """A tokenizer that raises costs the messages, nothing else."""

    class Broken(_Tokenizer):
        def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
            raise UnicodeError

    everything, model = _Everything(), llama()
    with inferspan.instrument(model, Broken(), tracer_provider=everything.tracer_provider, meter_provider=everything.meter_provider,
                              capture_content="SPAN_ONLY", nvml=False, host=False, allocator=False):  # fmt: skip
        _generate(model)
    assert everything.request()["gen_ai.usage.output_tokens"] == 5
    assert not everything.keys() & set(MESSAGES)
    assert {error.place for error in contained} == {"content", "token texts"}
    contained.clear()
