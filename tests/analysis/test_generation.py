"""The figures of a generation are those of their formulas, worked out in the plainest way."""

from __future__ import annotations

import json
import math
import random
import statistics
from fractions import Fraction

import pytest

from inferspan.analysis.generation import CommonToken, GenerationAnalysis, Spread, analyse, figures_of, token_entropy
from inferspan.analysis.loops import Loop
from inferspan.records import Moments, RowFigures

RNG = random.Random(7)
IDS = [int(RNG.paretovariate(0.8)) for _ in range(700)]
OTHER = [int(RNG.paretovariate(0.8)) for _ in range(300)]


def test_unique_tokens_are_the_different_ids() -> None:
    """Unique tokens are the different ids."""
    assert analyse([IDS]).unique_tokens == len({*IDS})


def test_the_entropy_of_the_tokens_is_in_bits() -> None:
    """The entropy of the tokens is in bits."""
    expected = -sum(IDS.count(one) / 700 * math.log2(IDS.count(one) / 700) for one in {*IDS})
    assert analyse([IDS]).token_entropy == pytest.approx(expected, abs=1e-12)


def test_two_tokens_that_come_equally_often_have_one_bit() -> None:
    """Two tokens that come equally often have one bit."""
    assert analyse([[4, 9, 9, 4]]).token_entropy == 1.0


def test_a_single_token_has_no_entropy() -> None:
    """A single token has no entropy."""
    assert analyse([[4]]).token_entropy == 0.0


@pytest.mark.parametrize("different", [3, 7, 10, 49, 1000])
def test_entropy_is_at_most_that_of_equal_counts(different: int) -> None:
    """Entropy is at most that of equal counts."""
    found = token_entropy([3] * different)
    assert found is not None
    assert math.log2(different) - 1e-12 <= found <= math.log2(different)


def test_the_distinct_ratio_of_tokens_that_never_come_twice_is_1() -> None:
    """The distinct ratio of tokens that never come twice is 1."""
    assert analyse([[*range(50)]]).distinct_ratio == 1.0


def test_repetition_rate_and_distinct_ratio_add_up_to_1() -> None:
    """Repetition rate and distinct ratio add up to 1."""
    found = analyse([IDS])
    assert found.repetition_rate + found.distinct_ratio == pytest.approx(1.0)  # type: ignore[operator]


def test_the_repetition_rate_is_the_share_of_tokens_that_came_before() -> None:
    """The repetition rate is the share of tokens that came before."""
    came_before = sum(one in IDS[:place] for place, one in enumerate(IDS))
    assert analyse([IDS]).repetition_rate == pytest.approx(float(Fraction(came_before, 700)))


def test_the_recent_repetition_rate_is_of_the_last_128_tokens() -> None:
    """The recent repetition rate is of the last 128 tokens."""
    assert analyse([IDS]).repetition_rate_recent == pytest.approx(1 - len({*IDS[-128:]}) / 128)


def test_the_recent_repetition_rate_of_fewer_tokens_is_that_of_all() -> None:
    """The recent repetition rate of fewer tokens is that of all."""
    assert analyse([IDS[:100]]).repetition_rate_recent == pytest.approx(1 - len({*IDS[:100]}) / 100)


def test_repetition_of_four_tokens_counts_different_groups() -> None:
    """Repetition of four tokens counts different groups."""
    groups = {tuple(IDS[place : place + 4]) for place in range(697)}
    assert analyse([IDS]).repetition_4gram == pytest.approx(1 - len(groups) / 697)


def test_three_tokens_have_no_groups_of_four() -> None:
    """Three tokens have no groups of four."""
    assert analyse([[1, 1, 1]]).repetition_4gram is None


def test_the_most_common_tokens_come_largest_first_then_by_first_appearance() -> None:
    """The most common tokens come largest first then by first appearance."""
    ids = [5, 3, 3, 8, 5, 1, 8, 2]
    assert analyse([ids], content=True).with_texts(str).most_common == (
        CommonToken(5, 2, "5"),
        CommonToken(3, 2, "3"),
        CommonToken(8, 2, "8"),
        CommonToken(1, 1, "1"),
        CommonToken(2, 1, "2"),
    )


def test_ten_tokens_are_the_most_common_ones() -> None:
    """Ten tokens are the most common ones."""
    assert len(analyse([[*range(40)]], content=True).most_common) == 10


def test_without_leave_no_token_is_named() -> None:
    """Without leave no token is named."""
    assert analyse([IDS]).most_common == ()


TOP1 = [RNG.random() for _ in range(300)]
LOGPROBS = [math.log(RNG.random()) for _ in range(300)]


@pytest.fixture
def figures() -> RowFigures:
    """Figures of one sequence."""
    return figures_of(top1=TOP1, chosen_logprobs=LOGPROBS, logit_means=[-3.0, -1.0], logit_stds=[2.0, math.nan, 3.0])


