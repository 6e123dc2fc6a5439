"""What is looked at inside a model during recorded requests, and what the hooks of ``attaching`` write to.

Attached from the start of a recorded request to its end, in every step, and taken off while something is compiled. They return ``None``, so
nothing that they see is changed.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from inferspan import semconv
from inferspan.capture.attention.model import ModelAttention, settle
from inferspan.capture.device.memory import device_of
from inferspan.capture.modules.patterns import matches, paths_of
from inferspan.capture.modules.selection import select, walk
from inferspan.capture.values.deferred import Stability
from inferspan.capture.values.kept import KeptModules
from inferspan.capture.values.unseen import hidden
from inferspan.guard import contain, pass_on
from inferspan.records import ModuleBatch, ModuleInfo, RequestEnd
from inferspan.settings import Settings

from .collector import Collector, Found
from .functions import ModuleFunction, Results
from .inputs import InputLog, given
from .memory import Memory, MemoryLog
from .passes import PassWatch
from .plan import Plan
from .positions import PositionLog, head_of
from .results import BadOutput, ModuleResult, NonfiniteError, NumericsVerdict, TopLogits
from .watch import Looked, Numerics, WatchLog, count_now, tensors_in

__all__ = ["Inside", "InsideLog", "check_watched"]

_log = logging.getLogger("inferspan")
KEPT_RESULTS = 10_000
"""Results of functions that a model keeps, the latest ones."""
KEPT_PASSES = 1_000
"""Passes of which a model keeps the largest logits, the latest ones."""
MOST_EVENTS = 16
"""Events of one request: the first bad output of each module."""
MARKED = 1 << 40
"""Indices from here on are those of statistics that a recorded call gets later."""


class Inside:
    """What is to be looked at in one model, and what has been found."""

    def __init__(self, root: nn.Module, settings: Settings) -> None:
        self._root = weakref.ref(root)
        self.numerics, self.numerics_of_inputs, self.memory = Numerics(), Numerics(), Memory()
        self.stability, self.kept = Stability(), KeptModules()
        self.passes, self.attention = PassWatch(settings), ModelAttention(settings)
        self.configure(settings)
        self.functions: list[ModuleFunction] = []
        self.results: deque[ModuleResult] = deque(maxlen=KEPT_RESULTS)
        self.top_logits: deque[TopLogits] = deque(maxlen=KEPT_PASSES)
        self.headless = False
        """Whether logits of a language head are wanted, and none is known."""
        self.plan: dict[str, Plan] = {}
        """What is done at each module."""
        self.modules = 0
        """Modules that are looked at, or that were before the model was compiled; its leaves where that is not known."""
        self.reads_modules = False
        """Whether memory is read at some module, as of the last attachment."""

    @property
    def active(self) -> bool:
        """Whether anything is to be looked at."""
        return self.looks or self.read_memory != "none" or self.passes.active

    @property
    def looks(self) -> bool:
        """Whether more is to be done at modules than reading memory."""
        attends = self.attention.wanted != "none"
        return bool(self.watched != "none" or self.functions or self.inputs != "none" or self.positions or attends)

    def configure(self, settings: Settings) -> None:
        """Look at other modules from the next request on; the patterns have been checked."""
        self.on_nonfinite: str = settings.on_nonfinite
        self.watched: Any = settings.numerics
        self.read_memory: Any = settings.memory
        self.watches_inputs: bool = settings.numerics_inputs
        self.inputs: Any = _with_inputs(settings)
        """Modules whose recorded calls have statistics of inputs."""
        self.passes.configure(settings)
        self.positions = _positions(settings)
        """How many of the largest logits of each position are kept."""
        self.attention.configure(settings)

    def differs(self, settings: Settings) -> bool:
        """Whether other modules are to be looked at, or otherwise, than now."""
        now = (self.watched, self.read_memory, self.watches_inputs, self.inputs, bool(self.positions))
        passes = (self.passes.gradients.watched, self.passes.flow.watched, self.attention.wanted)
        if passes != (settings.gradients, settings.control_flow, settings.attention):
            return True
        then = (settings.numerics, settings.memory, settings.numerics_inputs, _with_inputs(settings), bool(_positions(settings)))
        return now != then

    def check(self, root: nn.Module, settings: Settings) -> None:
        """Raise ``SettingsError`` where a pattern matches no module."""
        check_watched(root, settings.numerics)
        check_watched(root, settings.memory, "memory")
        self.passes.check(root, settings)
        ModelAttention(settings).select(root)

    def entries(self, root: nn.Module) -> list[tuple[nn.Module, ModuleInfo, nn.Module]]:
        """The modules to look at, as ``select`` returns them.

        Raises:
            SettingsError: a name pattern matches no module.
        """
        found = check_watched(root, self.watched)
        self.plan = {info.name: Plan(watched=True, watches_inputs=self.watches_inputs) for _, info, _ in found}
        self.modules = len(found) or self.modules or sum(not module._modules for module in root.modules())
        known = {info.name for _, info, _ in found}

        def planned(module: nn.Module, info: ModuleInfo, parent: nn.Module) -> Plan:
            if info.name not in known:
                known.add(info.name)
                found.append((module, info, parent))
            return self.plan.setdefault(info.name, Plan())

        for entry in check_watched(root, self.inputs, "modules"):
            planned(*entry).inputs = True
        head = head_of(root) if self.positions else None
        self.headless = bool(self.positions) and head is None
        if head is not None:
            module = root.get_submodule(head)
            info = ModuleInfo(head, type(module).__name__, None, head)
            planned(module, info, root.get_submodule(head.rpartition(".")[0])).positions = True
        for entry in self.attention.select(root):
            planned(*entry).attends = True
        paths = paths_of(root) if self.functions else {}
        for function in self.functions:
            matched = [entry for entry in walk(root) if matches(entry[0], entry[1], function.pattern, "handle.on_module()", paths)]
            function.modules = tuple(path for path, _, _ in matched)
            for path, module, parent in matched:
                planned(module, ModuleInfo(path, type(module).__name__, None, path), parent).functions[function.when].append(function)
        for entry in check_watched(root, self.read_memory, "memory"):
            planned(*entry).memory = True
        for entry in self.passes.entries(root):
            if entry[1].name not in known:
                known.add(entry[1].name)
                found.append(entry)
        return found

    def take_over(self, other: Inside) -> None:
        """Go on with what another one has found, and with its functions: the model was taken out of the other's."""
        self.numerics, self.functions, self.results, self.memory = other.numerics, other.functions, other.results, other.memory
        self.stability = other.stability
        self.passes.take_over(other.passes)
        self.numerics_of_inputs, self.top_logits = other.numerics_of_inputs, other.top_logits
        self.attention.take_over(other.attention)

    def verdict(self) -> NumericsVerdict:
        """What is known of outputs, and of inputs where they are looked at."""
        inputs = self.numerics_of_inputs.verdict()
        return replace(self.numerics.verdict(), inputs=inputs if inputs.calls or self.watches_inputs else None)

    def device(self) -> torch.device | None:
        """Where the model has its first parameter."""
        root = self._root()
        return None if root is None else device_of(root)

    def begin(self, call: Any) -> InsideLog:
        """What the hooks write to in a request that begins."""
        return InsideLog(self, call, self.on_nonfinite)

    def forked(self) -> None:
        """Called in a forked child."""
        self.numerics.forked()
        self.passes.forked()
        self.numerics_of_inputs.forked()
        self.memory.forked()
        self.attention.forked()


