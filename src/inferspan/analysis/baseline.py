"""A baseline of outputs by model and version, and whether later outputs have drifted from it.

In: attributes of requests. Out: means and deviations as JSON, and one ``Shift`` for each figure. A figure has drifted where the difference
is large against its noise (Welch's test; for rates the test of two proportions) and against the spread of single requests, so that neither
chance nor a tiny difference among very many requests is one. Pure functions without torch and OpenTelemetry.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inferspan import semconv
from inferspan.records import Moments

__all__ = ["FIGURES", "LEAST", "Baseline", "BaselineError", "Outputs", "Shift", "figures_of_request", "shifts"]

SCHEMA = 1
LARGEST = 16 << 20
"""Bytes of a baseline file."""
LEAST = 30
"""Requests on each side before anything is compared."""
SURE = 5.0
"""Standard errors that a difference must have: seven figures looked at after each request must give no alarm by chance."""
LARGE = 0.3
"""Standard deviations of single requests that a difference of means must have."""
SANE = 1e100
"""Figures beyond it are none: squares of others do not overflow."""
MOST = 2**53
"""Requests."""
LARGE_RATE = 0.05
"""Difference that two rates must have."""
_NUMBERS = {
    "confidence": semconv.ANALYSIS_CONFIDENCE["average"],
    "chosen_probability": semconv.ANALYSIS_CHOSEN["average"],
    "token_entropy": semconv.ANALYSIS_TOKEN_ENTROPY,
    "repetition_4gram": semconv.ANALYSIS_REPETITION_4GRAM,
    "logit_spread": semconv.ANALYSIS_LOGITS_STD,
}
_ARRAYS = {"output_tokens": semconv.SEQUENCE_OUTPUT_TOKENS, "entropy": semconv.TOKEN_ENTROPIES}
FIGURES = (*_ARRAYS, *_NUMBERS)
"""Figures of a request that are compared; the rates of the kinds of findings are as well."""


class BaselineError(ValueError):
    """A file that is no baseline; the message says why, and what to do."""


def figures_of_request(attributes: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a request that are known; of arrays the mean."""
    found: dict[str, float] = {}
    for name, key in _NUMBERS.items():
        value = attributes.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = float(value)
    for name, key in _ARRAYS.items():
        values = attributes.get(key)
        if isinstance(values, Sequence) and len(values) and all(type(value) in (int, float) for value in values):
            found[name] = sum(values) / len(values)
    return {name: value for name, value in found.items() if abs(value) < SANE}


@dataclass(slots=True)
class Outputs:
    """The outputs of requests on one version of a model, in figures.

    Attributes:
        model: its name.
        version: commit of its repository, empty if it is not known.
        requests: their number.
        figures: number, mean and sum of squared deviations of each figure.
        kinds: requests with a finding, by kind.
    """

    model: str
    version: str = ""
    requests: int = 0
    figures: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, model: str, version: str, rows: Iterable[tuple[Mapping[str, float], Sequence[str]]]) -> Outputs:
        """Of the figures and kinds of findings of each request."""
        known = list(rows)
        made = cls(model, version, len(known), kinds=dict(Counter(kind for _, kinds in known for kind in set(kinds))))
        for name in FIGURES:
            moments = Moments.of([figures[name] for figures, _ in known if name in figures])
            if moments is not None:
                made.figures[name] = (moments.number, moments.mean, moments.squares)
        return made


@dataclass(frozen=True, slots=True)
class Shift:
    """One figure now, against the baseline.

    Attributes:
        figure: one of ``FIGURES``, or ``rate of`` a kind of findings.
        before: mean of the baseline, or its rate.
        now: the same of what is compared.
        deviations: the difference in standard deviations of single requests of the baseline.
        errors: the difference in standard errors.
        drifted: whether it is a drift.
    """

    figure: str
    before: float
    now: float
    deviations: float
    errors: float
    drifted: bool

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return asdict(self)


def _in(difference: float, unit: float) -> float:
    """A difference in units; what has not varied at all has no unit, and any difference is large then."""
    return difference / unit if unit > 0 else math.copysign(1e9, difference) if difference else 0.0


