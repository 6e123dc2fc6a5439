"""What Jaeger shows beside traces: services and operations, the Monitor tab fed by metrics made from spans, and the page's own set-up.

One small program makes a known number of requests; every answer is compared with what it says it did.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferspan import semconv
from inferspan.bundles import collector_config
from tests.integration.conftest import RunProgram
from tests.integration.servers import Stack, eventually, get_json
from tests.integration.spans_seen import Seen, from_otlp

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
SERVICE = "red-job"
REQUEST = "text_completion tiny-llama"
MINUTE_MS = 60_000


SECONDS = {"ms": 1e-3, "s": 1.0}


def bucket(seconds: float) -> tuple[float, float]:
    """Ends of the bucket of dev.yaml that a duration falls into."""
    written = yaml.safe_load(collector_config("dev.yaml").read_text(encoding="utf-8"))["connectors"]["span_metrics"]["histogram"]
    parts = [re.fullmatch(r"(\d+)([a-z]+)", text) for text in written["explicit"]["buckets"]]
    ends = [0.0, *(int(part[1]) * SECONDS[part[2]] for part in parts if part)]
    return next((low, high) for low, high in pairwise(ends) if low < seconds <= high)


@dataclass(frozen=True)
class Run:
    """The program has run: what it says, and the spans that the collector received."""

    truth: dict[str, Any]
    stack: Stack
    spans: list[Seen]

    @property
    def expected(self) -> dict[tuple[str, str, str], int]:
        """How often each span that rates are made of occurred, by name, kind and error."""
        generations, failures = self.truth["generations"], self.truth["failures"]
        return {
            (REQUEST, "INTERNAL", ""): generations,
            (REQUEST, "INTERNAL", "ValueError"): failures,
            ("prefill", "INTERNAL", ""): generations,
            ("prefill", "INTERNAL", "ValueError"): failures,
            ("decode", "INTERNAL", ""): generations,
            ("forward tiny-llama", "INTERNAL", ""): self.truth["forwards"],
            ("forward Classifier", "INTERNAL", ""): self.truth["classifications"],
            ("GET /answer", "SERVER", ""): generations,
        }

    def counted(self, metric: str) -> dict[tuple[str, str, str], int]:
        """The same, as a counter in Prometheus has it."""
        return {
            (labels["span_name"], labels["span_kind"].removeprefix("SPAN_KIND_"), labels.get("error_type", "")): round(value)
            for labels, value in self.stack.query(f'{metric}{{service_name="{SERVICE}"}}')
        }

    def monitor(self, metric: str, kind: str, **parameters: Any) -> dict[str, float]:
        """The last value of each operation in the Monitor tab."""
        answer = get_json(
            f"{self.stack.jaeger}/api/metrics/{metric}",
            service=SERVICE,
            spanKind=kind,
            groupByOperation="true",
            endTs=int(time.time() * 1000),
            lookback=5 * MINUTE_MS,
            step=1000,
            ratePer=10 * MINUTE_MS,
            **parameters,
        )
        last = {}
        for series in answer["metrics"]:
            labels = {label["name"]: label["value"] for label in series["labels"]}
            last[labels["operation"]] = float(series["metricPoints"][-1]["gaugeValue"]["doubleValue"])
        return last


@pytest.fixture(scope="module")
def run(stack: Stack, run_program: RunProgram) -> Run:
    """The program has run, and Prometheus has every request of it."""
    truth = run_program("programs/red_job.py", OTEL_SERVICE_NAME=SERVICE, OTEL_EXPORTER_OTLP_ENDPOINT=stack.http, PYTHONPATH=str(ROOT))

    def arrived() -> Run:
        run = Run(truth, stack, from_otlp(stack.raw_lines(SERVICE)))
        assert sum(run.counted("traces_span_metrics_calls_total").values()) >= sum(run.expected.values())
        return run

    return eventually(arrived)


@pytest.mark.parametrize("metric", ["traces_span_metrics_calls_total", "traces_span_metrics_duration_seconds_count"])
def test_requests_phases_and_others_spans_are_counted(run: Run, metric: str) -> None:
    """Generations, failures, plain forward passes, phases and a span of the program are counted exactly; steps and modules have no series."""
    assert run.counted(metric) == run.expected
    left_out = {span.name for span in run.spans} - {name for name, _, _ in run.expected}
    assert left_out >= {"prefill_step", "decode_step", "layer 0", "layer 1 self_attn", "layer 2"}, "the filter had nothing to do"


def test_sums_of_durations_are_those_of_the_spans(run: Run) -> None:
    """Seconds summed up by the collector equal those of the spans that it received, kind by kind."""
    from_spans: dict[tuple[str, str], float] = defaultdict(float)
    for span in run.spans:
        from_spans[span.name, str(span.attributes.get(semconv.ERROR_TYPE, ""))] += (span.end - span.start) / 1e9
    seconds = {
        (labels["span_name"], labels.get("error_type", "")): value
        for labels, value in run.stack.query(f'traces_span_metrics_duration_seconds_sum{{service_name="{SERVICE}"}}')
    }
    assert seconds == pytest.approx({(name, error): from_spans[name, error] for name, _, error in run.expected}, rel=1e-6)


def test_labels_of_requests(run: Run) -> None:
    """A generation's series carry operation and model, whatever its outcome; phases and plain forward passes have neither."""
    found = {
        (labels["span_name"], labels.get("gen_ai_operation_name", ""), labels.get("gen_ai_request_model", ""), labels["status_code"])
        for labels, _ in run.stack.query(f'traces_span_metrics_calls_total{{service_name="{SERVICE}"}}')
    }
    error, unset = "STATUS_CODE_ERROR", "STATUS_CODE_UNSET"
    assert found == {
        (REQUEST, "text_completion", "tiny-llama", unset),
        (REQUEST, "text_completion", "tiny-llama", error),
        *((name, "", "", unset) for name in ("prefill", "decode", "forward tiny-llama", "forward Classifier", "GET /answer")),
        ("prefill", "", "", error),
    }


