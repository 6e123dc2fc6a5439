"""Backward passes of one forward pass: calls of modules that wait for their gradients, and what was seen of them.

Hooks on nodes of the autograd graph refer to the objects here; nothing here refers to a node or a tensor of the program once the backward
pass has ended. A graph that is freed without a backward pass takes its hooks, and these objects, with it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from time import perf_counter_ns
from types import CodeType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from inferspan.capture.compile.state import leave_alone
from inferspan.capture.values.unseen import hidden
from inferspan.guard import report
from inferspan.records import ModuleInfo

from .graph import Region
from .statistics import GradientRows, Spot

__all__ = ["BackwardCall", "BackwardPass", "ForwardPass", "WatchedCall", "in_backward", "latest_on_this_thread", "watch"]

_task: Any = torch._C._current_graph_task_id
_latest: dict[int, weakref.ref[BackwardPass]] = {}
"""The backward pass of which each thread has seen the latest gradient."""


def in_backward() -> bool:
    """Whether this thread runs a backward pass: a forward pass in it computes what a checkpoint has left out."""
    return bool(_task() >= 0)


def latest_on_this_thread() -> BackwardPass | None:
    """The backward pass that runs on this thread; the latest one, if it goes through several forward passes."""
    found = _latest.get(threading.get_ident())
    run = None if found is None else found()
    return run if run is not None and not run.ended else None


class Watch(Protocol):
    """What a forward pass needs of the model's state."""

    order: dict[str, int]

    def began(self, run: BackwardPass) -> None:
        """A backward pass has reached the forward pass."""

    def finished(self, run: BackwardPass) -> None:
        """It has ended."""

    def abandoned(self, run: BackwardPass) -> None:
        """Its graph has been freed before it has ended; nothing may be locked or waited for."""


class ForwardPass:
    """A recorded request whose gradients are waited for.

    Args:
        state: of the model.
        call: the request.

    Attributes:
        recomputes: whether modules ran without a graph, as in a checkpoint that runs them again in the backward pass.
        scope: of the request.
        budget: its spans.
        offset: added to a reading of its clock, gives nanoseconds since the epoch.
        engine: the observers of the model.
        recorder: of the request.
        model_type: class of the model.
        handles: of the hooks.
        closed: whether nothing more is recorded.
    """

    def __init__(self, state: Watch, call: Any) -> None:
        self.state = state
        self.scope, self.budget, self.offset = call.scope, call.budget, call.offset
        self.engine, self.recorder = call.engine, call.owner.recorder
        self.model_type = call.owner.root_info.type
        self.recomputes = self.closed = False
        self.handles: list[Any] = []
        # Held by torch's graph task alone: one that fails ends the pass.
        self._running: weakref.WeakValueDictionary[int, BackwardPass] = weakref.WeakValueDictionary()
        self._passes = 0
        self._lock = threading.Lock()

    def run(self) -> BackwardPass:
        """The backward pass that this thread is in."""
        task = _task()
        found = self._running.get(task)
        return self._begin(task) if found is None else found

    def _begin(self, task: int) -> BackwardPass:
        with self._lock:  # torch has a thread for each device
            found = self._running.get(task)
            if found is not None:
                return found
            found = self._running[task] = BackwardPass(self, self._passes)
            self._passes += 1
            # Called by torch when the pass has ended; not called if it fails.
            torch.autograd.Variable._execution_engine.queue_callback(found.finish)
        self.state.began(found)
        return found

    def close(self) -> None:
        """Take the hooks off."""
        self.closed = True
        handles, self.handles = self.handles, []
        for handle in handles:
            handle.remove()


class WatchedCall:
    """A call of a module whose gradients are waited for; ``info`` is ``None`` for the model itself."""

    __slots__ = ("forward", "home", "info", "inputs", "parent")

    def __init__(self, forward: ForwardPass, info: ModuleInfo | None, parent: WatchedCall | None, home: BackwardPass | None) -> None:
        self.forward, self.info, self.parent = forward, info, parent
        self.home = None if home is None else weakref.ref(home)
        """The backward pass in which it was recomputed."""
        self.inputs: dict[int, int] = {}
        """Number of gradients that add up to that of each input."""

    def run(self) -> BackwardPass | None:
        """The backward pass that a gradient belongs to."""
        if self.forward.closed:
            return None
        found = self.forward.run() if self.home is None else self.home()
        return found if found is not None and not found.ended else None


class BackwardCall:
    """What one backward pass has shown of a watched call."""

    __slots__ = ("call", "end", "input_spots", "order", "output_spots", "partial", "start")

    def __init__(self, call: WatchedCall, order: int, now: int) -> None:
        self.call, self.order = call, order
        self.start = self.end = now
        self.input_spots: list[Spot] = []
        self.output_spots: list[Spot] = []
        self.partial: dict[int, tuple[Tensor, int]] = {}
        """Sums of gradients of inputs to which more will be added, and of how many."""


