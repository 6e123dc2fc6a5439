"""Analysis of what a model has generated: how much of it repeats, how sure the model was, and what its logits looked like.

In: the token ids of each sequence, and figures of the raw logits of its steps; either may be missing. Out: a ``GenerationAnalysis``. Pure
functions without torch and OpenTelemetry, for requests as they end and for what a session file or trace holds. Every formula stands at its
field. Absent is never 0: without tokens there is no ratio, and without logits no confidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from inferspan.records import Moments, RowFigures

from .loops import Loop, four_grams, longest_loop

__all__ = [
    "MOST_COMMON",
    "RECENT",
    "CommonToken",
    "GenerationAnalysis",
    "Spread",
    "analyse",
    "figures_of",
    "repetition_rate",
    "token_entropy",
]

RECENT = 128
"""Tokens at the end of a sequence that ``repetition_rate_recent`` is of."""
MOST_COMMON = 10
"""Tokens in ``most_common``."""


def _known(value: object) -> dict[str, Any]:
    """The fields of a dataclass that are not ``None``, as plain values."""
    found: dict[str, Any] = {}
    for item in fields(value):  # type: ignore[arg-type]
        one = getattr(value, item.name)
        if isinstance(one, tuple):
            found[item.name] = [part.as_dict() for part in one]
        elif one is not None:
            found[item.name] = one.as_dict() if hasattr(one, "as_dict") else one
    return found


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of all steps in four numbers.

    Attributes:
        average: their arithmetic mean.
        minimum: the smallest one; ``None`` if only means over a batch are known.
        maximum: the largest one, likewise.
        deviation: sample standard deviation, with n - 1; ``None`` for a single value as well.
    """

    average: float
    minimum: float | None = None
    maximum: float | None = None
    deviation: float | None = None

    @classmethod
    def of(cls, values: Moments | None) -> Spread | None:
        """The spread of values; ``None`` of none."""
        if values is None:
            return None
        if math.isnan(values.squares):
            return cls(values.mean)
        deviation = math.sqrt(values.squares / (values.number - 1)) if values.number > 1 else None
        return cls(values.mean, values.least, values.greatest, deviation)

    def as_dict(self) -> dict[str, float]:
        """The known fields by name, for JSON."""
        return _known(self)


@dataclass(frozen=True, slots=True)
class CommonToken:
    """A token that came often. Content.

    Attributes:
        id: of the token.
        count: how often it came.
        text: of the token; ``None`` without a tokenizer.
    """

    id: int
    count: int
    text: str | None = None

    def as_dict(self) -> dict[str, int | str]:
        """The known fields by name, for JSON."""
        return _known(self)


@dataclass(frozen=True, slots=True)
class GenerationAnalysis:
    """The analysis of one sequence, or of a request with all of its sequences together.

    With n tokens, of which u are different. Fields are ``None`` where nothing is known.

    Attributes:
        tokens: n, over all sequences; ``None`` if the tokens are not known.
        unique_tokens: u, the number of different ids.
        token_entropy: entropy of the distribution of the tokens, -sum p log2 p with p = count / n, in bits: 0 if all are the same, at most
            log2(u). Not the model's uncertainty at a step, which is ``inferspan.logits.entropy``, in nats.
        distinct_ratio: u / n; 1 means that no token comes twice. Known as type-token ratio, or distinct-1 (Li et al., 2016).
        repetition_rate: 1 - u / n. Both depend on length: longer texts repeat more.
        repetition_rate_recent: the same of the last ``RECENT`` tokens, or of all if there are fewer. Of several sequences the largest.
        repetition_4gram: 1 - different groups of four neighbouring tokens / (n - 3): seq-rep-4 of Welleck et al., 2020. ``None`` below
            four tokens. Of several sequences the largest.
        loop: the longest loop. Of several sequences the longest one.
        loop_sequence: number of the sequence that the loop is in, from 0; ``None`` without a loop, and in the analysis of one sequence.
        confidence: of the largest probability of each step, the softmax of its raw logits.
        chosen_probability: of the probability of the chosen token of each step, which is smaller where sampling took another one.
        avg_logits_mean: mean over the steps of the mean of a step's finite logits.
        avg_logits_std: mean over the steps of the population standard deviation of a step's finite logits.
        most_common: the most frequent tokens, largest count first, then first appearance. Content; empty unless it was asked for.
        sequences: the analysis of each sequence, if there are several.
    """

    tokens: int | None = None
    unique_tokens: int | None = None
    token_entropy: float | None = None
    distinct_ratio: float | None = None
    repetition_rate: float | None = None
    repetition_rate_recent: float | None = None
    repetition_4gram: float | None = None
    loop: Loop | None = None
    loop_sequence: int | None = None
    confidence: Spread | None = None
    chosen_probability: Spread | None = None
    avg_logits_mean: float | None = None
    avg_logits_std: float | None = None
    most_common: tuple[CommonToken, ...] = ()
    sequences: tuple[GenerationAnalysis, ...] = ()

    @property
    def each(self) -> tuple[GenerationAnalysis, ...]:
        """The analysis of each sequence; of a single one, this one."""
        return self.sequences or (self,)

    def with_texts(self, decode: Callable[[int], str]) -> GenerationAnalysis:
        """The same with the texts of its most common tokens, which ``decode`` returns for their ids."""
        return replace(self, most_common=tuple(replace(token, text=decode(token.id)) for token in self.most_common))

    def as_dict(self) -> dict[str, Any]:
        """The known fields by name, for JSON; lists that are empty are left out."""
        return {name: value for name, value in _known(self).items() if value != []}


