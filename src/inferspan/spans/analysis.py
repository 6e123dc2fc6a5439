"""The analysis of what a request has generated, as attributes of its span and as events.

In: how the request ended, with its tokens and the figures of its logits. Out: the same end with the attributes of the analysis and the
kinds of its findings, and one ``gen_ai.evaluation.result`` for each finding. Figures are no content; the most common tokens are, and stand
on spans only where content may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber

from inferspan import semconv
from inferspan.analysis.collapse import collapse_of
from inferspan.analysis.drift import DriftMonitor
from inferspan.analysis.findings import Finding, Thresholds, find
from inferspan.analysis.generation import GenerationAnalysis, Spread, analyse
from inferspan.guard import contain
from inferspan.records import AttributeValue, ModelInfo, RequestEnd
from inferspan.settings import Settings

from .content import session_group

__all__ = ["analysed", "analysis_attributes", "evaluation_event"]

MAX_SEQUENCES = 1024
"""Entries of an array with one value for each sequence."""
_FIGURES = (
    ("unique_tokens", semconv.ANALYSIS_UNIQUE_TOKENS),
    ("token_entropy", semconv.ANALYSIS_TOKEN_ENTROPY),
    ("distinct_ratio", semconv.ANALYSIS_DISTINCT_RATIO),
    ("repetition_rate", semconv.ANALYSIS_REPETITION_RATE),
    ("repetition_rate_recent", semconv.ANALYSIS_REPETITION_RATE_RECENT),
    ("repetition_4gram", semconv.ANALYSIS_REPETITION_4GRAM),
    ("loop_sequence", semconv.ANALYSIS_LOOP_SEQUENCE),
    ("avg_logits_mean", semconv.ANALYSIS_LOGITS_MEAN),
    ("avg_logits_std", semconv.ANALYSIS_LOGITS_STD),
)


def analysis_attributes(analysis: GenerationAnalysis) -> dict[str, AttributeValue]:
    """The attributes of an analysis; those that are not known are absent."""
    found: dict[str, AttributeValue] = {}
    for name, key in _FIGURES:
        value = getattr(analysis, name)
        if value is not None:
            found[key] = value
    for part, keys in (
        (analysis.loop, semconv.ANALYSIS_LOOP),
        (analysis.confidence, semconv.ANALYSIS_CONFIDENCE),
        (analysis.chosen_probability, semconv.ANALYSIS_CHOSEN),
    ):
        if part is not None:
            found |= {keys[name]: value for name, value in part.as_dict().items()}
    if analysis.most_common:
        found[semconv.ANALYSIS_COMMON_IDS] = [token.id for token in analysis.most_common]
        found[semconv.ANALYSIS_COMMON_COUNTS] = [token.count for token in analysis.most_common]
        texts = [token.text for token in analysis.most_common if token.text is not None]
        if texts:
            found[semconv.ANALYSIS_COMMON_TEXTS] = texts
    return found | _by_sequence(analysis.sequences[:MAX_SEQUENCES])


def _figure(part: GenerationAnalysis, name: str) -> Any:
    if name == "loop_tokens":
        return None if part.tokens is None else 0 if part.loop is None else part.loop.tokens
    value = getattr(part, name)
    return value.average if isinstance(value, Spread) else value


def _by_sequence(parts: Sequence[GenerationAnalysis]) -> dict[str, AttributeValue]:
    """Arrays with one value for each sequence; one in which a value would be missing looks like a shorter one, and is left out."""
    found: dict[str, AttributeValue] = {}
    for name, key in semconv.ANALYSIS_SEQUENCES.items() if parts else ():
        values = [_figure(part, name) for part in parts]
        if None not in values:
            found[key] = values
    return found


def analysed(
    end: RequestEnd, settings: Settings, *, nested: bool, drift: DriftMonitor | None = None, model: ModelInfo | None = None
) -> tuple[RequestEnd, tuple[Finding, ...]]:
    """The end of a request with its analysis, and the findings; nothing is added where neither tokens nor logits are known.

    Args:
        end: how it ended.
        settings: whether there is an analysis, its thresholds, and whether spans may hold content.
        drift: compares the outputs with a baseline.
        model: whose they are.
        nested: whether a request around this one has the same output, whose findings count.
    """
    if not settings.analysis or not (end.sequences or end.figures or end.nonfinite_logits):
        return end, ()
    analysis = analyse(end.sequences, end.figures, content=settings.content_on_spans)
    if end.decode is not None:
        with contain("token texts"):
            analysis = analysis.with_texts(end.decode)
    limits = Thresholds(**dict(settings.thresholds))
    collapse = collapse_of(end.token_entropies, entropy=limits.entropy, tokens=int(limits.collapse_tokens))
    findings = () if nested else find(analysis, limits, nonfinite=end.nonfinite_logits, collapse=collapse)
    # First, so that a limit of the number of attributes, by which OpenTelemetry drops the oldest ones, takes them before the others.
    attributes = {**analysis_attributes(analysis), **end.attributes}
    if collapse is not None:
        attributes |= {semconv.ANALYSIS_COLLAPSE_START: collapse.start, semconv.ANALYSIS_COLLAPSE_TOKENS: collapse.tokens}
    kinds = [finding.label for finding in findings]
    moved: Mapping[str, float] = {}
    if drift is not None and model is not None and not nested and end.failure is None:
        version = model.attributes.get(semconv.MODEL_REVISION)
        moved, shifted = drift.look(end, model.name, version if isinstance(version, str) else "", attributes, kinds)
        if shifted is not None:
            findings, kinds = (*findings, shifted), [*kinds, shifted.label]
    if kinds:
        attributes[semconv.HEALTH_KINDS] = kinds
    return replace(end, attributes=attributes, findings=kinds, drift=moved), findings


def evaluation_event(logger: Any, finding: Finding, time_ns: int, context: Any, request: Mapping[str, AttributeValue]) -> None:
    """Emit ``gen_ai.evaluation.result`` for a finding.

    Args:
        logger: an OpenTelemetry logger.
        finding: about the output of a request.
        time_ns: when the request ended.
        context: context that holds the request's span.
        request: attributes of the request; those of its session are sent too, and the id of the response.
    """
    logger.emit(
        LogRecord(
            timestamp=time_ns,
            context=context,
            severity_number=SeverityNumber.INFO,
            event_name=semconv.EVALUATION_EVENT,
            attributes={
                semconv.EVALUATION_NAME: finding.name,
                semconv.EVALUATION_VALUE: finding.value,
                semconv.EVALUATION_LABEL: finding.label,
                semconv.EVALUATION_EXPLANATION: finding.explanation,
                **{key: request[key] for key in (semconv.RESPONSE_ID,) if key in request},
                **session_group(request),
            },
        )
    )
