"""Flush and close inferspan's own pipelines under one deadline, however many there are; flush the program's providers, never close them.

Each pipeline (a batch processor with its exporter, a metric reader) has a daemon thread that sleeps until it is asked: an interpreter
that is exiting refuses new threads, and one dead collector must not use up the time of the others. The caller waits until the
deadline and no longer; unfinished work is abandoned then. A provider of the program has such a thread too: its processors may wait for
an exporter without a limit. Nothing raises.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

from inferspan import guard
from inferspan.export.process_end import ProcessEnd

__all__ = ["Pipeline", "Pipelines"]

MOST_FLUSHERS = 8
"""Threads for the program's providers, each of which may be blocked by one of them. More providers share these."""


class Pipeline(NamedTuple):
    """Something that sends: ``flush`` and ``close`` are given the seconds that are left, ``flush`` says whether all was sent."""

    name: str
    flush: Callable[[float], bool]
    close: Callable[[float], None]


class _Outcome:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.success = False


class _Worker:
    """A daemon thread that runs functions one after the other; if it cannot be started, the next caller runs them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.start()

    def start(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], bool], _Outcome] | None] = SimpleQueue()
        self._started = False
        self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, args=(self._jobs,), name=f"inferspan-{self._name}", daemon=True)
        # A process at its limit, and an interpreter that is exiting, start none.
        with contextlib.suppress(RuntimeError, MemoryError, OSError):
            thread.start()
            self._started = True

    def submit(self, job: Callable[[], bool], *, here: bool = True) -> _Outcome:
        """Have ``job`` run; ``here``: on the calling thread if there is no other."""
        outcome = _Outcome()
        self._jobs.put((job, outcome))
        if not self._started:
            self._start_thread()
        if not self._started and here:
            self._jobs.put(None)
            self._run(self._jobs)
        return outcome

    def stop(self) -> None:
        """End the thread after the jobs submitted so far."""
        self._jobs.put(None)

    def _run(self, jobs: SimpleQueue[tuple[Callable[[], bool], _Outcome] | None]) -> None:
        while (item := jobs.get()) is not None:
            job, outcome = item
            with guard.contain(f"{self._name} pipeline"):
                outcome.success = job()
            done = outcome.done
            del item, job, outcome  # while it waits for the next one, this thread keeps no provider
            done.set()


class _Flusher(_Worker):
    """Flushes providers of the program and keeps none of them alive; the thread ends with the last one."""

    def __init__(self) -> None:
        self._providers: list[Callable[[], Any]] = []
        self.stopped = False
        super().__init__("provider")

    @property
    def providers(self) -> list[Any]:
        """Those that exist."""
        return [provider for reference in self._providers if (provider := reference()) is not None]

    def take(self, provider: Any) -> bool:
        """Flush this one too; false if the thread has ended meanwhile, because all others were collected."""
        # From here on the thread stays: the collection of another provider, which may come at any instruction, finds this one.
        self._providers.append(self._reference_to(provider))
        return not self.stopped

    def _reference_to(self, provider: Any) -> Callable[[], Any]:
        try:
            return weakref.ref(provider, self._collected)
        except TypeError:  # of a class with slots
            return lambda: provider

    def _collected(self, _: Any) -> None:
        if all(reference() is None for reference in self._providers):
            self.stopped = True
            self.stop()


def _flush_of(provider: Any) -> Callable[[float], bool]:
    """A flush that is true if the provider does not deny that it has sent everything: many return nothing."""

    def flush(seconds: float) -> bool:
        if _is_closed(provider):
            return True
        done, end = True, time.monotonic() + seconds
        for part in _senders(provider):
            # What waited behind a flush that was given up is not done late.
            left = end - time.monotonic()
            done = left > 0 and part.force_flush(max(1, int(left * 1000))) is not False and done
        return done

    return flush


def _senders(provider: Any) -> list[Any]:
    """What is flushed of a provider: of the meter providers of the SDK the readers that send by themselves.

    The others collect in ``force_flush()`` for nobody. What is read from them later, as by Prometheus, would lack the values of that time.
    """
    config = getattr(provider, "_sdk_config", None)
    readers = getattr(provider, "_metric_readers", None) or getattr(config, "metric_readers", None)
    if readers is None or not _inherits(provider, "MeterProvider"):
        return [provider]
    return [reader for reader in readers if not _inherits(reader, "MetricReader")]


def _inherits(part: Any, name: str) -> bool:
    """Whether ``force_flush`` is that of the SDK's class of this name."""
    own = next((kind for kind in type(part).__mro__ if "force_flush" in vars(kind)), None)
    return own is not None and own.__name__ == name and own.__module__.startswith("opentelemetry.sdk.")


