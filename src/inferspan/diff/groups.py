"""Two recordings -> groups of requests that can be compared: same operation, same model, same size of the input.

Sizes that are rare are one group, if each has as many requests in A as in B: then each request is compared with one of its own size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from inferspan.diff.recording import DURATION, REQUEST, Recording, Sample
from inferspan.diff.statistics import FEWEST

__all__ = ["Group", "groups"]

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Group:
    """Requests of A and B that can be compared, by run and in order.

    Attributes:
        operation, model: what ran.
        size: of the input; ``several sizes`` for requests that are compared one by one.
        a, b: requests by run.
    """

    operation: str
    model: str
    size: str
    a: list[list[Sample]]
    b: list[list[Sample]]

    @property
    def paired(self) -> bool:
        """Whether each request of A has its counterpart in B."""
        return [len(run) for run in self.a] == [len(run) for run in self.b]

    @property
    def pairs(self) -> list[tuple[Sample, Sample]]:
        """The n-th request of A with the n-th of B; empty if the numbers differ."""
        return list(zip(_flat(self.a), _flat(self.b), strict=True)) if self.paired else []

    @property
    def turns(self) -> bool:
        """Whether A and B ran in turns, so that what changes with time is the same on both sides."""
        ordered = sorted([(sample.start_ns, 0) for sample in _flat(self.a)] + [(sample.start_ns, 1) for sample in _flat(self.b)])
        changes = sum(one[1] != other[1] for one, other in itertools.pairwise(ordered))
        return 2 * changes >= min(len(_flat(self.a)), len(_flat(self.b)))

    @property
    def seconds(self) -> float:
        """Of all requests."""
        return sum(sample.seconds.get(REQUEST if sample.model else DURATION, 0.0) for sample in _flat([*self.a, *self.b]))


def groups(a: Recording, b: Recording) -> list[Group]:
    """The groups that both recordings have, those that take the longest first."""
    sides = [_by(recording.samples, lambda sample: (sample.operation, sample.model)) for recording in (a, b)]
    found: list[Group] = []
    for key in sides[0].keys() & sides[1].keys():
        found += _of_operation(key, sides[0][key], sides[1][key])
    return sorted(found, key=lambda group: (-group.seconds, group.operation, group.model, group.size))


def _of_operation(key: tuple[str, str], a: Sequence[Sample], b: Sequence[Sample]) -> Iterable[Group]:
    sizes_a, sizes_b = (_by(side, lambda sample: sample.size) for side in (a, b))
    common = sizes_a.keys() & sizes_b.keys()
    rare = {size for size in common if min(len(sizes_a[size]), len(sizes_b[size])) < FEWEST}
    for size in sorted(common - rare):
        yield _group(*key, size, sizes_a[size], sizes_b[size])
    even = {size for size in rare if len(sizes_a[size]) == len(sizes_b[size])}
    if even:
        joined = [[sample for size in sorted(even) for sample in side[size]] for side in (sizes_a, sizes_b)]
        # Neighbours in time stay neighbours, by the order of A.
        order = sorted(range(len(joined[0])), key=lambda place: joined[0][place].start_ns)
        name = next(iter(even)) if len(even) == 1 else "several sizes"
        yield _group(*key, name, *([side[place] for place in order] for side in joined), mixed=len(even) > 1)
    elif rare:
        for size in sorted(rare):
            yield _group(*key, size, sizes_a[size], sizes_b[size])


def _group(
    operation: str, model: str, size: str, a: Sequence[Sample], b: Sequence[Sample], *, mixed: bool = False
) -> Group:
    """A group; runs are kept apart if both sides have the same ones, or if nothing can be paired."""
    by_run = [list(_by(side, lambda sample: sample.run).values()) for side in (a, b)]
    if mixed and [sample.run for sample in a] == sorted(sample.run for sample in a):
        pairs = _by(list(zip(a, b, strict=True)), lambda pair: (pair[0].run, pair[1].run))
        by_run = [[[pair[side] for pair in run] for run in pairs.values()] for side in (0, 1)]
    elif mixed or ([len(run) for run in by_run[0]] != [len(run) for run in by_run[1]] and len(a) == len(b)):
        by_run = [[list(a)], [list(b)]]
    return Group(operation, model, size, by_run[0], by_run[1])


def _by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _flat(runs: Iterable[Iterable[Sample]]) -> list[Sample]:
    return [sample for run in runs for sample in run]
