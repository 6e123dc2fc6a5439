"""Stages and sessions of the program: their spans, what is inside them, and ends in every order."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry import context as otel_context
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import ReadableSpan

import inferspan
from inferspan import semconv
from inferspan.program.recorders import OFF
from tests.cases import models
from tests.cases.telemetry import Telemetry

QUIET: dict[str, Any] = {"nvml": False, "host": False, "allocator": False}
SECOND = 1e9


@pytest.fixture
def model(telemetry: Telemetry) -> Any:
    """An instrumented module."""
    module = torch.nn.Linear(2, 2)
    telemetry.instrument(module, modules="none", model_name="small")
    return module


def _run(model: Any) -> None:
    with torch.no_grad():
        model(torch.zeros(1, 2))


def _tree(telemetry: Telemetry) -> list[str]:
    """Names of all spans, each below the names of the spans around it."""
    spans = {span.context.span_id: span for span in telemetry.spans() if span.context}

    def path(span: ReadableSpan) -> str:
        above = spans.get(span.parent.span_id) if span.parent else None
        return span.name if above is None else f"{path(above)}/{span.name}"

    return sorted(map(path, spans.values()))


def _attributes(telemetry: Telemetry, name: str) -> dict[str, Any]:
    return telemetry.only(telemetry.spans(name))


# --------------------------------------------------------------------------------------------------------------- stages
def test_requests_are_children(telemetry: Telemetry, model: Any) -> None:
    """Stages nest to any depth, and requests inside are children of the innermost one."""
    with inferspan.stage("outer", tenant="blue", count=3), inferspan.stage("inner"):
        _run(model)
    _run(model)
    assert _tree(telemetry) == ["forward small", "outer", "outer/inner", "outer/inner/forward small"]
    outer = _attributes(telemetry, "outer")
    assert {key: outer[key] for key in outer if key != semconv.STAGE_SELF_TIME} == {
        "tenant": "blue", "count": 3, semconv.STAGE_KIND: "user", semconv.STAGE_NAME: "outer",
    }  # fmt: skip
    telemetry.check()


def test_by_hand(telemetry: Telemetry, model: Any) -> None:
    """A stage may be started and ended by hand, with attributes at its end."""
    stage = inferspan.stage("by hand").start()
    _run(model)
    stage.end(rows=4, **{"self": "x"})
    assert _tree(telemetry) == ["by hand", "by hand/forward small"]
    assert _attributes(telemetry, "by hand")["rows"] == 4
    assert _attributes(telemetry, "by hand")["self"] == "x"
    telemetry.check()


def test_times(telemetry: Telemetry, model: Any) -> None:
    """A stage has the time of all that is inside, and its own, which is that without the stages inside."""
    with inferspan.stage("outer") as outer:
        with inferspan.stage("first") as first:
            threading.Event().wait(0.02)
        with inferspan.stage("second") as second, inferspan.stage("deep") as deep:
            threading.Event().wait(0.02)
    whole, *parts, deepest = (stage.duration or 0.0 for stage in (outer, first, second, deep))
    assert whole >= sum(parts) > 0.04
    assert outer.self_time == pytest.approx(whole - sum(parts), abs=1e-6)
    assert second.self_time == pytest.approx(parts[1] - deepest, abs=1e-6)
    assert deep.self_time == deep.duration
    (span,) = telemetry.spans("outer")
    assert ((span.end_time or 0) - (span.start_time or 0)) / SECOND == pytest.approx(whole, abs=1e-6)
    assert _attributes(telemetry, "outer")[semconv.STAGE_SELF_TIME] == outer.self_time
    telemetry.check()


def test_stages_beside_each_other_count_once(telemetry: Telemetry, model: Any) -> None:
    """Time in which several stages inside are open is taken off once."""

    async def inner() -> None:
        with inferspan.stage("inner"):
            await asyncio.sleep(0.05)

    async def main() -> Any:
        with inferspan.stage("outer") as outer:
            await asyncio.gather(*(inner() for _ in range(8)))
        return outer

    outer = asyncio.run(main())
    inner_times = [((span.end_time or 0) - (span.start_time or 0)) / SECOND for span in telemetry.spans("inner")]
    assert len(inner_times) == 8
    assert sum(inner_times) > outer.duration
    assert 0 <= outer.self_time <= outer.duration - max(inner_times) + 1e-6
    assert _tree(telemetry) == ["outer", *["outer/inner"] * 8]
    telemetry.check()


def test_an_exception(telemetry: Telemetry, model: Any) -> None:
    """An exception ends the stages that it passes through with an error, and passes."""
    with pytest.raises(LookupError, match="theirs"), inferspan.stage("outer"), inferspan.stage("inner"):
        raise LookupError("theirs")
    for name in ("outer", "inner"):
        (span,) = telemetry.spans(name)
        assert not span.status.is_ok
        assert span.status.description == "theirs"
        assert [event.name for event in span.events] == ["exception"]
        assert _attributes(telemetry, name)[semconv.ERROR_TYPE] == "LookupError"
        assert _attributes(telemetry, name)[semconv.FAILED] is True
    telemetry.check()


def test_an_end_out_of_order(telemetry: Telemetry, model: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A stage that ends first ends the stages inside it, which one line in the log says; their own ends do nothing then."""
    with caplog.at_level(logging.WARNING, "inferspan"):
        for _ in range(3):
            outer, inner, deep = (inferspan.stage(name).start() for name in ("outer", "inner", "deep"))
            outer.end()
            inner.end()
            deep.end()
            _run(model)
    lines = [record.getMessage() for record in caplog.records if record.name == "inferspan"]
    assert lines == ["stage 'outer' ended before the stages inside it ('inner'), which were ended with it", "stage 'inner' ended before the stages inside it ('deep'), which were ended with it"]
    assert _tree(telemetry) == sorted([*["forward small"] * 3, *["outer"] * 3, *["outer/inner"] * 3, *["outer/inner/deep"] * 3])
    telemetry.check(complaints=True)