def _is_closed(provider: Any) -> bool:
    """Whether the program has shut a provider down, as far as the SDK's show it: it holds nothing, and refuses to flush."""
    group = getattr(provider, "_active_span_processor", None) or getattr(provider, "_multi_log_record_processor", None)
    parts = getattr(group, "_span_processors", None) or getattr(group, "_log_record_processors", None) or ()
    holders = [provider, *parts, *(getattr(part, "_batch_processor", None) for part in parts)]
    return any(getattr(holder, name, None) is True for holder in holders for name in ("_shutdown", "done"))


class Pipelines:
    """All pipelines of one process, the providers of the program that something is recorded with, and the hooks that close them at its end.

    Args:
        clock: seconds, never going back.
        begin: called first when the process ends.
        tell: called last then; is given the seconds that it was to wait, and tells what was not delivered.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        begin: Callable[[], None] = lambda: None,
        tell: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._clock = clock
        self._pipelines: tuple[tuple[Pipeline, _Worker], ...] = ()
        self._flushers: tuple[_Flusher, ...] = ()
        self._lookups: tuple[Callable[[], Any], ...] = ()
        self._changing = threading.RLock()
        """Held while one of these tuples is replaced by one with more or fewer; who reads them has all of one moment."""
        self._sources: tuple[Callable[[], None], ...] = ()
        self._source_worker: _Worker | None = None
        self._end = ProcessEnd(self.force_flush, self.shutdown, begin=begin, tell=tell)
        self._follows_fork = False

    def add(self, pipeline: Pipeline) -> None:
        """Take over a pipeline and start the thread that will flush and close it."""
        with self._changing:
            self._pipelines += ((pipeline, self._worker(pipeline.name)),)

    def owns(self, name: str) -> bool:
        """Whether a pipeline of this name is open."""
        return any(pipeline.name == name for pipeline, _ in self._pipelines)

    def borrow(self, provider: Any) -> None:
        """Flush a provider of the program with the pipelines from now on, once, and as long as it exists; it is never closed."""
        if not callable(getattr(provider, "force_flush", None)):
            return
        with self._changing:
            flushers = [each for each in self._flushers if not each.stopped]
            if any(known is provider for each in flushers for known in each.providers):
                return
            chosen = None if len(flushers) < MOST_FLUSHERS else min(flushers, key=lambda each: len(each.providers))
            if chosen is None or not chosen.take(provider):
                self._follow_fork()
                flushers.append(_Flusher())
                flushers[-1].take(provider)
            self._flushers = tuple(flushers)

    def borrow_found(self, lookup: Callable[[], Any]) -> None:
        """Borrow the provider that ``lookup`` finds, now and again before each flush; it returns ``None`` if there is none."""
        with self._changing:
            if lookup not in self._lookups:
                self._lookups += (lookup,)
        # Now, and not first in a handler of signals: what that has interrupted may hold a lock that starting a thread takes.
        self._look_up()

    def _look_up(self) -> None:
        for lookup in self._lookups:
            with guard.contain("flush of a provider"):
                self.borrow(lookup())

    def flush_first(self, source: Callable[[], None]) -> Callable[[], None]:
        """Call ``source`` before every flush and at the end, so that it hands over what it holds; returns a function that removes it."""
        with self._changing:
            if self._source_worker is None:
                self._source_worker = self._worker("source")
            self._sources += (source,)

        def remove() -> None:
            with self._changing:
                self._sources = tuple(item for item in self._sources if item is not source)

        return remove

    def force_flush(self, timeout: float) -> bool:
        """Send everything recorded so far, also through the providers of the program.

        Args:
            timeout: longest time in seconds that the caller will wait.

        Returns:
            Whether all of it was sent in that time, as far as the providers of the program say so.
        """
        return self._flush(timeout, here=True)

    def _flush(self, timeout: float, *, here: bool) -> bool:
        deadline = self._clock() + timeout
        handed_over = self._hand_over(deadline, here=here)
        self._look_up()
        jobs = [(worker, self._flushing(pipeline.flush, deadline)) for pipeline, worker in self._pipelines]
        # Each is kept until it is flushed: the thread ends with the last one.
        borrowed = [(each, provider) for each in self._flushers for provider in each.providers]
        jobs += [(worker, self._flushing(_flush_of(provider), deadline)) for worker, provider in borrowed]
        return self._wait(jobs, deadline, here=here) and handed_over

    def shutdown(self, timeout: float) -> bool:
        """Send everything recorded so far and close all pipelines; a second call has nothing left to do.

        Args:
            timeout: longest time in seconds that the caller will wait.

        Returns:
            Whether everything was closed in that time.
        """
        deadline = self._clock() + timeout
        handed_over = self._hand_over(deadline)
        with self._changing:
            pipelines, self._pipelines = self._pipelines, ()
        jobs = [(worker, self._closing(pipeline, deadline)) for pipeline, worker in pipelines]
        closed = self._wait(jobs, deadline)
        for _, worker in pipelines:
            worker.stop()
        return closed and handed_over

    def close(self, chosen: Sequence[Pipeline], timeout: float) -> bool:
        """Send what is in some of the pipelines and close them; the others stay open.

        Args:
            chosen: those that were added and are closed now.
            timeout: longest time in seconds that the caller will wait.

        Returns:
            Whether they were closed in that time.
        """
        deadline = self._clock() + timeout
        with self._changing:
            found = [pair for pair in self._pipelines if pair[0] in chosen]
            self._pipelines = tuple(pair for pair in self._pipelines if pair[0] not in chosen)
        closed = self._wait([(worker, self._closing(pipeline, deadline)) for pipeline, worker in found], deadline)
        for _, worker in found:
            worker.stop()
        return closed

    @property
    def closes_at_exit(self) -> bool:
        """Whether ``close_at_exit`` has been called."""
        return self._end.closes_at_exit

    def close_at_exit(self, timeout: float) -> None:
        """Shut down when the process ends: see ``ProcessEnd.close_at_exit``."""
        self._end.close_at_exit(timeout)

    def flush_at_sigterm(self, timeout: float, *, over_handlers: bool = True) -> bool:
        """Flush on SIGTERM: see ``ProcessEnd.flush_at_sigterm``."""
        return self._end.flush_at_sigterm(timeout, over_handlers=over_handlers)

    def finish_with(self, action: Callable[[], None]) -> None:
        """Call ``action`` when all is closed: see ``ProcessEnd.finish_with``."""
        self._end.finish_with(action)

    def look_at_sigterm(self) -> None:
        """Flush on SIGTERM also if the program has set the default disposition since: see ``ProcessEnd.look_at_sigterm``."""
        self._end.look_at_sigterm()

    def _worker(self, name: str) -> _Worker:
        self._follow_fork()
        return _Worker(name)

    def _follow_fork(self) -> None:
        if not self._follows_fork and hasattr(os, "register_at_fork"):
            # A child of fork() has none of our threads, and cannot start any once it is exiting.
            os.register_at_fork(after_in_child=self._restart)
            self._follows_fork = True

    def _restart(self) -> None:
        self._changing = threading.RLock()  # who held it does not exist in the child
        for _, worker in self._pipelines:
            worker.start()
        for each in self._flushers:
            if not each.stopped:
                each.start()
        if self._source_worker is not None:
            self._source_worker.start()

    def _hand_over(self, deadline: float, *, here: bool = True) -> bool:
        # On a thread of its own: in a signal handler, the interrupted code may hold a lock that a source wants.
        if self._source_worker is None or not self._sources:
            return True
        worker = self._source_worker
        return self._wait([(worker, self._calling(source)) for source in self._sources], deadline, here=here)

    def _wait(self, jobs: Sequence[tuple[_Worker, Callable[[], bool]]], deadline: float, *, here: bool = True) -> bool:
        outcomes = [worker.submit(job, here=here) for worker, job in jobs]
        return all([outcome.done.wait(max(0.0, deadline - self._clock())) and outcome.success for outcome in outcomes])

    @staticmethod
    def _calling(source: Callable[[], None]) -> Callable[[], bool]:
        def job() -> bool:
            source()
            return True

        return job

    def _flushing(self, flush: Callable[[float], bool], deadline: float) -> Callable[[], bool]:
        return lambda: flush(max(0.0, deadline - self._clock()))

    def _closing(self, pipeline: Pipeline, deadline: float) -> Callable[[], bool]:
        def job() -> bool:
            pipeline.close(max(0.0, deadline - self._clock()))
            return True

        return job
