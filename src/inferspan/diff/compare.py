"""Two sessions -> what differs between them, and the judgement of a gate.

In come two ``Session``s of ``report`` and the gate, a share such as 0.03. Out comes a ``Comparison``. A figure is a regression if its
interval lies above no change and its estimate above half the gate: a slow-down of the size of the gate is then found, not only half of
them. What cannot be compared at all raises ``DiffError`` with one sentence.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from inferspan.diff.environment import Fact, environment, other_hardware
from inferspan.diff.groups import Group, groups
from inferspan.diff.recording import ENERGY, FIRST_TOKEN, MEMORY, PER_TOKEN, REQUEST, Recording, Sample, recording
from inferspan.diff.statistics import FEWEST, FEWEST_RUNS, Change, change
from inferspan.metrics.summary import percentile
from inferspan.report.session import Session
from inferspan.text.numbers import counted
from inferspan.text.quantities import WIDEST, change_text, interval_text

__all__ = [
    "BLOCKS", "FINE", "REGRESSION", "SHOWN", "UNDECIDED", "WATCHED", "Comparison", "DiffError", "GroupDiff", "Logits", "Row", "Tokens",
    "compare", "judgement",
]  # fmt: skip

FINE, REGRESSION, UNDECIDED = "fine", "regression", "undecided"
BLOCKS, WATCHED, SHOWN = "blocks", "watched", "shown"
FALSE_ALARMS = 0.002
"""Probability of a false alarm of a whole comparison; divided among the figures that the gate looks at."""
_MISSED = 0.05
_APART = 0.02
_MOST_GROUPS = 50
_MOST_MODULES = 200
_VALUES_OF_MODULES = 100
_SMALL = 0.05
"""Share of the time below which a group cannot make a comparison undecided."""


class DiffError(Exception):
    """The recordings cannot be compared; the message is one sentence that says why."""


@dataclass(slots=True)
class Row:
    """One figure on both sides.

    Attributes:
        kind: ``time``, ``module``, ``memory`` or ``energy``.
        name: of the figure, or path of the module.
        phase: of a module; empty for other figures.
        unit: ``s``, ``By`` or ``J``.
        a, b: medians.
        change: ``None`` with too few values.
        role: ``blocks``: the gate needs a judgement; ``watched``: the gate looks for regressions; ``shown``: the gate leaves it out.
        judgement: of the gate; ``None`` without a gate and of figures that are only shown.
    """

    kind: str
    name: str
    phase: str
    unit: str
    a: float
    b: float
    change: Change | None
    role: str
    judgement: str | None = None

    def direction(self, alpha: float) -> int:
        """1 if it grew, -1 if it shrank, 0 if the interval holds no change, or if there are too few values."""
        if self.change is None:
            return 0
        low, high = self.change.interval(alpha)
        return 1 if low > 1 else -1 if high < 1 else 0


@dataclass(slots=True)
class Tokens:
    """Output tokens: medians, and in how many pairs their number differs (``None`` where there are no pairs)."""

    a: float | None
    b: float | None
    differ: int | None


@dataclass(slots=True)
class Logits:
    """Logits of the first step: how far their mean and deviation are apart, in deviations of A.

    Attributes:
        pairs: requests with figures on both sides.
        differ: those whose figures are not equal.
        largest: the largest difference of mean, deviation or largest logit / deviation of A.
        entropy: largest difference of the entropy, nats.
    """

    pairs: int
    differ: int
    largest: float
    entropy: float


@dataclass(slots=True)
class GroupDiff:
    """What differs between the requests of a group; ``modules`` with the largest difference of seconds first."""

    group: Group
    rows: list[Row]
    modules: list[Row]
    tokens: Tokens | None
    logits: Logits | None

    @property
    def title(self) -> str:
        """Operation, model and size of the input."""
        named = f"{self.group.operation} {self.group.model}".strip()
        return f"{named}, {self.group.size}" if self.group.size else named


@dataclass(slots=True)
class Comparison:
    """What differs between two recordings.

    Attributes:
        a, b: the recordings.
        facts: of the environment that differ.
        groups: of requests, those that take the longest first.
        gate: share of slow-down to look for, if any.
        alpha: probability with which an end of an interval is passed by chance.
        verdict: ``fine``, ``regression``, ``undecided``; ``None`` without a gate.
        reasons: sentences for the verdict.
        notes: sentences that the reader should know.
    """

    a: Recording
    b: Recording
    facts: list[Fact]
    groups: list[GroupDiff]
    gate: float | None
    alpha: float
    verdict: str | None = None
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare(a: Session, b: Session, *, gate: float | None = None) -> Comparison:
    """Compare two sessions.

    Args:
        a: the base.
        b: what is compared with it.
        gate: share of slow-down to look for, such as 0.03.

    Raises:
        DiffError: a session has no requests that count, they have no model, operation or size in common, or are the same recording.
        ValueError: the gate is not above 0.
    """
    if gate is not None and not 0 < gate < math.inf:
        raise ValueError(f"the gate must be a share above 0, not {gate}")
    first, second = recording(a), recording(b)
    if first.name == second.name:
        first.tell_apart(second)
        second.tell_apart(first)
    _check(first, second)
    found = groups(first, second)
    if not found:
        raise DiffError(_nothing_common(first, second))
    diffs = [_group(group) for group in found[:_MOST_GROUPS]]
    looked_at = sum(row.role != SHOWN and row.change is not None for diff in diffs for row in diff.rows)
    facts = environment(a, b)
    result = Comparison(first, second, facts, diffs, gate, FALSE_ALARMS / max(1, looked_at))
    result.notes = list(_notes(result, found))
    if gate is not None:
        _judge(result, gate)
    return result


def _check(a: Recording, b: Recording) -> None:
    for side, other in ((a, b), (b, a)):
        if not side.requests:
            left = ", ".join(f"{number} {reason}" for reason, number in side.left.items())
            told = f"no request that can be compared ({left})" if left else "no request of an instrumented model"
            raise DiffError(f"{side.name} holds {told}; {other.name} holds {len(other.session.requests)}")
    shared = a.ids & b.ids
    if shared and len(shared) == min(len(a.ids), len(b.ids)):
        raise DiffError(
            f"{a.name} and {b.name} hold the same requests: give two recordings. Files that a program has open together each get all of its"
            " requests: record the sides in a run each, or with inferspan.testing.record()"
        )


def _nothing_common(a: Recording, b: Recording) -> str:
    if not set(a.models) & set(b.models):
        return (
            f"the recordings have no model in common: {a.name} has {', '.join(a.models)}, {b.name} has"
            f" {', '.join(b.models)} (the setting model_name gives both one name)"
        )
    told = [", ".join(sorted({f"{sample.operation} of {sample.size or 'unknown size'}" for sample in side.samples})[:5]) for side in (a, b)]
    common = "the recordings have no operation with inputs of one size in common"
    return f"{common}: {a.name} has {told[0]}, {b.name} has {told[1]}"


def _group(group: Group) -> GroupDiff:
    differ, turns = _outputs_differ(group), group.turns
    everything = [sample for run in (*group.a, *group.b) for sample in run]
    seconds = list(dict.fromkeys(name for sample in everything for name in sample.seconds))
    per_token = differ and PER_TOKEN in seconds
    rows = []
    for name in sorted(seconds, key=lambda name: (name != REQUEST, name != FIRST_TOKEN, name == PER_TOKEN)):
        row = _row(group, "time", name, "s", lambda sample, name=name: sample.seconds.get(name), _role(name, group, per_token), turns)  # type: ignore[misc]
        rows += [row] if row else []
    exact = all(sample.exact_memory for sample in everything)
    for name in dict.fromkeys(name for sample in everything for name in sample.amounts):
        memory = name == MEMORY
        role = SHOWN if (memory and not exact) or (name == ENERGY and differ) else WATCHED
        kind, unit = ("memory", "By") if memory else ("energy", "J")
        row = _row(group, kind, name, unit, lambda sample, name=name: sample.amounts.get(name), role, turns)  # type: ignore[misc]
        rows += [row] if row else []
    return GroupDiff(group, rows, _modules(group, everything, turns), _tokens(group), _logits(group))


def _role(name: str, group: Group, per_token: bool) -> str:
    """Outputs of other lengths take other times: then the time per token is judged, and what depends on the length is only shown."""
    if not group.model:
        return WATCHED
    if name == (PER_TOKEN if per_token else REQUEST):
        return BLOCKS
    if name in (PER_TOKEN, FIRST_TOKEN, REQUEST) or (per_token and name == "decode"):
        return SHOWN
    return WATCHED


def _row(
    group: Group, kind: str, name: str, unit: str, value: Callable[[Sample], float | None], role: str, turns: bool, phase: str = ""
) -> Row | None:
    sides: list[list[list[float]]] = [[], []]
    if group.paired:
        for run_a, run_b in zip(group.a, group.b, strict=True):
            both = [(x, y) for x, y in zip(map(value, run_a), map(value, run_b), strict=True) if x is not None and y is not None]
            sides[0].append([x for x, _ in both])
            sides[1].append([y for _, y in both])
    else:
        for side, runs in zip(sides, (group.a, group.b), strict=True):
            side += [[known for known in map(value, run) if known is not None] for run in runs]
    flat = [[number for run in side for number in run] for side in sides]
    if not flat[0] or not flat[1]:
        return None
    found = change(*sides, turns=turns, most=_VALUES_OF_MODULES if kind == "module" else 1_000)
    return Row(kind, name, phase, unit, _median(flat[0]), _median(flat[1]), found, role)


def _modules(group: Group, everything: Sequence[Sample], turns: bool) -> list[Row]:
    weight: defaultdict[tuple[str, str], float] = defaultdict(float)
    for sample in everything:
        for key, seconds in sample.modules.items():
            weight[key] += seconds
    rows = []
    for key in sorted(weight, key=lambda key: -weight[key])[:_MOST_MODULES]:
        row = _row(group, "module", key[1], "s", lambda sample, key=key: sample.modules.get(key), SHOWN, turns, key[0])  # type: ignore[misc]
        rows += [row] if row else []
    return sorted(rows, key=lambda row: -abs(row.b - row.a))


def _outputs_differ(group: Group) -> bool:
    if group.paired:
        return any(a.output_tokens != b.output_tokens for a, b in group.pairs)
    return len({sample.output_tokens for run in (*group.a, *group.b) for sample in run}) > 1


def _tokens(group: Group) -> Tokens | None:
    sides = [[sample.output_tokens for run in runs for sample in run if sample.output_tokens is not None] for runs in (group.a, group.b)]
    if not any(sides):
        return None
    differ = sum(a.output_tokens != b.output_tokens for a, b in group.pairs) if group.paired else None
    return Tokens(percentile(sides[0], 0.5), percentile(sides[1], 0.5), differ)


def _logits(group: Group) -> Logits | None:
    both = [(a.logits, b.logits) for a, b in group.pairs if a.logits and b.logits]
    if not both:
        return None
    apart = [max(abs(x - y) for x, y in ((a[0], b[0]), (a[1], b[1]), (a[3], b[3]))) / (a[1] or 1.0) for a, b in both]
    return Logits(len(both), sum(a != b for a, b in both), max(apart), max(abs(a[2] - b[2]) for a, b in both))


def _median(values: Iterable[float]) -> float:
    found = percentile(list(values), 0.5)
    assert found is not None
    return found


def _notes(found: Comparison, every: Sequence[Group]) -> Iterable[str]:
    if len(every) > _MOST_GROUPS:
        yield f"{len(every) - _MOST_GROUPS} groups of requests that take least were left out"
    compared = {(group.operation, group.model) for group in every}
    for side, grouped in ((found.a, [group.a for group in every]), (found.b, [group.b for group in every])):
        known = sum((sample.operation, sample.model) in compared for sample in side.samples)
        alone = known - sum(len(run) for group in grouped for run in group)
        if alone:
            yield f"{side.name}: {counted(alone, 'request')} left out, of sizes that the other side does not have, or not as often"
    for diff in found.groups:
        count = min(sum(map(len, diff.group.a)), sum(map(len, diff.group.b)))
        if count < FEWEST:
            yield f"{diff.title}: {count} on a side, at least {FEWEST} are needed to tell a change from noise"
    runs = _runs(found)
    if min(runs) < FEWEST_RUNS:
        yield (
            f"recorded in {'one run' if runs == [1, 1] else f'{runs[0]} and {runs[1]} runs'} of the program{' each' * (runs == [1, 1])}:"
            f" what differs between runs by chance is in the intervals only from {FEWEST_RUNS} runs a side on"
        )
        if not found.groups[0].group.turns:
            yield "A and B were not recorded in turns, request by request: the intervals are wider, and what changes slowly is not in them"
    if any(_apart(row) for diff in found.groups for row in diff.rows + diff.modules):
        yield "A and B are medians, a change is the typical ratio of single requests: with much noise it is not the ratio of the medians"
    for side, other in ((found.a, found.b), (found.b, found.a)):
        only = {sample.operation for sample in side.samples} - {sample.operation for sample in other.samples}
        if only:
            yield f"only in {side.name}: {', '.join(sorted(only)[:10])}"
        for note in side.session.notes:
            yield f"{side.name}: {note}"


def _apart(row: Row) -> bool:
    """Whether the change looks wrong beside the medians."""
    return row.change is not None and row.a > 0 and abs(row.b / row.a - row.change.ratio) > _APART


def _runs(found: Comparison) -> list[int]:
    """Runs of the program on each side."""
    return [len({sample.run for sample in side.samples if sample.model}) for side in (found.a, found.b)]


def _judge(found: Comparison, gate: float) -> None:
    hardware = other_hardware(found.facts)
    if hardware:
        told = ", ".join(f"{fact.name} {fact.a} and {fact.b}" for fact in hardware)
        found.verdict, found.reasons = UNDECIDED, [f"recorded on different hardware: {told}"]
        return
    if min(_runs(found)) < FEWEST_RUNS and not found.groups[0].group.turns:
        told = "A and B were not recorded in turns, request by request: a machine that drifts looks like a change"
        found.verdict, found.reasons = UNDECIDED, [f"{told}. Record them so, or in turns in {FEWEST_RUNS} runs of the program each"]
        return
    whole = sum(diff.group.seconds for diff in found.groups if diff.group.model)
    slower, open_ = [], []
    for diff in found.groups:
        for row in diff.rows:
            if row.role != SHOWN:
                row.judgement = judgement(row.change, gate, found.alpha)
                if row.judgement == REGRESSION:
                    slower.append(_told(diff, row, found.alpha))
                elif row.judgement == UNDECIDED and row.role == BLOCKS and diff.group.seconds >= _SMALL * whole:
                    open_.append(_open(diff, row, gate, found.alpha))
    found.verdict = REGRESSION if slower else UNDECIDED if open_ else FINE
    found.reasons = slower or open_


def judgement(found: Change | None, gate: float, alpha: float) -> str:
    """What a gate says of one figure.

    Args:
        found: its change; ``None`` with too few values.
        gate: share of slow-down to look for.
        alpha: probability of a false alarm.

    Returns:
        ``regression``, ``fine`` if a change of the size of the gate is excluded, else ``undecided``.
    """
    if found is None:
        return UNDECIDED
    level = math.log1p(gate)
    if found.log_ratio > found.reach(alpha) and found.log_ratio > level / 2:
        return REGRESSION
    return FINE if found.log_ratio + found.reach(_MISSED) < level else UNDECIDED


def _told(diff: GroupDiff, row: Row, alpha: float) -> str:
    assert row.change is not None
    low, high = row.change.interval(alpha)
    return f"{row.name} of {diff.title}: {change_text(row.change.ratio)} ({interval_text(low, high)})"


def _open(diff: GroupDiff, row: Row, gate: float, alpha: float) -> str:
    found = row.change
    if found is None:
        return f"too few requests of {diff.title}: at least {FEWEST} on each side are needed"
    _, high = found.interval(_MISSED)
    needed = found.needed(alpha, gate, _MISSED)
    more = f"; about {needed:,} requests a side would tell" if needed > found.count else "; it lies between no change and the gate"
    most = "any change" if high > WIDEST else f"up to {change_text(high)}"
    what = f"{row.name} of {diff.title}: {change_text(found.ratio)}, {most} cannot be excluded with {found.count:,}"
    return f"{what} {'pairs' if found.paired else 'requests'}{more}"
