"""What whole settings add to a decode step, by neighbouring blocks of steps of the same request.

A draw says every few steps of a request whether inferspan is in the way of the next ones. Blocks of recorded steps are compared with the plain
blocks next to them, which have met the same machine: where whole requests differ by ten percent and more, that resolves one percent.
In: a workload and rows of the main table. Out: the times of steps, and ratios. Detail is counted, and dropped where it would be handed over,
so export is not in these ratios. A row fails if its spans are not those that follow from the model's structure.
"""

from __future__ import annotations

import gc
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from benchmarks import peers
from benchmarks.models import Workload
from benchmarks.ratios import Ratio, quantile, ratio_of
from benchmarks.rounds import RowResult, problem_of, settle, why_not
from benchmarks.rows import ROWS, Row
from benchmarks.steps.switch import Switch

__all__ = ["AGAIN", "PLAIN", "RECORDED", "SETTINGS", "Compared", "Timed", "compare", "measure", "neighbours"]

PLAIN, RECORDED, AGAIN = "plain", "recorded", "plain again"
"""How a step may run; the last one is plain as well, and shows how fine the measurement is."""
WEIGHTS = {PLAIN: 2, RECORDED: 2, AGAIN: 1}
FIRST = 5
"""Steps of a request before the first draw: the prefill, and steps that have their modules recorded in any case."""
WARM = 24
"""Steps of a request that only warms up."""
WARM_CUDA = 8.0
"""Seconds of requests before those that count: fused kernels are compiled on a thread meanwhile."""
COUNTED = 3
"""Steps of a block, after one that does not count: it ends what the block before it has begun."""
SETTINGS = {row.key: row for row in ROWS if row.key not in {"a/a", *(peer.key for peer in peers.PEERS)}}
"""Rows that can be compared in this way, by key."""


class Timed(NamedTuple):
    """A step that counts: which one it was of which request, how it ran, and how long it took."""

    request: int
    step: int
    variant: str
    seconds: float


@dataclass
class Compared(RowResult):
    """A row's steps, and what was recorded in them."""

    steps: list[Timed] = field(default_factory=list)
    spans: Counter[int] = field(default_factory=Counter)
    """How many recorded decode steps had so many spans, their own included."""


def neighbours(steps: Sequence[Timed], variant: str) -> list[list[tuple[float, float]]]:
    """For each block of ``variant``: its median beside that of the plain block next before it, and beside that of the one next after it.

    One beside one: the mean of two plain blocks would be less skewed than a single one, and plain against plain not 1.
    """
    requests: dict[int, list[tuple[str, list[float]]]] = {}
    last: tuple[int, int, str] | None = None
    for request, step, name, seconds in steps:
        blocks = requests.setdefault(request, [])
        if last != (request, step - 1, name):
            blocks.append((name, []))
        blocks[-1][1].append(seconds)
        last = (request, step, name)
    found = []
    for blocks in requests.values():
        middle = [(name, quantile(values, 0.5)) for name, values in blocks]
        for place, (name, ours) in enumerate(middle):
            if name == variant:
                sides = (reversed(middle[:place]), middle[place + 1 :])
                near = [next((value for other, value in side if other == PLAIN), None) for side in sides]
                found.append([(ours, plain) for plain in near if plain is not None])
    return [pairs for pairs in found if pairs]


def compare(steps: Sequence[Timed], variant: str) -> Ratio:
    """The ratio of ``variant`` to the plain steps beside it; both pairs of a block are drawn together.

    Raises:
        ValueError: no block has a plain neighbour.
    """
    blocks = neighbours(steps, variant)
    pairs = [(number, *pair) for number, block in enumerate(blocks) for pair in block]
    return ratio_of([ours for _, ours, _ in pairs], [plain for *_, plain in pairs], groups=[number for number, *_ in pairs])


class _Turns:
    """A stopping criterion, so called once a step: it ends the time of one, and says how the next one runs."""

    def __init__(self, switch: Switch, draw: random.Random, *, request: int, last: int, over: Callable[[], bool], device: Any) -> None:
        import torch

        self._switch, self._draw, self._request, self._last, self._over = switch, draw, request, last, over
        self._answers = [torch.full((1,), answer, dtype=torch.bool, device=device) for answer in (False, True)]
        self.timed: list[Timed] = []
        self.noted = 0
        """Steps with inferspan in the way, those that do not count included."""
        self._seen = 0
        self._variant: str | None = None
        self._in_block = COUNTED + 1
        self._begun = 0.0

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        now = time.perf_counter()
        if self._seen == 0:
            # The list that calls us: generate() has made it anew.
            self._switch.watch(sys._getframe(1).f_locals.get("self"))
        self.noted += self._variant in (None, RECORDED)
        if self._variant is not None:
            if self._in_block > 0:
                self.timed.append(Timed(self._request, self._seen, self._variant, now - self._begun))
            self._in_block += 1
        self._seen += 1
        ends = self._over() or self._seen >= self._last
        if ends:
            # What ends the request must find everything as it was.
            self._switch.put_back()
        elif self._seen >= FIRST and self._in_block > COUNTED:
            self._variant, self._in_block = self._draw.choices([*WEIGHTS], [*WEIGHTS.values()])[0], 0
            (self._switch.put_back if self._variant == RECORDED else self._switch.take_off)()
        self._begun = time.perf_counter()
        return self._answers[ends]


