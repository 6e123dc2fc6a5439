"""Figures of a live display, from telemetry as it arrives."""

from __future__ import annotations

import math

import pytest

from inferspan import semconv
from inferspan.live.figures import Figures
from tests.live.telemetry import END, metric, module, of_two, request, spans, step


def test_a_request_that_ends_is_handed_out() -> None:
    """Its figures are those of its span."""
    (one,) = Figures().take(spans(request()))
    assert (one.name, one.input_tokens, one.output_tokens, one.seconds) == ("chat tiny", 5, 10, 2.0)


def test_spans_of_other_libraries_are_no_requests() -> None:
    """Only spans of our scope count."""
    assert Figures().take(spans(request(), scope="other")) == []


@pytest.mark.parametrize("name", ["traceId", "spanId"])
def test_a_span_without_an_id_is_no_request(name: str) -> None:
    """It is damaged; the report passes it over, too."""
    assert Figures().take(spans({**request(), name: ""})) == []


def test_a_nested_request_is_part_of_another_one() -> None:
    """A draft model's call is not counted again."""
    assert Figures().take(spans(request(more={semconv.NESTED: True}))) == []


def test_tokens_a_second_are_those_of_the_window() -> None:
    """Requests that ended before it do not count, the time is that of the telemetry."""
    figures = Figures(window=60.0)
    for end in (END - 100, END - 10, END):
        figures.take(spans(request(end)))
    assert figures.snapshot().tokens_per_second == pytest.approx(20 / 60)


def test_percentiles_are_of_the_same_requests() -> None:
    """Linear interpolation between two values."""
    figures = Figures()
    figures.take(spans(request(more={semconv.TTFT: 1.0}), request(more={semconv.TTFT: 2.0})))
    assert figures.snapshot().ttft == pytest.approx((1.5, 1.95))


def test_what_nobody_sent_is_unknown() -> None:
    """Nothing is zero that was not measured."""
    now = Figures().snapshot()
    assert (now.running, now.tokens_per_second, now.ttft, now.machines, now.age) == (None, None, None, (), None)


def test_failures_are_counted_and_named() -> None:
    """By the type of their error."""
    figures = Figures()
    figures.take(spans(request(failed=True, more={semconv.ERROR_TYPE: "OutOfMemoryError"}), request()))
    now = figures.snapshot()
    assert (now.ended, now.failed) == (2, 1)
    assert now.warnings == (("failed: OutOfMemoryError", 1),)


def test_modules_stand_by_their_time() -> None:
    """The longest first, with the number of calls."""
    figures = Figures()
    figures.take(spans(module("a", 0.1), module("b", 0.2), module("a", 0.3)))
    hottest = figures.snapshot().hottest
    assert [(hot.name, hot.calls) for hot in hottest] == [("a", 2), ("b", 1)]
    assert hottest[0].seconds == pytest.approx(0.4)


def test_device_time_counts_where_it_was_measured() -> None:
    """It is what the module took, the host only launched it."""
    figures = Figures()
    figures.take(spans(module("a", 0.1, more={semconv.DEVICE_TIME: 0.7})))
    (hot,) = figures.snapshot().hottest
    assert (hot.seconds, hot.device) == (0.7, True)


def test_modules_are_bounded() -> None:
    """A program that makes names without end does not fill the memory; those called last stay."""
    figures = Figures()
    for number in range(2500):
        figures.take(spans(module(f"m{number}", 0.1)))
    assert len(figures._modules) == 2000


def test_running_requests_are_summed_over_processes() -> None:
    """Each process says how many it has; the newest figure of a process counts."""
    figures = Figures()
    for instance, value in (("1", 2), ("1", 3), ("2", 4)):
        figures.take(metric(semconv.M_ACTIVE, value, instance=instance))
    assert figures.snapshot().running == 7


def test_the_readings_of_a_host_are_shown_once() -> None:
    """Two processes of a host report the same processor."""
    figures = Figures()
    for instance in "12":
        for mode, share in (("user", 0.5), ("system", 0.1), ("idle", 0.4)):
            figures.take(metric(semconv.M_SYSTEM_CPU_UTILIZATION, share, instance=instance, more={semconv.CPU_MODE: mode}))
    (machine,) = figures.snapshot().machines
    assert machine.cpu == pytest.approx(0.6)