def _with_inputs(settings: Settings) -> Any:
    """Modules of which figures of inputs are wanted."""
    return settings.modules if settings.input_stats and settings.steps != "none" else "none"


def _positions(settings: Settings) -> int:
    """How many of the largest logits of each position are wanted: they are content."""
    return settings.top_k if settings.top_k_positions == "all" and settings.capture_content != "NO_CONTENT" else 0


def check_watched(root: nn.Module, watched: Any, setting: str = "numerics") -> list[tuple[nn.Module, ModuleInfo, nn.Module]]:
    """The modules that a setting means; raises ``SettingsError`` where a pattern matches none."""
    return select(root, watched, "path", setting=setting) if watched not in ("none", "steps") else []


class InsideLog:
    """What was found inside during one request.

    Args:
        inside: what is looked at.
        call: the request.
        on_nonfinite: the setting.

    Attributes:
        latest: what was found in the last call of each module, until its statistics are recorded.
        waits: whether the first bad output raises.
        memory: readings of memory, if any are taken.
        steps: of the request, if it has some.
    """

    def __init__(self, inside: Inside, call: Any, on_nonfinite: str) -> None:
        self._inside = inside
        self._call = call
        self._warns = on_nonfinite == "warn"
        self.waits = on_nonfinite == "raise"
        self.watch = WatchLog(stability=inside.stability, kept=inside.kept)
        self.watch_inputs, self._inputs = WatchLog(of_inputs=True), InputLog()
        self.steps: Any = getattr(call, "steps", None)
        self.positions = PositionLog(inside.positions)
        self.latest: dict[str, list[Found]] = {}
        self.attention = inside.attention.begin(call)
        self._results = Results()
        self._abandoned = False
        self.passes = inside.passes.begin(call, self.step) if inside.passes.active else None
        self.memory: MemoryLog | None = None
        if inside.read_memory != "none":
            with contain("memory of modules"):
                self.memory = MemoryLog(call.owner.device)
                if self.steps is not None:
                    self.steps.memory = self.memory
        if self.steps is not None and inside.watched != "none":
            self.steps.watch = self.watch
        call.keeper = None if self.waits else self.watch.keeper
        if self.watch.keeper is not None:
            self.watch.keeper.records = call.output_stats is None and self.memory is None and self.attention is None
        if inside.looks or (self.memory is not None and inside.reads_modules):
            call.output_stats = Collector(self, call.output_stats)

    def step(self) -> int | None:
        """Number of the open step of the request."""
        steps = self.steps
        return steps.index if steps is not None and steps.open else None

    def look(self, info: ModuleInfo, output: Any) -> None:
        """A module has returned."""
        looked = self.watch.add(info.name, self.step(), perf_counter_ns(), output)
        if looked is not None:
            self.latest.setdefault(info.name, []).append(looked)

    def take(self, info: ModuleInfo, plan: Plan, args: Any, kwargs: Any) -> None:
        """A module is called."""
        looked = figures = None
        if plan.watches_inputs:
            looked = self.watch_inputs.add(info.name, self.step(), perf_counter_ns(), given(args, kwargs))
        # Calls that get no span have nowhere to show theirs.
        if plan.inputs and (self._call.calls_left > 0 or self._call.open_calls):
            figures = self._inputs.add(args, kwargs)
        for found in (figures, looked):
            if found is not None:
                self.latest.setdefault(info.name, []).append(found)

    def run(self, functions: Sequence[ModuleFunction], module: nn.Module, arguments: tuple[Any, Any], output: Any, name: str) -> None:
        """Run functions of the program for a call of a module."""
        for function in functions:
            result = function.run(module, *arguments, output, name) if function.active else None
            if result:
                try:
                    returned = self._results.add(name, self.step(), perf_counter_ns(), function.when, result)
                    if returned is not None:
                        self.latest.setdefault(name, []).append(returned)
                except Exception as error:
                    pass_on(error)
                    function.complain(f"returned what cannot be taken in ({type(error).__name__})", name)

    def failure(self, info: ModuleInfo, output: Any, inputs: Any) -> NonfiniteError | None:
        """The error to raise for an output with NaN or Inf; waits for the device."""
        for tensor in tensors_in(output, self.watch.left_out):
            nan, inf = count_now([tensor])
            if nan or inf:
                bad_in = count_now(tensors_in(inputs, self.watch.left_out))
                upstream = f"its inputs have {bad_in[0]:,} NaN and {bad_in[1]:,} Inf" if any(bad_in) else "its inputs are finite"
                return NonfiniteError(
                    info.name, self.step(), tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), nan, inf, upstream
                )
        return None

    @hidden
    def read(self) -> None:
        """Read what has been launched; may wait for the device."""
        if self.passes is not None:
            self.passes.read()
        if self._abandoned:
            return
        with contain("numerics watch"):
            if self.watch.read():
                self._call.nonfinite_seen = True
                self._mark_recorded()
        with contain("statistics of inputs"):
            self._inputs.read()
            if self.watch_inputs.read():
                self._call.nonfinite_seen = True
        if self.attention is not None:
            with contain("attention"):
                self.attention.read()
        with contain("results of functions"):
            self._inside.results.extend(Results.result(one, self._call.offset) for one in self._results.read())

    def _mark_recorded(self) -> None:
        """Give calls that were recorded, and of which nothing was known until now, their statistics."""
        for looked in self.watch.read_rows:
            if looked.row >= 0:
                looked.counted = self._mark(looked)
                looked.row = -1

    def _mark(self, looked: Looked) -> bool:
        # Of the calls of this module and number that had ended by then, the latest, if nobody has got its statistics.
        call, best, latest = self._call, None, -1
        for batch in (*call.pending, *call.staged):
            if isinstance(batch, ModuleBatch) and batch.statistics is call.found_statistics and hasattr(batch.calls, "end_of"):
                found = batch.calls.end_of(looked.row, looked.time)
                if found is not None and found[0] > latest and found[1].name == looked.module:
                    best, latest = batch, found[0]
        if best is None:
            return False
        slot = MARKED + len(call.found_statistics)
        best.calls.mark(looked.row, slot)  # type: ignore[attr-defined]
        call.found_statistics[slot] = looked.attributes()
        return True

    def abandon(self) -> None:
        """Ask the device nothing any more: only the thread of the request may."""
        self._abandoned = True

    def settle(self, end: RequestEnd) -> RequestEnd:
        """The end of the request with what was found; adds it to what is known of the model."""
        watch, call = self.watch, self._call
        hidden = call.compiled or "compiled" in (call.engine.unobserved or "")
        if hidden and self._inside.watched != "none":
            passes = 1 if self.steps is None else self.steps.index
            watch.left_out["in compiled code"] += max(0, passes - len(watch.steps)) * self._inside.modules
        firsts = self._inside.numerics.add(watch, call.offset)
        self._inside.numerics_of_inputs.add(self.watch_inputs, call.offset)
        counts = dict(end.nonfinite)
        for looked in watch.read_rows:
            for kind, count in (("nan", looked.nan), ("inf", looked.inf)):
                if count and not looked.counted:
                    counts[looked.module, kind] = counts.get((looked.module, kind), 0) + count
        if firsts and self._warns:
            _warn(firsts, len(watch.read_rows))
        end = replace(end, nonfinite=counts, bad_outputs=firsts[:MOST_EVENTS], top_logits=self._largest())
        if self.passes is not None:
            end = self.passes.settle(end, compiled=hidden)
        if self.memory is not None and not self._abandoned:
            end = self._with_memory(end, self.memory)
        return end if self.attention is None else settle(self._inside.attention, self.attention, end, compiled=hidden)

    def _largest(self) -> list[TopLogits]:
        """The largest logits of the passes, which the model keeps."""
        with contain("largest logits"):
            if not self._abandoned:
                owner = self._call.owner
                found = self.positions.read(self._call.offset, owner.decode_token if owner.tokenizer is not None else None)
                self._inside.top_logits.extend(found)
                return found
        return []

    def _with_memory(self, end: RequestEnd, memory: MemoryLog) -> RequestEnd:
        """The end of the request with what was read of memory."""
        with contain("memory of modules"):
            attributes, event = memory.attributes(), memory.event()
            self._inside.memory.add(memory, self._call.offset)
            events = end.events if event is None else (*end.events, (semconv.MEMORY_MODULES_EVENT, end.end_ns, event))
            return replace(
                end, attributes={**attributes, **end.attributes}, events=events, overhead_ns=end.overhead_ns + memory.overhead
            )
        return end

    def release(self) -> None:
        """Take the hooks off, and drop everything."""
        self._call.engine.release_inside(self._call.held)
        self._call.keeper = None
        self._call = self.attention = self.steps = None
        self.watch.drop()
        self.latest.clear()


def _warn(firsts: Sequence[BadOutput], calls: int) -> None:
    _log.warning("NaN or Inf in the outputs of %s modules, %s calls of one request; first %s", len(firsts), calls, firsts[0])
