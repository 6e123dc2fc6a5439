"""Summaries inside the program: the figures of the session file of the same run, kept in the process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import inferspan
from inferspan import semconv
from inferspan.report.figures.document import document
from inferspan.report.session import read_session
from tests.cases import models

QUIET: dict[str, Any] = {"nvml": False, "host": False, "allocator": False}


@pytest.fixture
def recorded(record: Any) -> Any:
    """A model that is recorded into the file, and its handle."""
    model = models.llama()
    return model, record(model, output_stats=True, steps="all")


def _generate(model: Any, **arguments: Any) -> None:
    with torch.no_grad():
        model.generate(models.prompt(1, 6), max_new_tokens=5, min_new_tokens=5, do_sample=False, **arguments)


def _fail(model: Any) -> None:
    class Gone:
        calls = 0

        def put(self, _: object) -> None:
            self.calls += 1
            if self.calls > 3:
                raise ConnectionResetError

        def end(self) -> None:
            return

    with pytest.raises(ConnectionResetError):
        _generate(model, streamer=Gone())


def _run(model: Any) -> None:
    with inferspan.session("nightly"), inferspan.stage("answer", tenant="blue"):
        _generate(model)
        inferspan.event("cache_miss", key="a")
        with inferspan.stage("retry"):
            _fail(model)
    with torch.no_grad():
        model(models.prompt(2, 3))


def _report(file: Path) -> dict[str, Any]:
    return document(read_session(file))


def _by_name(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["kind"], row["name"]))


def _assert_same(found: list[dict[str, Any]], told: list[dict[str, Any]]) -> None:
    """Assert that the rows have the same figures: the order of a sum may differ, and with it the last bits of a float."""
    assert [(row["kind"], row["name"]) for row in _by_name(found)] == [(row["kind"], row["name"]) for row in _by_name(told)]
    for row, other in zip(_by_name(found), _by_name(told), strict=True):
        for key, value in other.items():
            assert row[key] == (pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value), (row["name"], key)
        assert row.keys() == other.keys()


def test_operations_are_those_of_the_report(recorded: Any, file: Path) -> None:
    """Each operation has the figures that the report of the session file has of it."""
    model, handle = recorded
    _run(model)
    assert handle.flush()
    found = [row.as_dict() for row in handle.summary().operations]
    _assert_same(found, _report(file)["statistics"]["operations"])
    assert {row["kind"] for row in found} == {"session", "stage", "request", "phase", "step", "module"}


def test_events_are_those_of_the_report(recorded: Any, file: Path) -> None:
    """Events by type, seconds by module, the whole duration and the steps are those of the report."""
    model, handle = recorded
    _run(model)
    handle.flush()
    found, told = handle.summary().as_dict(), _report(file)["summary"]
    for key in ("total_events", "event_types", "steps"):
        assert found[key] == told[key]
    assert found["module_times"] == pytest.approx(told["module_times"])
    assert found["total_duration"] == pytest.approx(told["total_duration"])
    assert found["event_types"]["cache_miss"] == 1 and found["event_types"]["error"] >= 1


def test_a_session_has_what_is_inside(recorded: Any) -> None:
    """Requests and stages of other sessions, and of no session, are not among the figures of a session."""
    model, handle = recorded
    _generate(model)
    with inferspan.session("first") as first, inferspan.stage("a"):
        _generate(model)
    with inferspan.session("second") as second, inferspan.session("inner") as inner:
        with inferspan.stage("b"):
            _generate(model)
        _generate(model)
    assert (handle.summary().requests, first.summary().requests, second.summary().requests, inner.summary().requests) == (4, 1, 2, 2)
    assert first.summary().operation("stage", "a").count == 1 and first.summary().operation("stage", "b") is None
    assert second.summary().operation("step", "decode_step").count == 2 * first.summary().operation("step", "decode_step").count
    assert [request.kind for request in second.requests()] == ["generate"] * 2


def test_a_session_on_another_thread(recorded: Any) -> None:
    """Requests of threads that are started in a session belong to it."""
    model, _ = recorded
    with inferspan.session("threads") as session:
        worker = threading.Thread(target=_generate, args=(model,))
        worker.start()
        worker.join()
    assert session.summary().requests == 1


def test_own_time_is_without_what_is_inside(recorded: Any) -> None:
    """A session's own time is without its stages, and a stage's own time without its requests."""
    model, handle = recorded
    with inferspan.session("s") as session, inferspan.stage("a"):
        _generate(model)
    found = session.summary()
    whole, stage, request = (found.operation(*key) for key in (("session", "session s"), ("stage", "a"), ("request", "text_completion")))
    assert request is not None
    assert whole.self_duration == pytest.approx(whole.total_duration - stage.total_duration)
    assert stage.self_duration == pytest.approx(stage.total_duration - request.total_duration)
    assert found.operations == tuple(row for row in handle.summary().operations)


def test_outputs_of_modules(recorded: Any) -> None:
    """Mean, population deviation and range over all recorded calls are those of the outputs."""
    model, handle = recorded
    torch._dynamo.reset()  # after a compilation by another test a module with a hook of the program is not observed
    seen: list[Any] = []
    hook = model.model.layers[1].mlp.register_forward_hook(lambda module, args, output: seen.append(output.flatten()))
    with torch.no_grad():
        model(models.prompt(1, 6))
        model(models.prompt(2, 4))
    hook.remove()
    (row,) = [row for row in handle.summary().modules if row.name == "model.layers.1.mlp"]
    values = torch.cat(seen).double()
    assert (row.calls, row.output_shapes, row.output_dtypes, row.outputs.elements) == (2, ("2x4x32",), ("float32",), values.numel())
    assert row.outputs.mean == pytest.approx(values.mean().item(), rel=1e-4)
    assert row.outputs.std == pytest.approx(values.std(correction=0).item(), rel=1e-4)
    assert row.outputs.range == pytest.approx((values.min().item(), values.max().item()))
    assert row.last.mean == pytest.approx(seen[1].mean().item(), rel=1e-4)


def test_modules_are_in_the_order_of_the_model(recorded: Any) -> None:
    """The rows come as the modules begin, not as they end."""
    model, handle = recorded
    with torch.no_grad():
        model(models.prompt(1, 6))
    names = [row.name for row in handle.summary().modules]
    assert names.index("model.layers.0") < names.index("model.layers.0.mlp") < names.index("model.layers.1")


def test_flush_by_handle(recorded: Any, file: Path) -> None:
    """After ``handle.flush()`` the file holds every request, also a failed one."""
    model, handle = recorded
    _fail(model)
    assert handle.flush(20)
    (request,) = read_session(file).requests
    assert request.span.failed and request.steps


def test_flush_of_providers_that_were_given() -> None:
    """The providers that the program has given are flushed too; one that refuses is told."""
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    class Refusing(SpanProcessor):
        calls = 0

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            self.calls += 1
            return False

    provider, processor = TracerProvider(shutdown_on_exit=False), Refusing()
    provider.add_span_processor(processor)
    with inferspan.instrument(torch.nn.Linear(2, 2), tracer_provider=provider, modules="none", **QUIET) as handle:
        assert handle.flush(5) is False
    assert processor.calls == 1


def test_nothing_recorded(record: Any) -> None:
    """Without a request there is nothing in the mapping, and the object can be shown all the same."""
    handle = record(torch.nn.Linear(2, 2), modules="none")
    found = handle.summary()
    assert (found.as_dict(), found.to_json(), found.operations, handle.requests(), handle.last_request) == ({}, "{}", (), [], None)
    assert "generate() calls" in found.text() and "<svg" not in handle._repr_html_()


def test_without_a_destination() -> None:
    """Totals and the requests as operations need none; nothing is inside them."""
    from opentelemetry.trace import NoOpTracerProvider

    model = torch.nn.Linear(2, 2)
    with inferspan.instrument(model, tracer_provider=NoOpTracerProvider(), modules="none", model_name="small", **QUIET) as handle:
        model(torch.zeros(1, 2))
        found = handle.summary()
        assert (found.forwards, found.total_events) == (1, 0)
        assert [(row.kind, row.name, row.count) for row in found.operations] == [("request", "forward small", 1)]


def test_findings_of_all_requests(recorded: Any) -> None:
    """The analysis counts requests and findings, and has average and extremes of each figure."""
    model, handle = recorded
    _generate(model)
    _generate(model)
    found = handle.summary().analysis
    assert (found["requests"], found["findings"]) == (2, dict(handle.summary().findings))
    confidence = found["figures"]["confidence"]
    assert confidence["requests"] == 2 and 0 < confidence["min"] <= confidence["average"] <= confidence["max"] <= 1


def test_the_latest_requests_are_bounded(recorded: Any) -> None:
    """At most 32 requests are kept, the newest last, with their phases and steps."""
    model, handle = recorded
    with torch.no_grad():
        for _ in range(33):
            model(models.prompt(1, 2))
    _generate(model)
    last = handle.last_request
    assert (len(handle.requests()) == 32 and last is handle.requests()[-1]) or last.start_ns == handle.requests()[-1].start_ns
    assert [bar.name for bar in last.bars if bar.level == "step"] == ["prefill_step"] + ["decode_step"] * 4
    assert all(0 <= bar.start <= bar.end <= last.duration for bar in last.bars)
    assert last.as_dict()["output_tokens"] == 5


def test_request_span_that_is_not_sampled() -> None:
    """What has no span is in the totals and in no event."""
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    from tests.cases.telemetry import Telemetry

    telemetry = Telemetry(ALWAYS_OFF)
    model = models.llama()
    handle = telemetry.instrument(model)
    _generate(model)
    found = handle.summary()
    assert (found.requests, found.event_types, {row.kind for row in found.operations}) == (1, {}, {"request"})
    telemetry.close()


def test_keep_leaves_the_detail_out(record: Any, file: Path) -> None:
    """Detail that is not kept is not in the figures, as it is not in the file."""
    model = models.llama()
    handle = record(model, keep="errors", steps="all")
    _generate(model)
    _fail(model)
    handle.flush()
    found = [row.as_dict() for row in handle.summary().operations]
    report = _report(file)
    _assert_same(found, report["statistics"]["operations"])
    assert handle.summary().event_types == report["summary"]["event_types"]


def test_module_statistics_use_no_content(recorded: Any) -> None:
    """What is kept of a request has no prompt, no answer and no token."""
    model, handle = recorded
    _generate(model)
    kept = handle.last_request.to_json()
    assert semconv.INPUT_MESSAGES not in kept and "token_ids" not in kept