def token_entropy(counts: Iterable[int]) -> float | None:
    """Entropy in bits of tokens that came so often each; ``None`` of nothing."""
    some = [count for count in counts if count > 0]
    total = sum(some)
    if not total:
        return None
    # Rounding must not leave the range, which is what readers rely on.
    return min(max(0.0, -math.fsum([count / total * math.log2(count / total) for count in some])), math.log2(len(some)))


def repetition_rate(ids: Sequence[int]) -> float | None:
    """1 - different ids / ids; ``None`` of nothing."""
    return 1 - len(set(ids)) / len(ids) if ids else None


def figures_of(
    *,
    top1: Iterable[float] = (),
    chosen_logprobs: Iterable[float] = (),
    logit_means: Iterable[float] = (),
    logit_stds: Iterable[float] = (),
) -> RowFigures:
    """Figures of one sequence from one value a step; values that are not finite are left out.

    Args:
        top1: largest probabilities.
        chosen_logprobs: log-probabilities of the chosen tokens, in nats.
        logit_means: means of the logits.
        logit_stds: population standard deviations of the logits.
    """
    chosen = [math.exp(value) for value in chosen_logprobs if value <= 0]
    return RowFigures(Moments.of(top1), Moments.of(chosen), Moments.mean_of(logit_means), Moments.mean_of(logit_stds))


def _one(ids: Sequence[int] | None, figures: RowFigures) -> GenerationAnalysis:
    """The analysis of one sequence, without its most common tokens."""
    unique = entropy = recent = four = loop = rate = None
    if ids:
        counts = Counter(ids)
        unique, entropy = len(counts), token_entropy(counts.values())
        rate = 1 - unique / len(ids)
        recent = rate if len(ids) <= RECENT else repetition_rate(ids[-RECENT:])
        grams = four_grams(ids)
        different = len(set(grams))
        four = 1 - different / len(grams) if grams else None
        # Where no four tokens come twice, no loop can be.
        loop = longest_loop(ids, grams) if different < len(grams) else None
    return GenerationAnalysis(
        tokens=None if ids is None else len(ids),
        unique_tokens=0 if ids is not None and not ids else unique,
        token_entropy=entropy,
        distinct_ratio=None if unique is None or not ids else unique / len(ids),
        repetition_rate=rate,
        repetition_rate_recent=recent,
        repetition_4gram=four,
        loop=loop,
        confidence=Spread.of(figures.top1),
        chosen_probability=Spread.of(figures.chosen),
        avg_logits_mean=None if figures.logit_means is None else figures.logit_means.mean,
        avg_logits_std=None if figures.logit_stds is None else figures.logit_stds.mean,
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _together(
    sequences: Sequence[Sequence[int]], parts: tuple[GenerationAnalysis, ...], figures: RowFigures
) -> GenerationAnalysis:
    """The analysis of several sequences: counts and figures of all together, repetition of the one that repeats itself most."""
    counts: Counter[int] = Counter()
    for ids in sequences:
        counts.update(ids)
    total = sum(counts.values())
    loops = [(part.loop.tokens, -number) for number, part in enumerate(parts) if part.loop is not None]
    where = -max(loops)[1] if loops else None
    return GenerationAnalysis(
        tokens=total if sequences else None,
        unique_tokens=len(counts) if sequences else None,
        token_entropy=token_entropy(counts.values()),
        distinct_ratio=len(counts) / total if total else None,
        repetition_rate=1 - len(counts) / total if total else None,
        repetition_rate_recent=_largest(part.repetition_rate_recent for part in parts),
        repetition_4gram=_largest(part.repetition_4gram for part in parts),
        loop=None if where is None else parts[where].loop,
        loop_sequence=where,
        confidence=Spread.of(figures.top1),
        chosen_probability=Spread.of(figures.chosen),
        avg_logits_mean=None if figures.logit_means is None else figures.logit_means.mean,
        avg_logits_std=None if figures.logit_stds is None else figures.logit_stds.mean,
        sequences=parts,
    )


def _common(sequences: Sequence[Sequence[int]]) -> tuple[CommonToken, ...]:
    counts: Counter[int] = Counter()
    for ids in sequences:
        counts.update(ids)
    return tuple(CommonToken(token, count) for token, count in counts.most_common(MOST_COMMON))


def analyse(sequences: Sequence[Sequence[int]], figures: Sequence[RowFigures] = (), *, content: bool = False) -> GenerationAnalysis:
    """The analysis of a request.

    O(n log n) at worst in the number of tokens; a few microseconds a token at most.

    Args:
        sequences: ids of the generated tokens of each returned sequence, up to and including its first end token; empty if they are not
            known.
        figures: of each sequence, in the same order, or of all together.
        content: whether the most common tokens are wanted.
    """
    rows = max(len(sequences), len(figures))
    if rows > 1:
        # One of all together is none of a sequence.
        apart = figures if len(figures) == rows else [RowFigures()] * rows
        given = [*sequences] if len(sequences) == rows else [None] * rows
        parts = tuple(map(_one, given, apart))
        found = _together(sequences, parts, RowFigures.together(figures))
    else:
        found = _one(sequences[0] if sequences else None, figures[0] if figures else RowFigures())
    return replace(found, most_common=_common(sequences)) if content and sequences else found