class BackwardPass:
    """One backward pass through one forward pass.

    Attributes:
        forward: the forward pass.
        number: of the backward passes of the forward pass.
        rows: statistics.
        calls: by watched call, in the order in which their gradients came.
        holds_hooks: whether it has attached hooks of modules, for what is recomputed.
        stack: calls of modules that are being recomputed.
    """

    def __init__(self, forward: ForwardPass, number: int) -> None:
        self.forward, self.number = forward, number
        self.start = self.end = perf_counter_ns()
        self.rows = GradientRows()
        self.calls: dict[WatchedCall, BackwardCall] = {}
        self.ended = self.failed = self.holds_hooks = False
        self.stack: list[Any] = []
        self._threads: set[int] = set()

    def of(self, call: WatchedCall, now: int) -> BackwardCall:
        """The entry of a watched call; made if it is new."""
        thread = threading.get_ident()
        known = _latest.get(thread)
        if known is None or known() is not self:
            _latest[thread] = weakref.ref(self)
            self._threads.add(thread)
        found = self.calls.get(call)
        if found is None:
            found = self.calls[call] = BackwardCall(call, len(self.calls), now)
        self.end = max(self.end, now)
        return found

    def finish(self) -> None:
        """It has ended: send the statistics to the host."""
        try:
            self._end(perf_counter_ns())
            self.forward.state.finished(self)
        except Exception as error:
            report("gradients", error)

    def _end(self, now: int) -> None:
        if self.ended:
            return
        self.ended = True
        self.end = max(self.end, now)
        self.stack.clear()
        for thread in self._threads:
            known = _latest.get(thread)
            if known is not None and known() is self:
                del _latest[thread]
        for call in self.calls.values():
            partial, call.partial = call.partial, {}
            for total, _ in partial.values():
                _keep(call.input_spots, self.rows.add(total))
        self.rows.send()

    def __del__(self) -> None:
        if not self.ended and not self.forward.closed:
            # The graph was freed after a failure. Nothing is launched here: this may run at any time, on any thread.
            self.failed = self.ended = True
            for call in self.calls.values():
                call.partial.clear()
            self.forward.state.abandoned(self)


def _keep(spots: list[Spot], spot: Spot | None) -> None:
    if spot is not None:
        spots.append(spot)


_left_alone: set[CodeType] = set()


def _alone(hook: Any) -> Any:
    """``leave_alone`` for closures: of one code it has to be called once, where it returns the function as it is."""
    if hook.__code__ in _left_alone:
        return hook
    alone = leave_alone(hook)
    if alone is hook:
        _left_alone.add(hook.__code__)
    return alone


def _entry_hook(call: WatchedCall, places: Sequence[int], aliases: dict[int, int], *, own: bool) -> Any:
    """Takes the gradients of outputs, before the node of the outputs runs."""

    def hook(gradients: Any) -> None:
        if is_dynamo_compiling():
            return
        try:
            run = call.run()
            if run is None:
                return
            now = perf_counter_ns()
            seen = run.of(call, now)
            if own:
                seen.end = max(seen.end, now)
            for place in places:
                gradient = gradients[place]
                if gradient is not None:
                    spot = run.rows.add(gradient)
                    _keep(seen.output_spots, spot)
                    if place in aliases:
                        _keep(seen.input_spots, spot)
        except Exception as error:
            report("gradients", error)

    return _alone(hook)


def _exit_hook(call: WatchedCall, inputs: Sequence[tuple[int, int]]) -> Any:
    """Takes the gradients of inputs, after a node has computed them."""

    def hook(gradients: Any, *_: Any) -> None:
        if is_dynamo_compiling():
            return
        try:
            run = call.run()
            if run is None:
                return
            seen = run.of(call, perf_counter_ns())
            for place, index in inputs:
                gradient = gradients[place]
                if gradient is not None:
                    _add(run, seen, index, gradient)
            seen.end = max(seen.end, perf_counter_ns())
        except Exception as error:
            report("gradients", error)

    return _alone(hook)


@hidden
def _add(run: BackwardPass, seen: BackwardCall, index: int, gradient: Tensor) -> None:
    """Add a gradient to that of an input; the statistics are those of the sum."""
    expected = seen.call.inputs.get(index, 1)
    total, count = gradient, 1
    if expected > 1:
        before = seen.partial.pop(index, None)
        if before is not None:
            with torch.no_grad():
                total, count = before[0] + gradient, before[1] + 1
    if count < expected:
        seen.partial[index] = (total.detach(), count)
    else:
        _keep(seen.input_spots, run.rows.add(total))


def watch(call: WatchedCall, region: Region, handles: list[Any] | None) -> None:
    """Put hooks on the nodes where gradients enter and leave a call.

    Args:
        call: the call.
        region: its nodes.
        handles: gets the handles of the hooks.
    """
    for one in region.exits:
        for _, index in one.inputs:
            call.inputs[index] = call.inputs.get(index, 0) + 1
    has_own = any(own for _, _, own in region.entries)
    made = []
    for node, places, own in region.entries:
        aliases = {place: region.passed_on[id(node), place] for place in places if (id(node), place) in region.passed_on}
        made.append(node.register_prehook(_entry_hook(call, places, aliases, own=own or not has_own)))
    made += [one.node.register_hook(_exit_hook(call, one.inputs)) for one in region.exits]
    if handles is not None:
        handles += made
