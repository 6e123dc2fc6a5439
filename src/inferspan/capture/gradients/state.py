"""Gradients of one model: the forward passes that are waited for, and what their backward passes have shown.

In: backward passes that have ended. Out: records of the requests, made on the hand-over thread once the statistics have arrived, and totals
by module.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter, deque
from typing import Any

import torch

from inferspan import semconv
from inferspan.capture.compile.transforms import is_capturing
from inferspan.guard import contain
from inferspan.records import Attributes, AttributeValue, ModuleBatch, ModuleCalls, ModuleInfo, Phase, PhaseKey
from inferspan.settings import Settings

from .backward import BackwardCall, BackwardPass, ForwardPass, WatchedCall
from .figures import GradientFigures, Gradients, GradientTotals, as_attributes, nonfinite
from .hooks import GradientLog

__all__ = ["GradientWatch"]

FIRST_NUMBER = 1 << 20
"""Number of the first backward pass among the phases of its request, beyond those of its forward pass."""
MOST_PENDING = 256
"""Backward passes whose statistics are on their way."""
MOST_MODULES = 4_000
_Figures = tuple["GradientFigures | None", "GradientFigures | None"]


def _compiled_autograd() -> bool:
    """Whether backward passes are compiled, so that hooks do not run."""
    config = sys.modules.get("torch._dynamo.config")
    enabled = getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False)
    return bool(enabled or getattr(config, "compiled_autograd", False))


class GradientWatch:
    """The state of one model.

    Args:
        settings: options.

    Attributes:
        watched: the setting ``gradients``.
        order: of the modules, as they were called first.
    """

    def __init__(self, settings: Settings) -> None:
        self.watched: Any = settings.gradients
        self._lock = threading.Lock()
        self._forwards: weakref.WeakSet[ForwardPass] = weakref.WeakSet()
        self._pending: deque[BackwardPass] = deque()
        self._ready: deque[BackwardPass] = deque()
        self._abandoned: deque[BackwardPass] = deque()
        self.order: dict[str, int] = {"": -1}
        self._infos: dict[ModuleInfo, ModuleInfo] = {}
        self._totals: dict[str, GradientTotals] = {}
        self._counts: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._source: Any = None

    @property
    def active(self) -> bool:
        """Whether gradients are wanted."""
        return bool(self.watched != "none")

    def take_over(self, other: GradientWatch) -> None:
        """Go on with the totals of another one."""
        self.order, self._totals, self._counts, self._left_out = other.order, other._totals, other._counts, other._left_out

    # --------------------------------------------------------------------------------------------------------- requests
    def begin(self, call: Any) -> GradientLog | None:
        """What the hooks write to in a request that begins; ``None`` if it has no graph or its backward pass will be compiled."""
        if not self.active or not torch.is_grad_enabled():
            return None
        self._advance()
        if _compiled_autograd():
            return None
        if self._source is None:
            self._source = _add_source(self, call.owner.recorder)
        forward = ForwardPass(self, call)
        self._forwards.add(forward)
        return GradientLog(forward)

    def end(self, log: GradientLog | None) -> str | None:
        """A request has ended; why its gradients will not be seen, if that is so."""
        if log is None:
            return "gradients: compiled autograd" if self.active and torch.is_grad_enabled() and _compiled_autograd() else None
        log.drop()
        if log.forward.handles:
            with self._lock:
                self._counts["forwards"] += 1
        return None

    # -------------------------------------------------------------------------------------------------- backward passes
    def began(self, run: BackwardPass) -> None:
        """A backward pass has reached a forward pass: modules that it runs again are to be observed."""
        if run.forward.recomputes:
            run.forward.engine.acquire_inside()
            run.holds_hooks = True

    def finished(self, run: BackwardPass) -> None:
        """It has ended."""
        self._release(run)
        self._pending.append(run)
        self._advance()

    def abandoned(self, run: BackwardPass) -> None:
        """It has failed; nothing may be locked or waited for."""
        self._abandoned.append(run)

    @staticmethod
    def _release(run: BackwardPass) -> None:
        if run.holds_hooks:
            run.holds_hooks = False
            run.forward.engine.release_inside()

    def _settle_failures(self) -> None:
        while self._abandoned:
            run = self._abandoned.popleft()
            self._release(run)
            with contain("gradients"):
                run.rows.send()
            self._pending.append(run)

    def _advance(self) -> None:
        """Give away what has arrived; asks the device, so it runs on threads of the program only."""
        self._settle_failures()
        if not self._pending or is_capturing():
            return
        recorder = self._pending[0].forward.recorder
        with self._lock:
            while self._pending and self._pending[0].rows.arrived():
                self._ready.append(self._pending.popleft())
            while len(self._pending) > MOST_PENDING:
                self._pending.popleft()
                self._left_out["backward passes that the device was late with"] += 1
        if self._ready and not recorder.soon(self._deliver):
            self._deliver()

    def collect(self) -> None:
        """Give everything away; waits for the device."""
        self._settle_failures()
        with self._lock:
            self._ready.extend(self._pending)
            self._pending.clear()
        self._deliver()

    def _deliver(self) -> None:
        while True:
            try:
                run = self._ready.popleft()
            except IndexError:
                return
            with contain("gradients"):
                self._hand_over(run)

    def _hand_over(self, run: BackwardPass) -> None:
        run.rows.read()
        calls = list(run.calls.values())
        figures = {call.call: (run.rows.figures(call.input_spots), run.rows.figures(call.output_spots)) for call in calls}
        for call in calls:
            _cover(call, run)
        with self._lock:
            self._counts["backwards"] += 1
            self._left_out.update(run.rows.left_out)
            for call in calls:
                self._total(call, *figures[call.call])
        run.forward.scope.detail(self._records(run, calls, figures))

    def _total(self, call: BackwardCall, inputs: GradientFigures | None, outputs: GradientFigures | None) -> None:
        info = call.call.info
        name, kind = ("", call.call.forward.model_type) if info is None else (info.name, info.type)
        found = self._totals.get(name)
        if found is None:
            if len(self._totals) >= MOST_MODULES:
                return
            found = self._totals[name] = GradientTotals(name, kind, self.order.get(name, 0))
        found.add((call.end - call.start) / 1e9, inputs, outputs)

    def _records(self, run: BackwardPass, calls: list[BackwardCall], figures: dict[WatchedCall, _Figures]) -> list[Any]:
        forward = run.forward
        modules = sorted((call for call in calls if call.call.info is not None), key=lambda call: (_depth(call.call), call.order))
        room = forward.budget.modules_allowed(len(modules), whole=False)
        kept = modules[:room]
        forward.budget.spend(1 + len(kept))
        key = PhaseKey(semconv.SPAN_BACKWARD, FIRST_NUMBER + run.number)
        numbers = {call.call: number for number, call in enumerate(kept)}
        rows, statistics = ModuleCalls(), dict[int, Attributes]()
        for call in reversed(kept):
            number, parent = numbers[call.call], call.call.parent
            above = -1 if parent is None else numbers.get(parent, -1)
            statistics[number] = {**as_attributes(figures[call.call][0], semconv.GRAD_INPUTS),
                                  **as_attributes(figures[call.call][1], semconv.GRAD_OUTPUTS)}  # fmt: skip
            rows.add((number, above, self._named(call.call.info), call.start, call.end, (), (), None, number))
        attributes = _attributes(run, calls, figures)
        if len(kept) < len(modules):
            attributes[semconv.SPANS_DROPPED] = len(modules) - len(kept)
        failure = "_OTHER" if run.failed else None
        phase = Phase(key, run.start + forward.offset, run.end + forward.offset, failure, attributes)
        return [ModuleBatch(None, key, forward.offset, rows, statistics), phase] if kept else [phase]

    def _named(self, info: ModuleInfo | None) -> ModuleInfo:
        assert info is not None
        found = self._infos.get(info)
        if found is None:
            found = self._infos[info] = info._replace(span_name=f"{semconv.SPAN_BACKWARD} {info.span_name}")
        return found

    # ---------------------------------------------------------------------------------------------------------- figures
    def gradients(self) -> Gradients:
        """What is known by now."""
        with self._lock:
            rows = sorted(self._totals.values(), key=lambda total: total.order)
            return Gradients(
                [total.row() for total in rows], self._counts["forwards"], self._counts["backwards"], dict(self._left_out)
            )

    def close(self) -> None:
        """Take the hooks off the graphs of forward passes that still wait."""
        for forward in list(self._forwards):
            with contain("gradients"):
                forward.close()

    def forked(self) -> None:
        """Called in a forked child: no thread is left to release the lock, and its parent reads what was pending."""
        self._lock = threading.Lock()
        for waiting in (self._pending, self._ready, self._abandoned):
            waiting.clear()


def _add_source(watch: GradientWatch, recorder: Any) -> Any:
    """Collect at each flush, as long as the state lives."""
    reference = weakref.ref(watch)

    def collect() -> None:
        found = reference()
        if found is not None:
            found.collect()

    remove = recorder.add_source(collect)
    finalizer = weakref.finalize(watch, remove)
    finalizer.atexit = False
    return remove


def _depth(call: WatchedCall) -> int:
    depth, above = 0, call.parent
    while above is not None:
        depth, above = depth + 1, above.parent
    return depth


def _cover(call: BackwardCall, run: BackwardPass) -> None:
    """A call lasts as long as the calls inside it."""
    run.start, run.end = min(run.start, call.start), max(run.end, call.end)
    above = call.call.parent
    while above is not None:
        outer = run.calls.get(above)
        if outer is not None:
            outer.start, outer.end = min(outer.start, call.start), max(outer.end, call.end)
        above = above.parent


def _attributes(run: BackwardPass, calls: list[BackwardCall], figures: dict[WatchedCall, _Figures]) -> dict[str, AttributeValue]:
    """Of the span of the backward pass."""
    of_modules = [call for call in calls if call.call.info is not None]
    found: dict[str, AttributeValue] = {semconv.BACKWARD_NUMBER: run.number, semconv.BACKWARD_MODULES: len(of_modules)}
    for call in calls:
        if call.call.info is None:
            found |= as_attributes(figures[call.call][1], semconv.GRAD_OUTPUTS)
    nan = inf = 0
    for call in of_modules:
        its_nan, its_inf = nonfinite(*figures[call.call])
        nan, inf = nan + its_nan, inf + its_inf
        if (its_nan or its_inf) and semconv.BACKWARD_FIRST_NONFINITE not in found and call.call.info is not None:
            found[semconv.BACKWARD_FIRST_NONFINITE] = call.call.info.name
    return {**found, semconv.BACKWARD_NAN_COUNT: nan, semconv.BACKWARD_INF_COUNT: inf}
