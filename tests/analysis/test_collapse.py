"""Collapse of the entropy: from which token on, until the end."""

from __future__ import annotations

import pytest

from inferspan import semconv
from inferspan.analysis.collapse import Collapse, collapse_of
from inferspan.analysis.findings import find
from inferspan.analysis.generation import analyse


@pytest.mark.parametrize(
    ("entropies", "expected"),
    [
        ([], None),
        ([0.001] * 3, None),
        ([0.001] * 4, Collapse(4, 0, 0.001)),
        ([2.0, 1.0, 0.002, 0.002, 0.002, 0.002, 0.002], Collapse(5, 2, 0.002)),
        ([0.001] * 9 + [0.5], None),
        ([0.001] * 9 + [float("nan")] + [0.0] * 4, Collapse(4, 10, 0.0)),
    ],
)
def test_the_stretch_reaches_to_the_end(entropies: list[float], expected: Collapse | None) -> None:
    """Below 0.01 nats, of four tokens or more."""
    found = collapse_of(entropies, entropy=0.01, tokens=4)
    assert (None if found is None else found.start) == (None if expected is None else expected.start)
    assert (None if found is None else found.tokens) == (None if expected is None else expected.tokens)
    assert (0.0 if found is None else found.entropy) == pytest.approx(0.0 if expected is None else expected.entropy)


def test_a_finding_says_from_which_token() -> None:
    """In numbers only."""
    (finding,) = find(analyse([[1, 2, 3]]), collapse=Collapse(70, 30, 0.004))
    assert finding.name == "inferspan.entropy"
    assert finding.label == "collapsed"
    assert finding.explanation == "entropy below 0.01 from token 30 to the end, 70 tokens"


def test_kinds_have_words() -> None:
    """Reports name them."""
    from inferspan.analysis.findings import FINDINGS

    assert {semconv.FINDING_COLLAPSED, semconv.FINDING_DRIFT} <= set(FINDINGS)
