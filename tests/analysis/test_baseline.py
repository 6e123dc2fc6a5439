"""A baseline of outputs: what it saves, what counts as drift, and how rarely chance does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.analysis.baseline import Baseline, BaselineError, Outputs, figures_of_request, shifts

Rows = list[tuple[dict[str, float], tuple[str, ...]]]


def outputs(seed: int, count: int, *, longer: float = 1.0, loops: float = 0.1) -> Outputs:
    """Outputs whose lengths spread widely, as those of services do, and whose other figures do not."""
    source = random.Random(seed)
    rows: Rows = []
    for _ in range(count):
        figures = {
            "output_tokens": source.lognormvariate(5, 0.8) * longer, "entropy": source.gauss(1.5, 0.4), "confidence": source.betavariate(6, 4),
            "repetition_4gram": source.random() ** 3,
        }  # fmt: skip
        rows.append((figures, ("loop",) if source.random() < loops else ()))
    return Outputs.of("m", "v", rows)


def drifted(before: Outputs, now: Outputs) -> list[str]:
    """Names of the figures that have drifted."""
    return [one.figure for one in shifts(before, now) if one.drifted]


def test_figures_come_from_the_attributes_of_a_request() -> None:
    """Means of arrays; what is not a finite number is left out."""
    attributes: dict[str, Any] = {
        semconv.SEQUENCE_OUTPUT_TOKENS: (10, 20), semconv.TOKEN_ENTROPIES: [1.0, 2.0], semconv.ANALYSIS_CONFIDENCE["average"]: 0.5,
        semconv.ANALYSIS_LOGITS_STD: float("nan"), semconv.ANALYSIS_REPETITION_4GRAM: True,
    }  # fmt: skip
    assert figures_of_request(attributes) == {"output_tokens": 15.0, "entropy": 1.5, "confidence": 0.5}


def test_equal_outputs_do_not_drift() -> None:
    """Of 500 pairs of samples with the same distributions none does."""
    assert [seed for seed in range(500) if drifted(outputs(2 * seed, 60), outputs(2 * seed + 1, 60))] == []


def test_shorter_outputs_are_a_drift() -> None:
    """A third of the length, in each of 50 samples of 100 requests."""
    assert {tuple(drifted(outputs(seed, 200), outputs(seed + 999, 100, longer=1 / 3))) for seed in range(50)} == {("output_tokens",)}


def test_more_findings_are_a_drift() -> None:
    """Half of the outputs loop instead of a tenth."""
    assert drifted(outputs(1, 200), outputs(2, 100, loops=0.5)) == ["rate of loop"]


def test_a_tiny_difference_among_many_requests_is_none() -> None:
    """Two percent of the length, however certain."""
    assert drifted(outputs(1, 50_000), outputs(2, 50_000, longer=1.02)) == []


def test_few_requests_are_not_compared() -> None:
    """29 on one side."""
    assert shifts(outputs(1, 200), outputs(2, 29)) == []


def test_figures_that_never_varied_drift_with_any_difference() -> None:
    """And not with rounding."""
    rows: Rows = [({"confidence": 0.5}, ())] * 40
    before = Outputs.of("m", "v", rows)
    assert drifted(before, Outputs.of("m", "v", [({"confidence": 0.5 + 1e-9}, ())] * 40)) == []
    assert drifted(before, Outputs.of("m", "v", [({"confidence": 0.6}, ())] * 40)) == ["confidence"]


def test_a_file_keeps_versions_apart(tmp_path: Path) -> None:
    """The same version replaces the older one; an unknown version gets the one that was added last."""
    baseline, path = Baseline(), tmp_path / "baseline.json"
    for version, count in (("a", 40), ("b", 50), ("a", 60)):
        one = outputs(1, count)
        one.version = version
        baseline.put(one)
    baseline.save(path)
    loaded = Baseline.load(path)
    assert [(one.version, one.requests) for one in loaded.outputs] == [("b", 50), ("a", 60)]
    assert loaded.outputs == baseline.outputs
    assert loaded.of("m", "b") == loaded.outputs[0]
    assert loaded.of("m", "c") == loaded.outputs[1]
    assert loaded.of("other", "a") is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"inferspan_baseline": 1}', '{"inferspan_baseline": 1, "outputs": [3]}', '{"inferspan_baseline": 99}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    """With the name of the file."""
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(BaselineError, match="baseline"):
        Baseline.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With how to make one."""
    with pytest.raises(BaselineError, match="inferspan baseline SESSION"):
        Baseline.load(tmp_path / "none.json")