def measure(
    work: Workload,
    rows: Sequence[Row],
    *,
    requests: int | None = None,
    seconds: float = math.inf,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Compared]:
    """Compare rows with the plain model, until each has had ``requests`` or the time is over.

    Args:
        work: what to run, with a batch of one.
        rows: of ``SETTINGS``; each has requests of its own, in turn.
        requests: of each row; without, ``seconds`` end it.
        seconds: time for all of it, warm-up included; it ends a request in its midst.
        say: receives the progress.
        clock: seconds; monotonic.
    """
    from opentelemetry.sdk.trace import TracerProvider

    deadline = clock() + seconds
    # A provider that records and has nobody to send to.
    work = replace(work, providers={"tracer_provider": TracerProvider(shutdown_on_exit=False)})
    found = [Compared(row, problem=why_not(work, row)) for row in rows]
    session = _Session(work, lambda: clock() >= deadline)
    for _ in range(3 if work.compiled else 1):
        work.request()
    warm = clock() + (WARM_CUDA if work.cuda else 0)
    made = -1
    with _kept_back() as handed:
        while any(one.problem is None for one in found) and (requests is None or made < requests) and clock() < deadline:
            for one in found:
                if one.problem is None and clock() < deadline:
                    session.run(one, handed, keep=made >= 0)
            if made >= 0 or clock() >= warm:
                made += 1
                say(_progress(found, made))
    return found


def _progress(found: Sequence[Compared], made: int) -> str:
    if not made:
        return "warm; measuring"
    counts = [f"{one.row.key} {sum(step.variant == RECORDED for step in one.steps)}" for one in found if one.steps]
    return f"{made} requests of each setting; recorded steps that count: {', '.join(counts)}"


class _Session:
    """Runs requests of one workload."""

    def __init__(self, work: Workload, over: Callable[[], bool]) -> None:
        self._work, self._over = work, over
        self._switch, self._draw = Switch(work.model), random.Random(0)
        self._requests = 0

    def run(self, one: Compared, handed: list[Any], *, keep: bool) -> None:
        """One request of a row; what goes wrong ends this row, not the others."""
        from inferspan import guard
        from inferspan.capture.compile.state import compiled_graphs

        work = self._work
        device = next(work.model.parameters()).device
        last = work.tokens if keep else min(WARM, work.tokens)
        turns = _Turns(self._switch, self._draw, request=self._requests, last=last, over=self._over, device=device)
        self._requests += 1
        contained: list[guard.Swallowed] = []
        graphs = compiled_graphs()
        handed.clear()
        try:
            with guard.observe(contained.append):
                self._request(one.row, turns)
        except Exception as error:
            one.fail(problem_of(error))
            return
        spans, of_steps = _count(handed)
        expected = one.row.expected(replace(work, tokens=turns.noted))
        if contained:
            one.fail(f"contained an error of its own: {contained[0].place}: {contained[0].kind}")
        elif spans != expected:
            one.fail(f"{spans:,} spans in {turns.noted} steps, not {expected:,}")
        elif keep and compiled_graphs() != graphs:
            one.fail("something was compiled in a request that is measured")
        if keep:
            one.steps += turns.timed
            one.spans += of_steps

    def _request(self, row: Row, turns: _Turns) -> None:
        # What the last request left behind is not this one's to collect.
        gc.collect()
        undo = row.attach(self._work)
        try:
            settle(self._work)
            self._work.request(stopping_criteria=[turns])
        finally:
            self._switch.put_back()
            undo()
            self._switch.forget()


@contextmanager
def _kept_back() -> Iterator[list[Any]]:
    """Records come into a list where they would be handed over to be written."""
    from unittest import mock

    from inferspan.spans import recorder as spans

    handed: list[Any] = []
    with mock.patch.object(spans.LiveRequestSpan, "detail", lambda _, records: handed.extend(records)):
        yield handed


def _count(records: Sequence[Any]) -> tuple[int, Counter[int]]:
    """Spans of a request, its own included; and how many decode steps had so many."""
    from inferspan.records import ModuleBatch, Step

    modules: Counter[int | None] = Counter()
    for record in records:
        if isinstance(record, ModuleBatch):
            modules[record.step] += len(record.calls)
    others = sum(not isinstance(record, ModuleBatch) for record in records)
    steps = Counter(1 + modules[record.number] for record in records if isinstance(record, Step) and record.number)
    return bool(records) + others + modules.total(), steps
