"""Findings: what is wrong with an output, by thresholds on its analysis.

In: a ``GenerationAnalysis`` and ``Thresholds``. Out: at most one ``Finding`` a kind. A finding's explanation has numbers only, no text and
no token ids, so it is no content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from inferspan import semconv

from .collapse import Collapse
from .generation import GenerationAnalysis

__all__ = ["FINDINGS", "Finding", "Thresholds", "find", "wording"]

FINDINGS = {
    "low": "low confidence, the model gave its tokens little probability",
    "loop": "the output repeats itself",
    "flat": "flat logits, all tokens were about as likely",
    "collapsed": "collapsed entropy, the model had no doubt about any token until the end",
    "drift": "outputs differ from the saved baseline",
    "nonfinite": "NaN or Inf in the logits",
}
"""What the kinds of findings mean."""


def wording(kind: str) -> str:
    """A kind of finding in words that need no table."""
    return {
        "low": "low confidence", "loop": "repeats itself", "flat": "flat logits", "collapsed": "collapsed entropy", "drift": "drift",
        "nonfinite": "NaN/Inf",
    }.get(kind, kind)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a figure is a finding.

    Attributes:
        confidence: an average confidence below is low.
        repetition_recent: a ``repetition_rate_recent`` above is a loop.
        repetition_4gram: a ``repetition_4gram`` above is a loop.
        loop_tokens: tokens of a sequence from which on it can be a loop.
        logit_spread: an ``avg_logits_std`` below is flat.
        entropy: nats; entropies below, of each token until the end, are a collapse.
        collapse_tokens: tokens from which on they are.
    """

    confidence: float = 0.5
    repetition_recent: float = 0.8
    repetition_4gram: float = 0.5
    loop_tokens: float = 32
    logit_spread: float = 0.1
    entropy: float = 0.01
    collapse_tokens: float = 64


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with an output.

    Attributes:
        name: of the evaluation, ``gen_ai.evaluation.name``.
        label: kind of the finding, ``gen_ai.evaluation.score.label``: ``low``, ``loop``, ``flat``, ``collapsed``,
            ``drift`` or ``nonfinite``.
        value: the figure that shows it, of the worst sequence.
        explanation: numbers that explain it.
    """

    name: str
    label: str
    value: float
    explanation: str

    def as_dict(self) -> dict[str, float | str]:
        """The fields by name, for JSON."""
        return asdict(self)


def _place(numbers: Sequence[int], parts: Sequence[GenerationAnalysis], worst: int) -> str:
    """Where it was found, of several sequences."""
    return f"; {len(numbers)} of {len(parts)} sequences, most in number {worst}" if len(parts) > 1 else ""


def _below(
    analysis: GenerationAnalysis, figure: Callable[[GenerationAnalysis], float | None], least: float
) -> tuple[float, str] | None:
    """The smallest figure of a sequence that is below ``least``, and where; of all together, if it is not known of each."""
    parts = analysis.each if any(figure(part) is not None for part in analysis.each) else (analysis,)
    low = {number: value for number, part in enumerate(parts) if (value := figure(part)) is not None and value < least}
    if not low:
        return None
    worst = min(low, key=lambda number: low[number])
    return low[worst], _place([*low], parts, worst)


def _confidence(part: GenerationAnalysis) -> float | None:
    return None if part.confidence is None else part.confidence.average


def _repetition(analysis: GenerationAnalysis, limits: Thresholds) -> Finding | None:
    parts = analysis.each
    found: dict[int, tuple[float, float]] = {}
    for number, part in enumerate(parts):
        recent, four = part.repetition_rate_recent or 0.0, part.repetition_4gram or 0.0
        if (part.tokens or 0) >= limits.loop_tokens and (recent > limits.repetition_recent or four > limits.repetition_4gram):
            # By how much of the range above its threshold the worse of the two exceeds it.
            found[number] = max((recent, limits.repetition_recent), (four, limits.repetition_4gram), key=lambda pair: pair[0] - pair[1])
    if not found:
        return None
    worst = max(found, key=lambda number: found[number][0])
    part = parts[worst]
    value = part.repetition_4gram if part.repetition_4gram is not None else found[worst][0]
    said = f"repetition {part.repetition_rate_recent:.3g} in the last tokens, {value:.3g} by groups of four"
    if part.loop is not None:
        said = f"loop of period {part.loop.period} from token {part.loop.start}, {part.loop.tokens} tokens; {said}"
    return Finding(semconv.EVALUATION_REPETITION, semconv.FINDING_LOOP, found[worst][0], said + _place([*found], parts, worst))


def find(
    analysis: GenerationAnalysis, limits: Thresholds | None = None, *, nonfinite: int = 0, collapse: Collapse | None = None
) -> tuple[Finding, ...]:
    """The findings of an analysis, at most one of each kind.

    A figure that is known of each sequence is compared for each; one sequence is enough for a finding.

    Args:
        analysis: of a request.
        limits: thresholds, by default those of the settings' defaults.
        collapse: of the first sequence, by the same thresholds.
        nonfinite: logits that were NaN or plus infinity, over all steps and sequences.
    """
    limits = Thresholds() if limits is None else limits
    found = []
    low = _below(analysis, _confidence, limits.confidence)
    if low is not None:
        said = f"average confidence {low[0]:.3g}, below {limits.confidence:g}{low[1]}"
        found.append(Finding(semconv.EVALUATION_CONFIDENCE, semconv.FINDING_LOW, low[0], said))
    loop = _repetition(analysis, limits)
    if loop is not None:
        found.append(loop)
    flat = _below(analysis, lambda part: part.avg_logits_std, limits.logit_spread)
    if flat is not None:
        said = f"standard deviation of the logits {flat[0]:.3g}, below {limits.logit_spread:g}{flat[1]}"
        found.append(Finding(semconv.EVALUATION_LOGIT_SPREAD, semconv.FINDING_FLAT, flat[0], said))
    if collapse is not None:
        said = f"entropy below {limits.entropy:g} from token {collapse.start} to the end, {collapse.tokens} tokens"
        found.append(Finding(semconv.EVALUATION_ENTROPY, semconv.FINDING_COLLAPSED, collapse.entropy, said))
    if nonfinite:
        said = f"{nonfinite} logits that are not finite"
        found.append(Finding(semconv.EVALUATION_NONFINITE, semconv.FINDING_NONFINITE, float(nonfinite), said))
    return tuple(found)
