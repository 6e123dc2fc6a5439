"""The paths of a request's passes, compared with those of earlier passes of the same shape on the model.

In: numbers of modules as they are called. Out: attributes of steps and of the request, and events.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter_ns
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.capture.modules.shapes import Described, describe
from inferspan.guard import contain
from inferspan.records import Attributes, AttributeValue, ModuleInfo
from inferspan.settings import Settings

from .paths import Modules, PathFacts

__all__ = ["FlowLog", "FlowWatch"]

MOST_SHAPES = 512
MOST_PATHS = 256
"""Paths of one shape that are numbered."""
MOST_CALLS = 1 << 17
"""Calls of one pass that are looked at."""
MOST_EVENTS = 16
"""Events of one request."""
_Key = tuple[Described, bool]


class _Compared(NamedTuple):
    """A path, and how it differs from the first one of its shape."""

    number: int
    facts: PathFacts
    called: list[str]
    not_called: list[str]


class FlowWatch:
    """What is known of the control flow of one model; threads may share it.

    Args:
        settings: options.

    Attributes:
        watched: the setting ``control_flow``.
    """

    def __init__(self, settings: Settings) -> None:
        self.watched: Any = settings.control_flow
        self._lock = threading.Lock()
        self.select(())

    @property
    def active(self) -> bool:
        """Whether it is looked at."""
        return bool(self.watched != "none")

    def select(self, infos: Iterable[ModuleInfo]) -> None:
        """These modules are looked at."""
        self._modules = Modules(infos)
        self._paths: OrderedDict[_Key, dict[tuple[int, ...], _Compared]] = OrderedDict()
        self._first: OrderedDict[_Key, Described] = OrderedDict()

    def first_given(self, inputs: _Key, given: Described | None) -> Described:
        """The arguments of the first module that is looked at, by the model's inputs; noted unless they are ``None``.

        A cache of keys grows the inputs of the model from step to step, and not those of its modules, so paths are compared by the latter;
        a pass without such a module has those of the passes before it.
        """
        with self._lock:
            if given is None:
                return self._first.get(inputs, ())
            self._first[inputs] = given
            self._first.move_to_end(inputs)
            if len(self._first) > MOST_SHAPES:
                self._first.popitem(last=False)
            return given

    def compare(self, key: _Key, path: tuple[int, ...]) -> _Compared:
        """Number and facts of a path among those of the same shape; the first one has number 0."""
        with self._lock:
            paths = self._paths.setdefault(key, {})
            self._paths.move_to_end(key)
            if len(self._paths) > MOST_SHAPES:
                self._paths.popitem(last=False)
            found = paths.get(path)
            if found is None:
                facts = self._modules.facts(path)
                usual = next(iter(paths.values()), None)
                different: tuple[list[str], list[str]] = ([], []) if usual is None else self._modules.difference(facts, usual.facts)
                found = _Compared(min(len(paths), MOST_PATHS), facts, *different)
                if len(paths) < MOST_PATHS:
                    paths[path] = found
            return found

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the lock."""
        self._lock = threading.Lock()