def test_an_end_after_the_block_around_it(telemetry: Telemetry, model: Any) -> None:
    """Stages that overlap without being inside each other leave nothing current."""
    first = inferspan.stage("first").start()
    first.end()
    second = inferspan.stage("second").start()
    second.end()
    second.end()
    _run(model)
    assert _tree(telemetry) == ["first", "forward small", "second"]
    telemetry.check()


def test_started_twice(telemetry: Telemetry, model: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A stage is for one time; another start is a line in the log and nothing else."""
    stage = inferspan.stage("once")
    with stage:
        pass
    with stage:
        _run(model)
    assert "was started twice" in caplog.text
    assert _tree(telemetry) == ["forward small", "once"]


def _produce(names: list[str]) -> Generator[str, None, None]:
    for name in names:
        with inferspan.stage(name):
            yield name


def test_generators(telemetry: Telemetry, model: Any) -> None:
    """Stages in generators that are read in turn end as they end, and nothing stays current."""
    first, second = _produce(["a", "b"]), _produce(["x", "y"])
    for one, other in zip(first, second, strict=True):
        assert one != other
    _run(model)
    assert {"a", "b", "x", "y"} == {span.name for span in telemetry.spans()} - {"forward small"}
    assert "forward small" in _tree(telemetry)


def test_a_generator_that_is_closed(telemetry: Telemetry, model: Any) -> None:
    """Who stops reading a generator ends its stage with the exception by which Python does it, as other requests that are cut short."""
    reading = _produce(["a", "b"])
    next(reading)
    reading.close()
    (span,) = telemetry.spans("a")
    assert (span.attributes or {})[semconv.ERROR_TYPE] == "GeneratorExit"
    telemetry.check()


def test_threads(telemetry: Telemetry, model: Any) -> None:
    """What a thread or pool runs lies in the stage that handed it over; a stage on a thread ends there."""

    def work() -> None:
        with inferspan.stage("work"):
            _run(model)

    with inferspan.stage("outer"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()
    assert _tree(telemetry) == ["outer", *["outer/work"] * 2, *["outer/work/forward small"] * 2]
    telemetry.check()


def test_ended_on_another_thread(telemetry: Telemetry, model: Any) -> None:
    """A stage may be ended by another thread, where nothing of it becomes current."""
    stage = inferspan.stage("moved").start()
    thread = threading.Thread(target=stage.end)
    thread.start()
    thread.join()
    assert stage.duration is not None
    assert _tree(telemetry) == ["moved"]
    otel_context.attach(otel_context.Context())  # the thread that began it has never left it
    telemetry.check()


def test_what_follows_a_stage_that_another_thread_has_ended(telemetry: Telemetry, model: Any) -> None:
    """On the thread that began it, later requests, stages and spans of the program's own are outside of it."""
    tracer = telemetry.tracer_provider.get_tracer("theirs")
    with inferspan.stage("around"):
        stage = inferspan.stage("moved").start()
        thread = threading.Thread(target=stage.end)
        thread.start()
        thread.join()
        _run(model)
        with tracer.start_as_current_span("own"):
            pass
    stage = inferspan.session("moved").start()
    thread = threading.Thread(target=stage.end)
    thread.start()
    thread.join()
    with inferspan.stage("after"):
        pass
    assert _tree(telemetry) == ["after", "around", "around/forward small", "around/moved", "around/own", "session moved"]
    assert semconv.SESSION_ID not in _attributes(telemetry, "after")
    telemetry.check()


def test_tasks_that_outlive_the_stage_they_came_from(telemetry: Telemetry, model: Any) -> None:
    """A task that a stage has started belongs to it, also after its end."""

    async def work() -> None:
        await asyncio.sleep(0.01)
        _run(model)

    async def main() -> None:
        with inferspan.stage("outer"):
            task = asyncio.create_task(work())
        await task

    asyncio.run(main())
    assert _tree(telemetry) == ["outer", "outer/forward small"]


def test_suppressed(telemetry: Telemetry, model: Any) -> None:
    """Where the caller has switched telemetry off, a stage has no span and no time."""
    token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
    try:
        with inferspan.stage("hidden") as stage:
            pass
    finally:
        otel_context.detach(token)
    assert stage.duration is None
    assert telemetry.spans() == []


class _Broken:
    """A provider, tracer and span of which everything raises from some call on."""

    def __init__(self, working: int) -> None:
        self.working = working

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.working -= 1
            if self.working < 0:
                raise OSError("theirs")
            return self

        return call


@pytest.mark.parametrize("working", range(6))
def test_a_provider_that_fails(working: int, contained: list[Any]) -> None:
    """A provider that fails, at whichever call, costs the span only: the program runs on, and nothing stays current."""
    before = otel_context.get_current()
    with inferspan.session("s", tracer_provider=_Broken(working)) as session, inferspan.stage("part") as stage:
        pass
    assert session.id
    assert stage.duration is not None
    assert otel_context.get_current() == before
    assert contained
    contained.clear()


def test_attributes_that_cannot_be_sent(telemetry: Telemetry, model: Any) -> None:
    """An attribute that no exporter can send is left out."""
    with inferspan.stage("odd", value=object(), number=float("nan"), good=1):
        pass
    assert {"value", "number", "good"} & _attributes(telemetry, "odd").keys() == {"good"}
    telemetry.check()


def test_off_again(telemetry: Telemetry) -> None:
    """Stages are recorded from the first instrumented model on, and no more after the last was taken off."""
    module = torch.nn.Linear(2, 2)
    first, second = telemetry.instrument(module), telemetry.instrument(module)
    first.uninstrument()
    with inferspan.stage("on") as stage:
        assert stage is not OFF
    second.uninstrument()
    assert inferspan.stage("off").start() is OFF


# ------------------------------------------------------------------------------------------------------------- sessions
def test_a_session(telemetry: Telemetry, model: Any) -> None:
    """A session is a span around its requests and stages, which carry its id, name and tags."""
    with inferspan.session("nightly", tags={"mode": "t2v", "run": 3}) as session, inferspan.stage("part"):
        _run(model)
    _run(model)
    assert _tree(telemetry) == ["forward small", "session nightly", "session nightly/part", "session nightly/part/forward small"]
    want = {semconv.SESSION_ID: session.id, semconv.SESSION_NAME: "nightly", f"{semconv.SESSION_TAG}.mode": "t2v", f"{semconv.SESSION_TAG}.run": "3"}
    inside = [dict(span.attributes or {}) for span in telemetry.spans() if span.parent or span.name.startswith("session")]
    assert len(inside) == 3
    assert [{key: one.get(key) for key in want} for one in inside] == [want] * 3
    assert semconv.SESSION_ID not in (telemetry.forwards()[-1].attributes or {})
    assert not [row for rows in telemetry.metrics().values() for row in rows if any(repr(key) in row[0] for key in want)]
    telemetry.check()


def test_ids_of_sessions_are_random(telemetry: Telemetry) -> None:
    """Each session has an id of its own, whatever the seed of the program."""
    ids = set()
    for _ in range(2):
        torch.manual_seed(0)
        with inferspan.session("s", tracer_provider=telemetry.tracer_provider) as session:
            ids.add(session.id)
    assert len(ids) == 2


def test_a_session_needs_no_model(telemetry: Telemetry) -> None:
    """Where nothing is instrumented, stages are recorded as long as a session is open."""
    with inferspan.session("alone", tracer_provider=telemetry.tracer_provider), inferspan.stage("part"):
        pass
    assert inferspan.stage("after").start() is OFF
    assert _tree(telemetry) == ["session alone", "session alone/part"]
    telemetry.check()


def test_a_session_in_a_session_is_a_stage(telemetry: Telemetry, model: Any) -> None:
    """An inner session is a stage of the outer one, whose id it has; its tags are added for what is inside."""
    with inferspan.session("outer", tags={"a": "1", "b": "1"}) as outer:
        with inferspan.session("inner", tags={"b": "2"}) as inner:
            _run(model)
        _run(model)
    assert _tree(telemetry) == ["session outer", "session outer/forward small", "session outer/inner", "session outer/inner/forward small"]
    assert inner.id == outer.id
    assert _attributes(telemetry, "inner")[semconv.STAGE_KIND] == "user"
    tags = [[(span.attributes or {})[f"{semconv.SESSION_TAG}.{key}"] for key in "ab"] for span in telemetry.forwards()]
    assert tags == [["1", "2"], ["1", "1"]]
    assert {(span.attributes or {})[semconv.SESSION_NAME] for span in telemetry.spans()} == {"outer"}
    telemetry.check()


def test_tags_of_the_settings(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags of the settings are on every session, and those of the call are stronger."""
    monkeypatch.setenv("INFERSPAN_SESSION_TAGS", "team=vision, mode=i2v")
    with inferspan.session("s", tags={"mode": "t2v"}, tracer_provider=telemetry.tracer_provider) as session:
        pass
    assert session.tags == {"team": "vision", "mode": "t2v"}
    assert _attributes(telemetry, "session s")[f"{semconv.SESSION_TAG}.team"] == "vision"


def test_tags_of_a_file(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tags of the settings file are merged with those of the call, which are stronger; events carry them as well."""
    (tmp_path / "inferspan.yaml").write_text("session_tags: {team: vision, mode: i2v}\n")
    monkeypatch.setenv("INFERSPAN_CONFIG", str(tmp_path / "inferspan.yaml"))
    with inferspan.session("s", tags={"mode": "t2v"}, tracer_provider=telemetry.tracer_provider) as session:
        inferspan.event("here")
    (span,) = telemetry.spans("session s")
    want = {f"{semconv.SESSION_TAG}.team": "vision", f"{semconv.SESSION_TAG}.mode": "t2v", semconv.SESSION_ID: session.id}
    for attributes in (span.attributes or {}, span.events[0].attributes or {}):
        assert {key: attributes.get(key) for key in want} == want


def test_a_session_on_threads_and_tasks(telemetry: Telemetry, model: Any) -> None:
    """Requests of threads and tasks that were begun in a session carry its id."""

    async def main() -> None:
        await asyncio.gather(asyncio.to_thread(_run, model), asyncio.to_thread(_run, model))

    with inferspan.session("s") as session:
        thread = threading.Thread(target=_run, args=(model,))
        thread.start()
        thread.join()
        asyncio.run(main())
    assert [(span.attributes or {}).get(semconv.SESSION_ID) for span in telemetry.forwards()] == [session.id] * 3
    telemetry.check()


def test_events_of_requests_carry_the_session(telemetry: Telemetry) -> None:
    """The log events of a request name its session."""
    exporter, logs = InMemoryLogRecordExporter(), LoggerProvider(shutdown_on_exit=False)
    logs.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    model: Any = models.llama()
    inferspan_handle = inferspan.instrument(
        model, _Tokenizer(), tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider, logger_provider=logs,
        capture_content="SPAN_AND_EVENT", **QUIET,
    )  # fmt: skip
    with inferspan_handle, inferspan.session("s", tags={"mode": "t2v"}) as session:
        model.generate(models.prompt(1, 4), max_new_tokens=2)
        with pytest.raises(ValueError, match="nothing"):
            model.generate(models.prompt(1, 4), max_new_tokens=2, stopping_criteria=[_Failing()])
    inferspan.flush()
    records = {record.log_record.event_name: dict(record.log_record.attributes or {}) for record in exporter.get_finished_logs()}
    assert records.keys() == {semconv.CONTENT_EVENT, semconv.INFERENCE_EXCEPTION_EVENT, semconv.EVALUATION_EVENT}
    for attributes in records.values():
        assert attributes[semconv.SESSION_ID] == session.id
        assert attributes[f"{semconv.SESSION_TAG}.mode"] == "t2v"


class _Failing:
    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ValueError("nothing")


class _Tokenizer:
    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        """The ids as text."""
        return " ".join(map(str, ids))
