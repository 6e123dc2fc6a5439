"""The data flow of one request, pass by pass.

In: begin and end of module calls, and of the model's own passes. Out: a ``PassFlow`` of plain values for each pass. What counts as an edge
stands in ``docs/inside.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from inferspan import semconv
from inferspan.records import AttributeValue, FlowCall, FlowEdge, ModuleInfo, PassFlow, RequestEnd

from .operations import Operations
from .tensors import Made, Tensors, facts_of, tensors_in

__all__ = ["FlowLog"]

MOST_EDGES = 4_096
"""Edges of one pass."""
INPUT, OUTPUT = "input", "output"
_NOT_RECORDED = -2
_UNFOLLOWED = "data flow: operations"
_modes: Any = torch._C._len_torch_function_stack
_off: Any = torch._C.DisableTorchFunction
"""Inside of it no mode and no subclass sees what is asked of a tensor."""


class FlowLog:
    """What flows in one request. Used on the thread of the request only.

    Args:
        call: the request; its ``count`` is the number of its next module call.
        why_not: why operations are not followed; ``None`` if they are, asked at each pass. An empty text if they are not wanted.
        keep: takes each pass that ends.
    """

    def __init__(self, call: Any, why_not: Callable[[], str | None], keep: Callable[[Any, PassFlow], None]) -> None:
        self._call = call
        self._why_not = why_not
        self._keep = keep
        self._tensors = Tensors()
        self._operations: Operations | None = None
        self._frames: list[tuple[object, int]] = []
        self._calls: list[FlowCall] = []
        self._edges: dict[tuple[Any, ...], FlowEdge] = {}
        self._run = self._made = self._seen = self._passes = 0
        self._unknown: Counter[str] = Counter()
        self._notes: dict[str, None] = {}
        self._around: set[int] = set()
        """Calls with recorded calls inside."""
        self.edges = self.left_out = 0

    # ------------------------------------------------------------------------------------------------------------ passes
    def enter_model(self, inputs: Sequence[tuple[str, Any]]) -> None:
        """The model is called with these arguments by name."""
        self._passes += 1
        if self._passes > 1:
            return
        self._follow()
        with _off():
            for name, value in inputs:
                found = tensors_in(value, self._unknown)
                for index, tensor in enumerate(found):
                    label = name if len(found) == 1 else f"{name}[{index}]"
                    # An input that an earlier pass has returned, such as a state, stays what that pass has made.
                    if self._tensors.exact(tensor) is None:
                        self._tensors.add(tensor, self._new("input", label, -1))

    def leave_model(self, output: Any) -> None:
        """The model has returned, ``None`` after a failure."""
        self._passes = max(0, self._passes - 1)
        if self._passes:
            return
        self._unfollow()
        with _off():
            for tensor in tensors_in(output, self._unknown):
                for made, via in self._tensors.sources(tensor).items():
                    self._add(OUTPUT, made, -1, via, tensor, -1)

    def _follow(self, *, inside: bool = False) -> None:
        """Follow operations from now on; ``inside``: the model's own code runs already."""
        if self._operations is not None:
            return
        reason = self._why_not()
        if reason is None and inside and _modes():
            # The model may have entered it, and leaves it before the pass ends.
            reason = "a mode of the program is active"
        if reason is None:
            self._operations = Operations(self._tensors)
            self._operations.put()
        elif reason:
            self._notes[f"operations were not followed: {reason}"] = None

    def _unfollow(self) -> None:
        if self._operations is not None and self._operations.take_off():
            self._operations = None

    def compiling(self) -> None:
        """Something is compiled: no mode may be there."""
        if self._operations is not None:
            self._notes["operations were not followed to the end: something was compiled"] = None
            self._unfollow()

    def take(self, step: int | None) -> PassFlow | None:
        """The pass that has ended, ``None`` if nothing was seen of it; what follows is another one."""
        if self._operations is not None:
            self._unfollow()
        self._passes = self._seen = 0
        if not self._calls:
            return None
        calls, edges = tuple(self._calls), tuple(self._edges.values())
        self._calls, self._edges, self._frames = [], {}, []
        self._around.clear()
        left_out = {reason: count for reason, count in (self._unknown + self._tensors.left_out).items() if count}
        self._unknown, self._tensors.left_out = Counter(), Counter()
        self._run += 1
        self._tensors.prune()
        self.edges += len(edges)
        self.left_out += left_out.get("edges", 0) + left_out.get("tensors of a call", 0) + left_out.get("sources of a tensor", 0)
        flow = PassFlow(step, calls, edges, left_out, tuple(self._notes))
        self._keep(self._call, flow)
        return flow

    def settle(self, end: RequestEnd) -> RequestEnd:
        """The end of the request with the number of edges, and what was left out or not followed."""
        found: dict[str, AttributeValue] = {**end.attributes, semconv.FLOW_EDGES: self.edges}
        if self.left_out:
            found[semconv.FLOW_LEFT_OUT] = self.left_out
        if self._notes:
            told = found.get(semconv.UNOBSERVED)
            found[semconv.UNOBSERVED] = f"{told}; {_UNFOLLOWED}" if told else _UNFOLLOWED
        return replace(end, attributes=found)

    def close(self) -> None:
        """The request has ended: forget everything."""
        self._unfollow()
        self._tensors.clear()
        self._frames.clear()
        self._calls, self._edges = [], {}
        self._call = None

    # ------------------------------------------------------------------------------------------------------------- calls
    def enter(self, hook: object, info: ModuleInfo, inputs: Any) -> None:
        """A module is called; ``hook`` tells its calls from those of others."""
        count = self._call.count
        number = count - 1 if count > self._seen else _NOT_RECORDED
        self._seen = count
        parent = next((number for _, number in reversed(self._frames) if number >= 0), -1)
        self._frames.append((hook, number))
        if number < 0:
            return
        if not self._passes:
            # Hooks on the model itself were too late for this pass.
            self._follow(inside=True)
        self._calls.append(FlowCall(number, parent, info.name, info.type))
        self._around.add(parent)
        with _off():
            for tensor in tensors_in(inputs, self._unknown):
                sources = self._tensors.sources(tensor)
                if not sources and not isinstance(tensor, nn.Parameter):
                    self._unknown["inputs of unknown origin"] += 1
                for made, via in sources.items():
                    self._add(INPUT, made, number, via, tensor, -1)

    def leave(self, hook: object, info: ModuleInfo, output: Any) -> None:
        """It has returned."""
        if all(one is not hook for one, _ in self._frames):
            return
        while self._frames:
            one, number = self._frames.pop()
            if one is hook:
                break
        if number < 0:
            return
        with _off():
            tensors = tensors_in(output, self._unknown)
            # All of them before the first is known as one of this module: they may share memory. What the result of a module without
            # recorded ones inside depends on are its inputs, which is no edge.
            inside = number in self._around
            sources = [self._tensors.sources(tensor) if inside else {} for tensor in tensors]
            for tensor, found in zip(tensors, sources, strict=True):
                new = self._new("module", info.name, number)
                for made, via in found.items():
                    self._add(OUTPUT, made, number, via, tensor, new.tensor)
                self._tensors.add(tensor, new)

    def _new(self, origin: str, name: str, number: int) -> Made:
        self._made += 1
        return Made(origin, name, number, self._run, self._made - 1, None)

    def _add(self, kind: str, made: Made, target: int, via: tuple[str, ...], tensor: Tensor, into: int) -> None:
        now = made.run == self._run
        facts = facts_of(tensor)
        # A module may take a tensor itself and what was made of it: each way is an edge.
        key = (kind, made.tensor, target, into, facts, via)
        if key in self._edges:
            return
        if len(self._edges) >= MOST_EDGES:
            self._unknown["edges"] += 1
            return
        origin = made.origin if now or made.origin == "input" else "earlier"
        self._edges[key] = FlowEdge(
            kind, made.number if now else -1, target, origin, made.name, made.tensor, into, *facts, via
        )