class FlowLog:
    """The paths of one request.

    Args:
        watch: of the model.
        call: the request.
    """

    def __init__(self, watch: FlowWatch, call: Any) -> None:
        self._watch, self._call = watch, call
        self._calls: list[int] = []
        self._step: int | None = None
        self._given: Described | None = None
        self._inputs: Described | None = None
        """Of the model, whose call is seen; ``None`` outside of it."""
        self._failed = False
        self._began = self._depth = self._handled = 0
        self._passes: list[_Compared] = []
        self._exits: set[int] = set()
        self._exited = self._branched = 0
        self.events: list[tuple[str, int, Attributes]] = []

    def enter_model(self, step: int | None, inputs: Any, handled: BaseException | None, runs: Callable[[], bool]) -> None:
        """The model is about to run.

        Args:
            step: number of the open step; ``None`` outside of one.
            inputs: its arguments.
            handled: the exception that the program handles meanwhile, if any.
            runs: whether it runs already; asked only if nothing has told its end, as after an interrupt.
        """
        if self._depth and runs():
            # The model calls itself.
            self._depth += 1
            return
        self.close()
        self._depth = 1
        self._begin(step)
        self._inputs = describe(inputs)
        # Until it has returned: torch calls no hook after an interrupt.
        self._failed = True
        self._handled = id(handled)

    def leave_model(self, handled: BaseException | None) -> None:
        """It has returned, or raised the exception that is handled now and was not before."""
        if not self._depth:
            # A hook of the program's has refused the call before it began.
            return
        self._depth -= 1
        if not self._depth:
            self._failed = handled is not None and id(handled) != self._handled

    def enter(self, number: int, step: int | None, given: Any) -> None:
        """A module is about to run.

        Args:
            number: of the module.
            step: number of the open step; ``None`` outside of one.
            given: its arguments.
        """
        if not self._depth and (step != self._step or not self._calls):
            # The call of the model is not seen: its ``forward`` was called, or it cannot be hooked.
            self.close()
            self._begin(step)
        if self._given is None:
            self._given = describe(given)
        if len(self._calls) < MOST_CALLS:
            self._calls.append(number)

    def _begin(self, step: int | None) -> None:
        self._step, self._began = step, perf_counter_ns()

    def close(self) -> None:
        """The pass that was looked at has ended; of one that failed nothing is said. Contains errors of its own."""
        calls, inputs, given, failed = self._calls, self._inputs, self._given, self._failed
        self._calls, self._inputs, self._given, self._failed = [], None, None, False
        if failed or (not calls and inputs is None) or len(calls) >= MOST_CALLS:
            return
        with contain("control flow"):
            first = self._step == 0
            if inputs is not None:
                given = self._watch.first_given((inputs, first), given)
            compared = self._watch.compare((given or (), first), tuple(calls))
            self._note(compared)
            steps = getattr(self._call, "steps", None)
            if self._step is not None and steps is not None:
                steps.rows.add_attributes(self._step, _attributes(compared))
            elif steps is None:
                self._passes.append(compared)

    def _note(self, compared: _Compared) -> None:
        facts = compared.facts
        at: dict[str, AttributeValue] = {} if self._step is None else {semconv.STEP_INDEX: self._step}
        self._exited += bool(facts.exits)
        for one in facts.exits:
            self._exits.add(one.layer)
            self._event(
                semconv.EARLY_EXIT_EVENT,
                {**at, semconv.MODULE_NAME: one.stack, semconv.EARLY_EXIT_LAYER: one.layer, semconv.LAYERS_TOTAL: one.layers},
            )
        if compared.called or compared.not_called:
            self._branched += 1
            self._event(semconv.BRANCH_EVENT, {**at, **_branch(compared)})

    def _event(self, name: str, attributes: Attributes) -> None:
        if len(self.events) < MOST_EVENTS:
            self.events.append((name, self._began + self._call.offset, attributes))

    def attributes(self) -> Mapping[str, AttributeValue]:
        """Of the request, at its end."""
        self.close()
        found: dict[str, AttributeValue] = {}
        if len(self._passes) == 1:
            found |= _attributes(self._passes[0])
        if self._exited:
            found |= {semconv.EARLY_EXIT_PASSES: self._exited, semconv.EARLY_EXIT_LAYERS: sorted(self._exits)}
        if self._branched:
            found[semconv.BRANCH_PASSES] = self._branched
        return found


def _branch(compared: _Compared) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {}
    if compared.called:
        found[semconv.BRANCH_CALLED] = compared.called
    if compared.not_called:
        found[semconv.BRANCH_NOT_CALLED] = compared.not_called
    return found


def _attributes(compared: _Compared) -> dict[str, AttributeValue]:
    """Of one pass."""
    facts = compared.facts
    found: dict[str, AttributeValue] = {semconv.BRANCH_PATH: compared.number, **_branch(compared)}
    if facts.exits:
        found[semconv.EARLY_EXIT_LAYER] = facts.exits[-1].layer
    if facts.skipped:
        found[semconv.LAYERS_SKIPPED] = list(facts.skipped[-1][1])
    if facts.loops:
        found[semconv.LOOP_MODULES] = [name for name, _ in facts.loops]
        found[semconv.LOOP_ITERATIONS] = [count for _, count in facts.loops]
    return found
