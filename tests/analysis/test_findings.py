"""Findings: healthy text gives none, loops do, and text that repeats on purpose gives as many as the documentation says."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inferspan.analysis.findings import Finding, Thresholds, find
from inferspan.analysis.generation import analyse, figures_of

TEXTS = Path(__file__).parent / "texts"
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4000)
HEALTHY = ("prose", "program")


def words(text: str) -> list[int]:
    """Ids of words, single digits, runs of signs and runs of spaces."""
    known: dict[str, int] = {}
    return [known.setdefault(piece, len(known)) for piece in re.findall(r"\d| ?[^\W\d]+|[^\w\s]+|\s+", text)]


@cache
def trained() -> Any:
    """A tokenizer of byte pairs."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=2000, show_progress=False)
    made.train_from_iterator([(TEXTS / f"{name}.txt").read_text(encoding="utf-8") for name in HEALTHY], trainer)
    return made


def pieces(text: str) -> list[int]:
    """Ids of byte pairs, by a tokenizer that is trained on the texts."""
    return list(trained().encode(text).ids)


def labels(ids: list[int]) -> list[str]:
    """Labels of the findings of one sequence."""
    return [finding.label for finding in find(analyse([ids]))]


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("tokenize", [words, pieces])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_text_gives_no_warning(name: str, tokenize: Callable[[str], list[int]], tokens: int) -> None:
    """Healthy text gives no warning."""
    ids = tokenize((TEXTS / f"{name}.txt").read_text(encoding="utf-8"))
    parts = [ids[start : start + tokens] for start in range(0, len(ids) - tokens + 1, max(8, tokens // 8))]
    assert parts
    assert [part for part in parts if labels(part)] == []


@pytest.mark.parametrize("tokens", LENGTHS[2:])
@pytest.mark.parametrize("period", [1, 7, 20])
def test_a_loop_gives_a_warning(period: int, tokens: int) -> None:
    """A loop gives a warning."""
    assert labels([place % period for place in range(tokens)]) == ["loop"]


@pytest.mark.parametrize("period", [1, 7, 20])
def test_healthy_text_that_ends_in_a_loop_gives_a_warning(period: int) -> None:
    """Healthy text that ends in a loop gives a warning."""
    ids = words((TEXTS / "prose.txt").read_text(encoding="utf-8"))[:2000]
    assert labels([*ids, *[ids[place % period] for place in range(160)]]) == ["loop"]


def test_a_loop_of_31_tokens_is_too_short_for_a_warning() -> None:
    """A loop of 31 tokens is too short for a warning."""
    assert labels([5] * 31) == []


def test_the_explanation_of_a_loop_has_its_period_and_its_first_token() -> None:
    """The explanation of a loop has its period and its first token."""
    (finding,) = find(analyse([[*range(100, 312), *([*range(7)] * 40)]]))
    assert finding.explanation.startswith("loop of period 7 from token 212, 280 tokens;")


def test_one_of_several_sequences_is_enough() -> None:
    """One of several sequences is enough."""
    (finding,) = find(analyse([[*range(40)], [3] * 40, [*range(50)]]))
    assert finding.explanation.endswith("; 1 of 3 sequences, most in number 1")


def test_sequences_that_are_alike_are_no_loop() -> None:
    """Sequences that are alike are no loop."""
    assert find(analyse([[*range(60)]] * 8)) == ()


def test_low_confidence_is_a_warning() -> None:
    """Low confidence is a warning."""
    (finding,) = find(analyse([], [figures_of(top1=[0.4, 0.5])]))
    assert finding == Finding("inferspan.confidence", "low", 0.45, "average confidence 0.45, below 0.5")


def test_a_confidence_of_a_half_is_not_low() -> None:
    """A confidence of a half is not low."""
    assert find(analyse([], [figures_of(top1=[0.5, 0.5])])) == ()


def test_flat_logits_are_a_warning() -> None:
    """Flat logits are a warning."""
    (finding,) = find(analyse([], [figures_of(logit_stds=[0.05, 0.11])]))
    assert (finding.name, finding.label) == ("inferspan.logit_spread", "flat")
    assert finding.value == pytest.approx(0.08)


def test_logits_that_are_not_finite_are_a_warning() -> None:
    """Logits that are not finite are a warning."""
    (finding,) = find(analyse([]), nonfinite=3)
    assert finding == Finding("inferspan.nonfinite", "nonfinite", 3.0, "3 logits that are not finite")


def test_thresholds_can_be_moved() -> None:
    """Thresholds can be moved."""
    limits = Thresholds(confidence=0.1, repetition_recent=1.0, repetition_4gram=1.0, logit_spread=0.0)
    assert find(analyse([[1] * 100], [figures_of(top1=[0.2], logit_stds=[0.01])]), limits) == ()


def test_a_confidence_that_is_known_for_all_sequences_together_counts() -> None:
    """A confidence that is known for all sequences together counts."""
    (finding,) = find(analyse([[1], [2]], [figures_of(top1=[0.1, 0.3])]))
    assert finding.label == "low"


def test_an_explanation_holds_numbers_and_no_ids() -> None:
    """An explanation holds numbers and no ids."""
    (finding,) = find(analyse([[987654] * 40]))
    assert "987654" not in finding.explanation


def _rows(count: int, row: Callable[[random.Random, int], str]) -> str:
    rng = random.Random(1)
    return "\n".join(row(rng, number) for number in range(count))


REPEATING = {
    "list": _rows(1000, lambda rng, n: f"- item {n}: {rng.choice(('red', 'green', 'blue'))} chairs, {rng.randrange(500)} left"),
    "table": _rows(1000, lambda rng, n: f"| {n} | {rng.random():.4f} | {rng.choice(('yes', 'no'))} |"),
    "csv": _rows(1000, lambda rng, n: f"2026-{n % 12 + 1:02d}-{n % 28 + 1:02d},{rng.randrange(10**5)},{rng.choice(('ok', 'failed'))}"),
    "json": _rows(500, lambda rng, n: f'{{"id": {n}, "name": "user{n}", "score": {rng.randrange(100)}}},'),
    "matrix": _rows(1000, lambda rng, n: " ".join(str(rng.randrange(2)) for _ in range(16))),
}


def false_alarms(text: str, tokens: int) -> float:
    """Share of the parts of a text, of so many tokens each, that give a warning."""
    ids = words(text)
    parts = [ids[start : start + tokens] for start in range(0, len(ids) - tokens + 1, tokens // 4)]
    return sum(labels(part) == ["loop"] for part in parts) / len(parts)


@pytest.mark.parametrize("name", ["list", "table", "csv", "json"])
def test_64_tokens_of_rows_that_repeat_on_purpose_give_few_warnings(name: str) -> None:
    """64 tokens of rows that repeat on purpose give few warnings."""
    assert false_alarms(REPEATING[name], 64) < 0.03


@pytest.mark.parametrize("tokens", [256, 1024, 4000])
@pytest.mark.parametrize("name", ["list", "table", "csv", "json"])
def test_long_rows_that_repeat_on_purpose_always_give_a_warning(name: str, tokens: int) -> None:
    """Long rows that repeat on purpose always give a warning."""
    # A known limit, documented in docs/looking/analysis.md: such rows consist of few different tokens, as a loop does.
    assert false_alarms(REPEATING[name], tokens) == 1.0


def test_a_matrix_of_zeros_and_ones_always_gives_a_warning() -> None:
    """A matrix of zeros and ones always gives a warning."""
    assert false_alarms(REPEATING["matrix"], 64) == 1.0


def test_a_list_of_sentences_gives_no_warning() -> None:
    """A list of sentences gives no warning."""
    sentences = re.split(r"(?<=[.:])\s+", (TEXTS / "prose.txt").read_text(encoding="utf-8"))
    assert false_alarms("\n".join(f"- {sentence}" for sentence in sentences), 1024) == 0.0