def test_confidence_is_the_average_of_the_largest_probabilities(figures: RowFigures) -> None:
    """Confidence is the average of the largest probabilities."""
    confidence = analyse([IDS], [figures]).confidence
    assert confidence is not None
    assert confidence.average == pytest.approx(statistics.fmean(TOP1))
    assert confidence.deviation == pytest.approx(statistics.stdev(TOP1))
    assert (confidence.minimum, confidence.maximum) == (min(TOP1), max(TOP1))


def test_the_chosen_probability_is_that_of_the_log_probabilities(figures: RowFigures) -> None:
    """The chosen probability is that of the log probabilities."""
    chosen = analyse([IDS], [figures]).chosen_probability
    assert chosen is not None
    assert chosen.average == pytest.approx(statistics.fmean(map(math.exp, LOGPROBS)))
    assert chosen.deviation == pytest.approx(statistics.stdev(map(math.exp, LOGPROBS)))


def test_a_single_probability_has_no_deviation() -> None:
    """A single probability has no deviation."""
    assert Spread.of(Moments.of([0.25])) == Spread(0.25, 0.25, 0.25, None)


def test_logits_have_the_means_of_their_steps(figures: RowFigures) -> None:
    """Logits have the means of their steps."""
    assert analyse([IDS], [figures]).avg_logits_mean == -2.0


def test_a_step_without_finite_logits_does_not_count(figures: RowFigures) -> None:
    """A step without finite logits does not count."""
    assert analyse([IDS], [figures]).avg_logits_std == 2.5


@pytest.mark.parametrize("cut", [1, 17, 299])
def test_values_may_come_in_parts(cut: int) -> None:
    """Values may come in parts."""
    joined = Moments.joined([Moments.of(TOP1[:cut]), None, Moments.of(TOP1[cut:])])
    assert joined == pytest.approx(Moments.of(TOP1))


def test_means_over_a_batch_give_no_extremes() -> None:
    """Means over a batch give no extremes."""
    joined = Moments.joined([Moments(3, 0.5, math.nan, math.nan, math.nan), Moments(1, 0.9, math.nan, math.nan, math.nan)])
    assert Spread.of(joined) == Spread(0.6)


@pytest.fixture
def batch() -> GenerationAnalysis:
    """Two sequences of one request."""
    return analyse([IDS, OTHER], [figures_of(top1=TOP1), figures_of(top1=[0.5])])


def test_several_sequences_are_counted_together(batch: GenerationAnalysis) -> None:
    """Several sequences are counted together."""
    assert batch.tokens == 1000
    assert batch.unique_tokens == len({*IDS, *OTHER})
    assert batch.token_entropy == analyse([[*IDS, *OTHER]]).token_entropy


def test_repetition_is_that_of_the_sequence_that_repeats_itself_most(batch: GenerationAnalysis) -> None:
    """Repetition is that of the sequence that repeats itself most."""
    assert batch.repetition_4gram == max(analyse([ids]).repetition_4gram or 0 for ids in (IDS, OTHER))


def test_confidence_is_that_of_all_steps_of_all_sequences(batch: GenerationAnalysis) -> None:
    """Confidence is that of all steps of all sequences."""
    assert batch.confidence is not None
    assert batch.confidence.average == pytest.approx(statistics.fmean([*TOP1, 0.5]))


def test_each_sequence_has_its_own_analysis(batch: GenerationAnalysis) -> None:
    """Each sequence has its own analysis."""
    assert batch.sequences[1].tokens == 300


def test_a_loop_names_its_sequence() -> None:
    """A loop names its sequence."""
    found = analyse([[*range(40)], [*range(10), *([3, 4] * 20)]])
    assert (found.loop, found.loop_sequence) == (Loop(40, 2, 10), 1)


def test_figures_of_all_together_are_those_of_no_sequence() -> None:
    """Figures of all together are those of no sequence."""
    found = analyse([IDS, OTHER], [figures_of(top1=TOP1)])
    assert found.confidence is not None
    assert [part.confidence for part in found.sequences] == [None, None]


def test_without_tokens_nothing_is_zero() -> None:
    """Without tokens nothing is zero."""
    assert analyse([]) == GenerationAnalysis()


def test_a_sequence_without_tokens_has_no_ratios() -> None:
    """A sequence without tokens has no ratios."""
    assert analyse([[]]).as_dict() == {"tokens": 0, "unique_tokens": 0}


def test_the_analysis_is_json(batch: GenerationAnalysis) -> None:
    """The analysis is json."""
    written = json.loads(json.dumps(batch.as_dict(), allow_nan=False))
    assert written["sequences"][0]["confidence"].keys() == {"average", "minimum", "maximum", "deviation"}


def test_a_loop_stands_in_the_json_by_its_numbers() -> None:
    """A loop stands in the json by its numbers."""
    assert analyse([[1] * 40]).as_dict()["loop"] == {"tokens": 40, "period": 1, "start": 0}
