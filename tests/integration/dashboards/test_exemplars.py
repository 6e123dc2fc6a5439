"""Exemplars: from a histogram in Prometheus to the trace in Jaeger that is one of its requests."""

from __future__ import annotations

import pytest

from inferspan import semconv
from tests.integration.dashboards.served import Served
from tests.integration.servers import eventually

pytestmark = pytest.mark.integration

HISTOGRAMS = {
    "gen_ai_server_time_to_first_token_seconds_bucket": semconv.TTFT,
    "gen_ai_server_time_per_output_token_seconds_bucket": semconv.TPOT,
    "gen_ai_server_request_duration_seconds_bucket": None,
    "inferspan_generate_step_duration_seconds_bucket": None,
    "inferspan_logits_entropy_bucket": None,
}
"""Metrics whose panels show exemplars, and the attribute of the request span that holds the same number."""


@pytest.mark.parametrize("path", ["push", "scrape", "fleet"])
@pytest.mark.parametrize("metric", HISTOGRAMS)
def test_exemplars_name_requests(served: Served, path: str, metric: str) -> None:
    """Every exemplar names a span that a program sent, in its trace, and its value is what that span says."""
    sent = {(span.trace, span.id): span for span in served.spans}
    exemplars = served[path].exemplars(metric)
    assert exemplars
    named = [(one["labels"]["trace_id"], one["labels"]["span_id"]) for one in exemplars]
    assert [pair for pair in named if pair not in sent] == []
    attribute = HISTOGRAMS[metric]
    if attribute is not None:
        said = [sent[pair].attributes[attribute] for pair in named]
        assert [float(one["value"]) for one in exemplars] == pytest.approx(said)


@pytest.mark.parametrize("path", ["push", "scrape"])
@pytest.mark.parametrize("metric", [*HISTOGRAMS, "traces_span_metrics_duration_seconds_bucket"])
def test_exemplars_resolve(served: Served, path: str, metric: str) -> None:
    """Jaeger has the trace of every exemplar, and in it the span."""
    exemplars = served[path].exemplars(metric)
    assert exemplars
    for trace in {one["labels"]["trace_id"] for one in exemplars}:
        spans = {span["spanID"] for span in served[path].trace(trace)}
        assert {one["labels"]["span_id"] for one in exemplars if one["labels"]["trace_id"] == trace} <= spans


def test_exemplars_of_kept_traces_resolve_behind_the_sampler(served: Served) -> None:
    """Behind a sampler exemplars of requests that failed or were marked lead to their traces; span metrics there have none."""
    kept = {span.trace for span in served.spans if span.error or span.attributes.get(semconv.KEEP) is True}
    metrics = ("gen_ai_server_request_duration_seconds_bucket", "inferspan_generate_step_duration_seconds_bucket")
    found = {one["labels"]["trace_id"] for metric in metrics for one in served["fleet"].exemplars(metric)} & kept
    assert found
    for trace in found:
        eventually(lambda trace=trace: served["fleet"].trace(trace))  # type: ignore[misc]
    assert served["fleet"].exemplars("traces_span_metrics_duration_seconds_bucket") == []
