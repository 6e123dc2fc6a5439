"""The analysis of a request is that of what ``generate()`` returned: its tokens and its raw logits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from torch import Tensor

import inferspan
from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.matrix.pipelines import GREEDY, PIPELINES, TEXTS

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.7, "top_k": 20},
    "a batch": {"rows": 3, "do_sample": False},
    "a batch of samples": {"rows": 2, "do_sample": True, "num_return_sequences": 2},
    "beams": {"rows": 2, "do_sample": False, "num_beams": 3},
    "rows that end early": {"rows": 4, "do_sample": True, "eos_token_id": [*range(0, 64, 9)], "min_new_tokens": 0},
    "a large batch": {"rows": 18, "do_sample": False},
}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that is emitted during the test."""
    found = Telemetry()
    yield found
    found.close()


class Observed:
    """A request, and what ``generate()`` returned for it."""

    def __init__(self, telemetry: Telemetry, way: str) -> None:
        model: Any = models.llama()
        options = {"max_new_tokens": 24, "min_new_tokens": 24, **WAYS[way]}
        rows = int(options.pop("rows", 1))
        with torch.no_grad():
            model.lm_head.weight.mul_(8)  # so that probabilities differ
        telemetry.instrument(model)
        torch.manual_seed(3)
        result = model.generate(models.prompt(rows), return_dict_in_generate=True, output_logits=True, **options)
        (request,) = telemetry.requests()
        self.attributes: dict[str, Any] = dict(request.attributes or {})
        lengths = self.attributes[semconv.SEQUENCE_OUTPUT_TOKENS]
        self.sequences = [row[:length] for row, length in zip(result.sequences[:, 6:].tolist(), lengths, strict=True)]
        self.logits: Tensor = torch.stack(result.logits, 1).double()
        """``[rows, steps, vocabulary]``"""
        self.beams = "num_beams" in options
        telemetry.check()

    def steps(self) -> Iterator[Tensor]:
        """The raw logits of each step of each row that runs."""
        for row, logits in enumerate(self.logits):
            yield from logits if self.beams else logits[: len(self.sequences[row])]

    def top1(self) -> list[float]:
        """The largest probability of each."""
        return [float(logits.softmax(-1).max()) for logits in self.steps()]

    def chosen(self) -> list[float]:
        """The probability of each chosen token."""
        return [
            float(self.logits[row, step].softmax(-1)[token])
            for row, sequence in enumerate(self.sequences)
            for step, token in enumerate(sequence)
        ]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How tokens are chosen."""
    return str(request.param)


@pytest.fixture
def observed(telemetry: Telemetry, way: str) -> Observed:
    """A request that has ended."""
    return Observed(telemetry, way)


def test_tokens_are_those_that_were_returned(observed: Observed) -> None:
    """Their entropy and ratios are those of all sequences together."""
    ids = [token for sequence in observed.sequences for token in sequence]
    shares = [ids.count(token) / len(ids) for token in {*ids}]
    assert observed.attributes[semconv.ANALYSIS_UNIQUE_TOKENS] == len({*ids})
    assert observed.attributes[semconv.ANALYSIS_DISTINCT_RATIO] == pytest.approx(len({*ids}) / len(ids))
    assert observed.attributes[semconv.ANALYSIS_REPETITION_RATE] == pytest.approx(1 - len({*ids}) / len(ids))
    assert observed.attributes[semconv.ANALYSIS_TOKEN_ENTROPY] == pytest.approx(-sum(share * math.log2(share) for share in shares))


def test_repetition_of_four_tokens_is_that_of_the_worst_sequence(observed: Observed) -> None:
    """Groups of four are counted in each sequence of its own."""
    rates = []
    for sequence in observed.sequences:
        groups = [tuple(sequence[place : place + 4]) for place in range(len(sequence) - 3)]
        rates += [1 - len({*groups}) / len(groups)] if groups else []
    assert observed.attributes[semconv.ANALYSIS_REPETITION_4GRAM] == pytest.approx(max(rates))


def test_confidence_is_that_of_the_raw_logits(observed: Observed) -> None:
    """The average is over all steps of all rows, as long as they run."""
    assert observed.attributes[semconv.ANALYSIS_CONFIDENCE["average"]] == pytest.approx(statistics.fmean(observed.top1()), rel=1e-4)


def test_extremes_of_confidence_are_those_of_the_raw_logits(observed: Observed, way: str) -> None:
    """Minimum, maximum and sample deviation; of rows that are not kept they are not known."""
    found = [observed.attributes.get(semconv.ANALYSIS_CONFIDENCE[name]) for name in ("minimum", "maximum", "deviation")]
    top1 = observed.top1()
    known = [min(top1), max(top1), statistics.stdev(top1)]
    assert found == ([None] * 3 if way == "a large batch" else pytest.approx(known, rel=1e-4))


def test_the_probability_of_chosen_tokens_is_that_of_the_raw_logits(observed: Observed, way: str) -> None:
    """Where each row is a sequence and kept; beams and large batches have none."""
    found = [observed.attributes.get(key) for key in semconv.ANALYSIS_CHOSEN.values()]
    chosen = observed.chosen() if way not in ("beams", "a large batch") else [0.0, 0.0]
    known = [statistics.fmean(chosen), min(chosen), max(chosen), statistics.stdev(chosen)]
    assert found == ([None] * 4 if way in ("beams", "a large batch") else pytest.approx(known, rel=1e-4))


def test_logits_have_their_mean_and_deviation(observed: Observed) -> None:
    """Means over the steps of the mean and of the population deviation over the vocabulary."""
    means = [float(logits.mean()) for logits in observed.steps()]
    deviations = [float(logits.std(correction=0)) for logits in observed.steps()]
    assert observed.attributes[semconv.ANALYSIS_LOGITS_MEAN] == pytest.approx(statistics.fmean(means), rel=1e-4, abs=1e-6)
    assert observed.attributes[semconv.ANALYSIS_LOGITS_STD] == pytest.approx(statistics.fmean(deviations), rel=1e-4)


@pytest.mark.parametrize("way", ["a batch", "a batch of samples", "rows that end early"], indirect=True)
def test_each_sequence_has_its_own_confidence(observed: Observed) -> None:
    """Arrays have one value for each sequence, in their order."""
    expected = [
        statistics.fmean(float(logits.softmax(-1).max()) for logits in observed.logits[row, : len(sequence)])
        for row, sequence in enumerate(observed.sequences)
    ]
    assert observed.attributes[semconv.ANALYSIS_SEQUENCES["confidence"]] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("way", ["rows that end early"], indirect=True)
def test_rows_have_ended_at_different_steps(observed: Observed) -> None:
    """Otherwise the tests above would say nothing of rows that end."""
    assert len({*map(len, observed.sequences)}) > 1


class Findings:
    """Log records, and a model that says one thing over and over."""

    def __init__(self, telemetry: Telemetry, **settings: Any) -> None:
        self.exporter, self.logs = InMemoryLogRecordExporter(), LoggerProvider(shutdown_on_exit=False)
        self.logs.add_log_record_processor(SimpleLogRecordProcessor(self.exporter))
        self.model: Any = models.llama()
        with torch.no_grad():
            self.model.lm_head.weight.zero_()
            self.model.lm_head.weight[7] = 1000 * self.model.model.norm.weight
        quiet: dict[str, Any] = {"nvml": False, "host": False, "allocator": False}
        self.handle = inferspan.instrument(
            self.model, tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider, logger_provider=self.logs,
            **quiet, **settings,
        )  # fmt: skip

    def records(self) -> list[Any]:
        """The events of findings."""
        inferspan.flush()
        found = [log.log_record for log in self.exporter.get_finished_logs()]
        return [record for record in found if record.event_name == semconv.EVALUATION_EVENT]


def test_a_loop_is_an_event_under_its_request(telemetry: Telemetry) -> None:
    """The event has the name, value, label and explanation of the finding, and no token."""
    findings = Findings(telemetry, thresholds={"confidence": 0.0})
    with findings.handle:
        findings.model.generate(models.prompt(), max_new_tokens=40, do_sample=False)
    (record,) = findings.records()
    (request,) = telemetry.requests()
    assert request.context is not None
    assert (record.trace_id, record.span_id) == (request.context.trace_id, request.context.span_id)
    assert record.severity_text is None or record.severity_text == "INFO"
    attributes = dict(record.attributes)
    told = request.attributes or {}
    period, start, tokens = (told[semconv.ANALYSIS_LOOP[name]] for name in ("period", "start", "tokens"))
    assert attributes.pop(semconv.EVALUATION_EXPLANATION).startswith(f"loop of period {period} from token {start}, {tokens} tokens;")
    assert attributes.pop(semconv.EVALUATION_VALUE) == told[semconv.ANALYSIS_REPETITION_4GRAM]
    assert attributes == {semconv.EVALUATION_NAME: "inferspan.repetition", semconv.EVALUATION_LABEL: "loop"}


def test_a_finding_is_counted_and_marks_its_request(telemetry: Telemetry) -> None:
    """Its kind is on the span, in the counter and in the summary."""
    findings = Findings(telemetry, thresholds={"confidence": 0.0})
    with findings.handle:
        findings.model.generate(models.prompt(), max_new_tokens=40, do_sample=False)
        assert findings.handle.summary().findings == {"loop": 1}
    assert telemetry.requests()[0].attributes[semconv.HEALTH_KINDS] == ("loop",)  # type: ignore[index]
    assert telemetry.metric_sum(semconv.M_HEALTH_FINDINGS, **{semconv.HEALTH_KIND: "loop"}) == 1


def test_healthy_output_has_no_finding(telemetry: Telemetry) -> None:
    """Neither an event nor an attribute says that all is well."""
    findings = Findings(telemetry, thresholds="confidence=0")
    with findings.handle:
        findings.model.generate(models.prompt(), max_new_tokens=20, do_sample=False)
    assert findings.records() == []
    assert semconv.HEALTH_KINDS not in (telemetry.requests()[0].attributes or {})


def test_logits_that_are_not_finite_are_a_finding(telemetry: Telemetry) -> None:
    """NaN in the logits of one step is enough."""
    findings = Findings(telemetry)
    with torch.no_grad():
        findings.model.lm_head.weight[3].fill_(math.nan)
    with findings.handle:
        findings.model.generate(models.prompt(), max_new_tokens=5, do_sample=False)
    assert "nonfinite" in [record.attributes[semconv.EVALUATION_LABEL] for record in findings.records()]


def test_without_analysis_there_is_none(telemetry: Telemetry) -> None:
    """The setting turns figures and findings off."""
    findings = Findings(telemetry, analysis=False)
    with findings.handle:
        findings.model.generate(models.prompt(), max_new_tokens=40, do_sample=False)
    assert findings.records() == []
    assert not [key for key in telemetry.requests()[0].attributes or () if key.startswith(("inferspan.analysis", "inferspan.health"))]


def test_without_logits_the_tokens_are_analysed(telemetry: Telemetry) -> None:
    """Repetition needs no logits, and confidence is absent, not zero."""
    findings = Findings(telemetry, logits=False)
    with findings.handle:
        findings.model.generate(models.prompt(), max_new_tokens=40, do_sample=False)
    attributes = telemetry.requests()[0].attributes or {}
    assert attributes[semconv.HEALTH_KINDS] == ("loop",)
    assert semconv.ANALYSIS_CONFIDENCE["average"] not in attributes


def test_findings_keep_the_detail_of_a_request(telemetry: Telemetry) -> None:
    """With ``keep="findings"`` the request that loops has its steps, the other one has not."""
    findings = Findings(telemetry, keep="findings", thresholds={"confidence": 0.0})
    with findings.handle:
        for tokens in (20, 40):
            findings.model.generate(models.prompt(), max_new_tokens=tokens, do_sample=False)
    assert [(span.attributes or {})[semconv.DETAIL_KEPT] for span in telemetry.requests()] == [False, True]
    assert len(telemetry.steps()) == 40


def test_a_tokenizer_that_fails_costs_texts_only(telemetry: Telemetry, contained: list[Any]) -> None:
    """Ids and counts of the most common tokens are there without their texts."""

    class Tokenizer:
        def decode(self, ids: Any, **_: Any) -> str:
            raise ValueError("no text")

    model = models.llama()
    telemetry.instrument(model, Tokenizer(), capture_content="SPAN_ONLY")
    model.generate(models.prompt(), max_new_tokens=4, do_sample=False)
    attributes = telemetry.requests()[0].attributes or {}
    assert attributes.keys() >= {semconv.ANALYSIS_COMMON_IDS, semconv.ANALYSIS_COMMON_COUNTS}
    assert semconv.ANALYSIS_COMMON_TEXTS not in attributes
    assert {error.place for error in contained} == {"content", "token texts"}
    contained.clear()


def test_a_loop_of_ones_own_has_the_same_analysis(telemetry: Telemetry) -> None:
    """A greedy loop by hand and ``generate()`` give the same figures."""
    model: Any = models.llama(eos_token_id=None)
    telemetry.instrument(model)
    ids = models.prompt()
    with torch.no_grad():
        model.generate(ids, max_new_tokens=12, do_sample=False)
        with inferspan.generation(model, max_new_tokens=12) as g:
            for step in range(12):
                with g.step() if step else g.prefill():
                    logits = model(ids).logits
                chosen = logits[:, -1:].argmax(-1)
                g.token(logits, chosen)
                ids = torch.cat([ids, chosen], 1)
            g.finish("length")
    first, second = (
        {key: value for key, value in (span.attributes or {}).items() if key.startswith("inferspan.analysis")} for span in telemetry.requests()
    )
    assert second == pytest.approx(first, rel=1e-4)


def test_a_call_of_a_pipeline_is_analysed_as_a_whole(telemetry: Telemetry) -> None:
    """The outer request has the figures of all sequences inside, and its findings count once."""
    pipeline = PIPELINES["text-generation"].pipeline()
    telemetry.instrument(pipeline)
    answers = pipeline([*TEXTS[:2]], **GREEDY)
    inner: list[Any] = [span.attributes for span in telemetry.requests(nested=True)]
    outer: Any = telemetry.requests()[0].attributes
    assert len(inner) == len(answers) == 2
    averages = [attributes[semconv.ANALYSIS_CONFIDENCE["average"]] for attributes in inner]
    assert outer[semconv.ANALYSIS_SEQUENCES["confidence"]] == pytest.approx(averages)
    assert outer[semconv.ANALYSIS_CONFIDENCE["average"]] == pytest.approx(statistics.fmean(averages))
    assert telemetry.metric_sum(semconv.M_HEALTH_FINDINGS, **{semconv.HEALTH_KIND: "low"}) == 1
