"""Windows in which the forward passes of a model are profiled: how they are opened, which request has one, and the results.

``with handle.profile(steps=3):``, a setting or a signal opens a window on a model. The first recorded request that begins a pass in it, on
any thread, has it until it ends; then the next one may. Each pass has a profiler of its own, so none is open while code outside of
the model runs. If a pass cannot be profiled, the log and ``Window.note`` have one line; the program is not affected.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from types import TracebackType

from inferspan import semconv
from inferspan.capture.budget import Budget
from inferspan.capture.compile.transforms import is_capturing
from inferspan.guard import contain
from inferspan.records import AttributeValue, ModuleCalls, Profiled

from .events import ProfilerEvent, place
from .torch_profiler import OpenProfiler, open_profiler

__all__ = ["Taken", "Window", "WindowClaim", "Windows"]

_log = logging.getLogger("inferspan")
DETACHED = "the model is not instrumented any more"
Taken = tuple[Sequence[Profiled], Mapping[int, float]]


class Window:
    """A profiler window and its results so far; made by ``Handle.profile()``.

    Args:
        windows: those of the model; ``None`` if it is not instrumented any more.
        steps: passes that are wanted.
        cpu_ops: whether operations get spans; ``None``: only where there are no kernels, on a model without a CUDA device.
        skip_first: whether the first call of the model, which warms up, is passed over.
        leave: called when the ``with`` block ends.
    """

    def __init__(
        self,
        windows: Windows | None,
        steps: int,
        *,
        cpu_ops: bool | None,
        skip_first: bool = False,
        leave: Callable[[], None] | None = None,
    ) -> None:
        self.wanted = steps
        """Forward passes that were asked for."""
        self.steps = 0
        """Forward passes that were profiled."""
        self.kernels = 0
        """Kernels, copies and memory settings of them, those without a span included."""
        self.kernel_seconds = 0.0
        """Time that those took on the device, in seconds."""
        self.collective_seconds = 0.0
        """Time in which at least one collective with other ranks ran, in seconds: waiting for them and moving data."""
        self.ops = 0
        """Operations that the model called, without those that other operations ran."""
        self.spans_dropped = 0
        """Kernels and operations that got no span because the budget was spent."""
        self.note: str | None = None
        """Why passes were not profiled, if some were not."""
        self.cpu_ops = cpu_ops
        self.skip_first = skip_first
        self.holder = threading.Lock()
        self.closed = False
        self._windows = windows
        self._leave = leave

    @property
    def left(self) -> int:
        """Passes that are still to be profiled."""
        return 0 if self.closed else max(0, self.wanted - self.steps)

    def tell(self, note: str) -> None:
        """Note why a pass is not profiled; logged once for each window and cause."""
        if self.note != note:
            self.note = note
            _log.warning("nothing is profiled for the moment: %s; your program is not affected", note)

    def __enter__(self) -> Window:
        with contain("profiler window"):
            if self._windows is None:
                self.tell(DETACHED)
            else:
                self._windows.open(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contain("profiler window"):
            self.closed = True
            if self._windows is not None:
                self._windows.close(self)
            if self._leave is not None:
                self._leave()
            if not self.steps and self.note is None:
                shut = self._windows is not None and self._windows.is_shut
                self.tell(DETACHED if shut else "no recorded forward pass of the model ran in the window")

    def __repr__(self) -> str:
        seen = f"{self.steps} of {self.wanted} passes, {self.kernels} kernels, {self.ops} operations"
        dropped = f", {self.spans_dropped} without a span" if self.spans_dropped else ""
        shared = f", {self.collective_seconds * 1e3:.3g} ms in collectives" if self.collective_seconds else ""
        return f"<inferspan profile: {seen}{shared}{dropped}{f'; {self.note}' if self.note else ''}>"


class Windows:
    """The window of one model, if there is one.

    Args:
        device: returns the kind of the model's device, ``"cpu"`` or ``"cuda"`` for instance.
    """

    def __init__(self, device: Callable[[], str | None]) -> None:
        self._device = device
        self.active = False
        """Whether a request should ask for a window: the only check if there is none."""
        self.is_shut = False
        """Whether the model is not instrumented any more."""
        self._lock = threading.Lock()
        self._window: Window | None = None
        self._asked: Callable[[], Window] | None = None

    def open(self, window: Window) -> None:
        """Make ``window`` the model's, unless there is one already."""
        with self._lock:
            if self._window is not None and self._window.left:
                window.closed = True
                refused = True
            else:
                self._window, self.active, refused = window, True, False
        if refused:
            window.tell("the model has a profiler window already")

    def close(self, window: Window) -> None:
        """End ``window``; a pass that runs in it is profiled to its end."""
        with self._lock:
            if self._window is window:
                self._window = None
                self.active = self._asked is not None

    def ask(self, make: Callable[[], Window]) -> None:
        """Have the window that ``make`` returns opened at the next pass; takes no lock, for signal handlers."""
        self._asked = make
        self.active = True

    def claim(self, *, first_call: bool) -> WindowClaim | None:
        """The claim of the asking request on the window, if there is one and it is free."""
        asked, self._asked = self._asked, None
        if self.is_shut:
            return None
        if asked is not None:
            self.open(asked())
        with self._lock:
            window = self._window
            if window is not None and not window.left:
                window = self._window = None
            self.active = window is not None or self._asked is not None
        if window is None or (window.skip_first and first_call) or not window.holder.acquire(blocking=False):
            return None
        return WindowClaim(window, self._device())

    def shut(self) -> None:
        """No pass is profiled any more; one that is running is closed by its own thread."""
        with self._lock:
            self.is_shut = True
            window, self._window, self._asked, self.active = self._window, None, None, False
        if window is not None:
            window.closed = True

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the locks; a window stays with the parent."""
        self._lock = threading.Lock()
        self._window, self.active = None, self._asked is not None


class WindowClaim:
    """The claim of one request on a window."""

    def __init__(self, window: Window, device: str | None) -> None:
        self.window = window
        self.steps = 0
        self.attributes: dict[str, AttributeValue] = {}
        """Attributes of the span of the last profiled pass."""
        self._device = device
        self.closing_ns = 0
        """Time that closing the profiler and reading it took."""
        self._profiler: OpenProfiler | None = None
        self._since = 0
        self._until = 0
        self._events: list[ProfilerEvent] | None = None
        self._released = False

    @property
    def due(self) -> bool:
        """Whether the next pass is to be profiled."""
        return self.window.left > 0

    @property
    def with_ops(self) -> bool:
        """Whether operations get spans."""
        return self._device != "cuda" if self.window.cpu_ops is None else self.window.cpu_ops

    @property
    def holds_events(self) -> bool:
        """Whether a pass has been profiled that ``take`` has not been called for."""
        return self._events is not None

    def begin(self) -> None:
        """Open the profiler: the pass is about to start on this thread."""
        if self._profiler is not None or not self.due:
            return
        if self._device == "cuda" and is_capturing():
            self.window.tell("a CUDA graph is being captured")
            return
        opened = open_profiler("cuda" if self._device == "cuda" else None)
        if isinstance(opened, str):
            self.window.tell(opened)
            return
        self._profiler = opened
        self._since = perf_counter_ns()

    def end(self, now: int) -> None:
        """Close the profiler: the pass ended at ``now``. On CUDA this waits for the device."""
        profiler = self._profiler
        if profiler is None or not profiler.on_this_thread:
            return
        self._profiler = None
        self._until = now
        began = perf_counter_ns()
        profiler.stop()
        with contain("profiler window"):
            self._events = profiler.events()
        self.closing_ns += perf_counter_ns() - began
        if self._events is not None:
            self.steps += 1
            self.window.steps += 1

    def take(self, calls: ModuleCalls, budget: Budget, *, passes: int, modules: int, shown: bool) -> Taken:
        """What the window has seen of the pass that has ended; ``attributes`` is then what its own span says of it.

        Args:
            calls: module calls of the pass.
            budget: of the request.
            passes: profiled passes that this request may still have.
            modules: module spans that each of them will want.
            shown: whether the pass has a span; without one there is no place for anything.

        Returns:
            Records, and seconds in collectives by the number of a module call.
        """
        events, self._events = self._events, None
        if events is None:
            return (), {}
        numbers = calls.columns().numbers
        placed = place(
            events,
            calls,
            since=self._since,
            until=self._until,
            first=max(numbers, default=-1) + 1,
            limit=budget.profiled_allowed(passes, modules) if shown else 0,
            with_ops=self.with_ops,
            device=self._device or "",
        )
        budget.spend(len(placed.records))
        budget.leave_out(placed.left_out)
        self.window.kernels += placed.kernels
        self.window.kernel_seconds += placed.kernel_ns / 1e9
        self.window.ops += placed.ops
        self.window.spans_dropped += placed.left_out
        if self._device == "cuda" and events and not placed.kernels:
            self.window.tell("the profiler has seen no kernel of this pass; another program may have taken the device's counters")
        self.window.collective_seconds += placed.collective_ns / 1e9
        self.attributes = {semconv.PROFILER_OPS: placed.ops, semconv.PROFILER_PASS_TIME: (placed.until - self._since) / 1e9}
        if placed.collective_ns:
            self.attributes[semconv.PROFILER_COLLECTIVE_TIME] = placed.collective_ns / 1e9
        if self._device == "cuda":
            self.attributes |= {semconv.PROFILER_KERNELS: placed.kernels, semconv.PROFILER_KERNEL_TIME: placed.kernel_ns / 1e9}
        return placed.records, placed.collectives

    def release(self) -> None:
        """The request has ended; once only. Closes a profiler that it left open, if this is its thread."""
        if self._released:
            return
        profiler, self._profiler = self._profiler, None
        try:
            if profiler is not None and profiler.on_this_thread:
                profiler.stop()
        finally:
            self._released = True
            self._events = None
            self.window.holder.release()