def test_exemplar_of_a_duration_is_a_trace_that_jaeger_has(run: Run) -> None:
    """The links from durations of requests lead to traces of this program."""
    exemplars = run.stack.exemplars(f'traces_span_metrics_duration_seconds_bucket{{service_name="{SERVICE}",span_name="{REQUEST}"}}')
    linked = {exemplar["labels"]["trace_id"] for exemplar in exemplars}
    assert linked
    assert linked <= {span.trace for span in run.spans if span.name == REQUEST}
    for trace_id in linked:
        assert REQUEST in {span["operationName"] for span in run.stack.trace(trace_id)}


def test_services_and_operations(run: Run) -> None:
    """The lists from which a search is chosen: the service, and every span name under its kind."""
    assert SERVICE in get_json(f"{run.stack.jaeger}/api/services")["data"]
    names = {span.name for span in run.spans}
    operations = {
        (each["name"], each["spanKind"]) for each in get_json(f"{run.stack.jaeger}/api/operations", service=SERVICE, limit=1000)["data"]
    }
    assert operations == {("GET /answer", "server"), *((name, "internal") for name in names - {"GET /answer"})}


def test_monitor_shows_calls(run: Run) -> None:
    """With kind internal chosen the rates stand in the proportion of the calls, failures among them; with server, the program's own."""
    calls: dict[str, int] = defaultdict(int)
    for (name, kind, _), count in run.expected.items():
        if kind == "INTERNAL":
            calls[name] += count

    def look() -> None:
        rates = run.monitor("calls", "internal")
        assert set(rates) == set(calls)
        per_call = rates["decode"] / calls["decode"]
        assert per_call > 0
        assert rates == pytest.approx({name: per_call * count for name, count in calls.items()}, rel=1e-3)
        # A rate over a window of ten minutes is stretched by Prometheus by at most half an interval at each end.
        assert 600 * rates["decode"] == pytest.approx(calls["decode"], rel=0.25)
        assert set(run.monitor("calls", "server")) == {"GET /answer"}

    eventually(look)


def test_monitor_shows_errors(run: Run) -> None:
    """The error rate of requests is failures out of all; what never failed has none."""
    share = run.truth["failures"] / (run.truth["generations"] + run.truth["failures"])

    def look() -> None:
        errors = {name: value for name, value in run.monitor("errors", "internal").items() if value}
        assert errors == pytest.approx({REQUEST: share, "prefill": share}, rel=1e-3)

    eventually(look)


def test_monitor_shows_latencies(run: Run) -> None:
    """The quantiles lie in the buckets of the real durations, in seconds: the slow request is seen, the quick forward is not slow."""
    durations = sorted((span.end - span.start) / 1e9 for span in run.spans if span.name == REQUEST)
    assert durations[-1] > run.truth["slow_seconds"] > 0.5

    def look() -> None:
        high, low = (run.monitor("latencies", "internal", quantile=quantile) for quantile in ("0.95", "0.5"))
        assert set(high) == {name for name, kind, _ in run.expected if kind == "INTERNAL"}
        for shown, real in ((high[REQUEST], durations[-1]), (low[REQUEST], durations[len(durations) // 2])):
            shortest, longest = bucket(real)
            assert shortest < shown <= longest
        assert 0 < high["forward Classifier"] < run.truth["slow_seconds"]

    eventually(look)


def test_page_has_our_set_up(stack: Stack) -> None:
    """The page that Jaeger serves holds jaeger-ui.json, which is where the browser takes links and the order of tags from."""
    with urllib.request.urlopen(f"{stack.jaeger}/search", timeout=10) as answer:
        page = answer.read().decode()
    (served,) = re.findall(r"^JAEGER_CONFIG = (\{.*\});?$", page, re.MULTILINE)
    assert json.loads(served) == json.loads(collector_config("jaeger-ui.json").read_text(encoding="utf-8"))