def shifts(before: Outputs, now: Outputs) -> list[Shift]:
    """The figures that both have, those that have drifted first; empty with fewer than ``LEAST`` requests on a side."""
    found: list[Shift] = []
    for name in FIGURES:
        if name not in before.figures or name not in now.figures:
            continue
        (n0, mean0, squares0), (n1, mean1, squares1) = before.figures[name], now.figures[name]
        if min(n0, n1) < LEAST:
            continue
        variance0, variance1 = squares0 / (n0 - 1), squares1 / (n1 - 1)
        # Rounding is no difference.
        difference = mean1 - mean0 if not math.isclose(mean0, mean1, rel_tol=1e-6, abs_tol=1e-12) else 0.0
        deviations, errors = _in(difference, math.sqrt(variance0)), _in(difference, math.sqrt(variance0 / n0 + variance1 / n1))
        found.append(Shift(name, mean0, mean1, deviations, errors, abs(errors) > SURE and abs(deviations) > LARGE))
    if min(before.requests, now.requests) >= LEAST:
        for kind in sorted({*before.kinds, *now.kinds}):
            n0, n1 = before.requests, now.requests
            rate0, rate1 = before.kinds.get(kind, 0) / n0, now.kinds.get(kind, 0) / n1
            pooled = (rate0 * n0 + rate1 * n1) / (n0 + n1)
            deviation = math.sqrt(pooled * (1 - pooled))
            errors = _in(rate1 - rate0, deviation * math.sqrt(1 / n0 + 1 / n1))
            drifted = abs(errors) > SURE and abs(rate1 - rate0) > LARGE_RATE
            found.append(Shift(f"rate of {kind}", rate0, rate1, _in(rate1 - rate0, deviation), errors, drifted))
    return sorted(found, key=lambda one: (not one.drifted, -abs(one.errors)))


@dataclass(slots=True)
class Baseline:
    """What a baseline file holds: outputs of versions of models, the latest last."""

    outputs: list[Outputs] = field(default_factory=list)

    def put(self, outputs: Outputs) -> None:
        """Add outputs, instead of older ones of the same model and version."""
        self.outputs = [one for one in self.outputs if (one.model, one.version) != (outputs.model, outputs.version)] + [outputs]

    def of(self, model: str, version: str) -> Outputs | None:
        """The outputs of this version of a model; else those of its version that was added last."""
        known = [one for one in self.outputs if one.model == model]
        return next((one for one in known if one.version == version), known[-1] if known else None)

    def save(self, path: Path) -> None:
        """Write the file, which readers never see incomplete; raises ``OSError``."""
        text = json.dumps({"inferspan_baseline": SCHEMA, "outputs": [asdict(one) for one in self.outputs]}, indent=1) + "\n"
        if path.exists() and not path.is_file():  # a pipe or device cannot be replaced
            path.write_text(text)
            return
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            part.write_text(text)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: Path) -> Baseline:
        """Read the file.

        Raises:
            BaselineError: it cannot be read, or is none.
        """
        advice = "make one with `inferspan baseline SESSION -o FILE`"
        try:
            with path.open("rb") as file:
                text = file.read(LARGEST + 1)
            if len(text) > LARGEST:
                raise BaselineError(f"{path} is larger than {LARGEST >> 20} MiB, so it is no baseline: {advice}")
            found = json.loads(text)
        except OSError as error:
            raise BaselineError(f"cannot read the baseline {path}: {error.strerror or error}; {advice}") from None
        except (ValueError, RecursionError) as error:
            if isinstance(error, BaselineError):
                raise
            raise BaselineError(f"{path} is no baseline: {advice}") from None
        try:
            if found["inferspan_baseline"] > SCHEMA:
                raise BaselineError(f"{path} is a baseline of a later version of inferspan")
            return cls([_outputs(one) for one in found["outputs"]])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, BaselineError):
                raise
            raise BaselineError(f"{path} is no baseline: {advice}") from None


def _outputs(found: Any) -> Outputs:
    figures = {}
    for name, (number, mean, squares) in found["figures"].items():
        if name in FIGURES and 0 < int(number) <= MOST and abs(mean) < SANE and 0 <= squares < SANE**2 * MOST:
            figures[name] = (int(number), float(mean), float(squares))
    requests = int(found["requests"])
    if not 0 <= requests <= MOST:
        raise ValueError("requests")
    kinds = {str(kind): min(max(0, int(count)), requests) for kind, count in found["kinds"].items()}
    return Outputs(str(found["model"]), str(found["version"]), requests, figures, kinds)