def test_a_card_has_its_own_figures() -> None:
    """Memory, utilisation, temperature of the chip, and power."""
    figures = Figures()
    for name, value, more in (
        (semconv.M_GPU_MEMORY_USAGE, 2**30, {}),
        (semconv.M_GPU_MEMORY_LIMIT, 2**32, {}),
        (semconv.M_GPU_UTILIZATION, 0.9, {semconv.HW_GPU_TASK: "general"}),
        (semconv.M_TEMPERATURE, 61.0, {semconv.HW_SENSOR_LOCATION: "gpu"}),
        (semconv.M_POWER, 350.0, {}),
    ):
        figures.take(metric(name, value, more={semconv.HW_ID: "GPU-1", semconv.HW_NAME: "H200", **more}))
    ((card,),) = (machine.cards for machine in figures.snapshot().machines)
    assert card == ("H200", 2**30, 2**32, 0.9, 61.0, 350.0)


def test_readings_that_are_old_are_not_shown() -> None:
    """A process that has gone must not stand there for ever."""
    figures = Figures()
    figures.take(metric(semconv.M_ACTIVE, 5, at=END - 200))
    figures.take(spans(request()))
    assert figures.snapshot().running is None


def test_a_host_with_another_clock_is_right() -> None:
    """Its telemetry is compared with its own newest time."""
    figures = Figures()
    figures.take(metric(semconv.M_ACTIVE, 5, at=1000.0))
    assert figures.snapshot().running == 5


def test_tokens_of_the_steps_come_with_the_request() -> None:
    """In order of the steps, with the probability of each."""
    figures = Figures()
    (one,) = figures.take(spans(request(more={semconv.OUTPUT_TOKENS: 2}), step(1, "b", math.log(0.25)), step(0, "a", 0.0)))
    assert [text for text, _ in one.tokens] == ["a", "b"]
    assert [probability for _, probability in one.tokens] == pytest.approx([1.0, 0.25])


def test_a_request_waits_for_the_rest_of_its_tokens() -> None:
    """Its steps may stand in the next line."""
    figures = Figures()
    assert figures.take(spans(request(more={semconv.OUTPUT_TOKENS: 2}), step(0, "a", 0.0))) == []
    (one,) = figures.take(spans(step(1, "b", 0.0)))
    assert [text for text, _ in one.tokens] == ["a", "b"]


def test_requests_of_one_trace_have_their_own_tokens() -> None:
    """Those of a session or a stage stand in one trace, and may come in one line."""
    ended = Figures().take(spans(*of_two("a", "4"), *of_two("b", "5")))
    assert [[text for text, _ in one.tokens] for one in ended] == [["a"], ["b"]]


def test_a_request_waits_for_the_phase_of_its_tokens() -> None:
    """The step says whose it is by its phase, which may come later."""
    figures = Figures()
    step_of_it, phase, whole = of_two("a", "4")
    assert figures.take(spans(step_of_it, whole)) == []
    (one,) = figures.take(spans(phase))
    assert [text for text, _ in one.tokens] == ["a"]


def test_a_batch_does_not_wait_for_tokens_of_its_other_rows() -> None:
    """Its steps have one token of the first sequence each."""
    more = {semconv.OUTPUT_TOKENS: 2, semconv.FINISH_REASONS: ["length", "length"]}
    (one,) = Figures().take(spans(request(more=more), step(0, "a", 0.0)))
    assert [text for text, _ in one.tokens] == ["a"]


def test_a_source_that_is_never_idle_does_not_hold_requests_back() -> None:
    """Of which the tokens do not come; more than a few hundred are not held."""
    figures = Figures()
    ended = [
        one
        for number in range(300)
        for one in figures.take(spans(request(trace=f"{number:04x}"), step(0, "a", 0.0, trace=f"{number:04x}")))
    ]
    assert len(ended) == 300 - 256


def test_a_request_does_not_wait_for_ever() -> None:
    """A look that finds nothing new lets it go."""
    figures = Figures()
    figures.take(spans(request(more={semconv.OUTPUT_TOKENS: 2}), step(0, "a", 0.0)))
    (one,) = figures.take({})
    assert [text for text, _ in one.tokens] == ["a"]


@pytest.mark.parametrize("broken", [{"resourceSpans": 1}, {"resourceSpans": [1, {"scopeSpans": [{"scope": 1, "spans": [2]}]}]}, {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"gauge": []}]}]}]}])  # fmt: skip
def test_what_is_malformed_is_passed_over(broken: dict[str, object]) -> None:
    """A display must not end because one message is damaged."""
    assert Figures().take(broken) == []
