"""The recording interface: every way of running a model becomes a request through the calls in this file.

An adapter translates its loop into ``start``, phases, steps and ``finish``, and knows nothing of spans. Phases, steps, tokens, statistics
of logits, device times, the span budget, metrics and error handling are written once, behind it.

    request = recording.start(kind, owner)
    request.begin_phase("prefill")
    request.begin_step(inputs=ids)              # before a forward pass
    request.end_step(logits=logits, tokens=ids) # after it, or once its tokens are chosen
    request.end_phase()
    request.finish(outcome)                     # exactly once

Begin and end nest; an end that is missing when the request finishes is closed with the request's failure. Every call returns at once and
contains its own errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter_ns
from typing import Any, Protocol, TypeVar

from torch import Tensor

from inferspan import clock, semconv
from inferspan.guard import contain
from inferspan.records import Attributes, AttributeValue, Failure, ModelInfo, ModuleCalls, RequestEnd, RequestStart
from inferspan.roofline.request import OpenRoofline

from .budget import Budget
from .call import Call, around_here, current
from .inside.functions import function_runs
from .outcome import Outcome
from .owner import Owner
from .request import Request

__all__ = ["UNRECORDED", "Outcome", "Request", "Unrecorded", "open_call", "run_recorded", "start"]

C = TypeVar("C", bound=Call)


class Unrecorded:
    """Stands for a request where telemetry is switched off: every call does nothing."""

    recording = False

    def __bool__(self) -> bool:
        return False

    def begin_phase(self, name: str, *, at: int | None = None, then: str | None = None) -> None:
        """Do nothing."""

    def begin_stage(self, name: str, *, at: int | None = None, attributes: Attributes | None = None) -> None:
        """Do nothing."""

    def end_phase(self, failure: Failure | None = None, *, at: int | None = None, attributes: Attributes | None = None) -> None:
        """Do nothing."""

    def begin_step(self, rows: int | None = None, tokens: int | None = None, *, inputs: Tensor | None = None) -> None:
        """Do nothing."""

    def end_step(self, logits: Tensor | None = None, tokens: Tensor | None = None, failure: Failure | None = None) -> None:
        """Do nothing."""

    def add_modules(self, calls: ModuleCalls) -> None:
        """Do nothing."""

    def close(self, failure: Failure | None = None, *, at: int | None = None) -> None:
        """Do nothing."""

    def finish(self, outcome: Outcome) -> None:
        """Do nothing."""

    def fail(self, error: BaseException) -> None:
        """Do nothing."""


UNRECORDED = Unrecorded()


def start(
    kind: str,
    owner: Owner,
    parent: Call | None = None,
    *,
    operation: str | None = None,
    root: object = None,
    cached: int = 0,
    bound: bool = True,
    streamer: Callable[[], Any] | None = None,
    info: ModelInfo | None = None,
    now: Callable[[], int] = perf_counter_ns,
    offset: Callable[[], int] = clock.offset,
    **facts: AttributeValue,
) -> Request | Unrecorded:
    """Begin a request; its span starts here.

    Args:
        kind: of request, such as ``generate``.
        owner: instrumentation of the model; its ``recorder`` makes spans and their ids.
        parent: request inside which this one runs, default the innermost one of the thread.
        operation: name of the operation in the conventions.
        root: module whose forward passes are steps of this request rather than requests of their own.
        cached: positions of a row that are in the cache when it begins.
        bound: whether it stays on this thread, where it is then the innermost one.
        streamer: returns the streamer of the call while it lives; the request may belong to the span in which it was made.
        info: facts of the model in this call, default as they are now.
        now: monotonic clock, in nanoseconds.
        offset: what is added to its readings, for nanoseconds since the epoch, unless a request is around.
        facts: attributes of the request span from its start on.

    Returns:
        The request, ``UNRECORDED`` (which is false) where the caller has switched telemetry off or an error of ours was contained.
    """
    with contain(f"start of {kind}()"):
        made = partial(Request, kind, owner, budget=Budget(owner.settings.span_budget), root=root, cached=cached, now=now)
        def ready(request: Request) -> None:
            request.overhead = now() - request.start
            if bound:
                request.push()

        request = open_call(
            kind, owner, made, parent, operation=operation, facts=facts, streamer=streamer, info=info, ready=ready, now=now, offset=offset
        )
        if request is not None:
            return request
    return UNRECORDED


class Recorded(Protocol):
    """What ends a request with its call."""

    def finish(self, result: Any) -> None:
        """The call has returned."""

    def fail(self, error: BaseException) -> None:
        """The call has raised, or an interrupt has come while the request was being ended; does nothing if that is done."""


def run_recorded(
    recorded: Recorded,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    first: Callable[[], None] | None = None,
) -> Any:
    """Call ``function``, end its request with the result or the exception, and pass on either; also where an interrupt comes meanwhile.

    Args:
        recorded: ends the request; contains its errors.
        function: what to call.
        args: its arguments by position.
        kwargs: its arguments by name.
        first: called before; an exception in it ends the request as well.
    """
    ended = False
    try:
        try:
            if first is not None:
                first()
            result = function(*args, **kwargs)
        except BaseException as error:
            recorded.fail(error)
            ended = True
            raise
        recorded.finish(result)
        ended = True
        return result
    finally:
        interrupt = None if ended else sys.exc_info()[1]
        if interrupt is not None:
            # It has come through the code that ends the request, perhaps before that had begun.
            recorded.fail(interrupt)


def _is_nested(kind: str, operation: str | None, outer: Call | None) -> bool:
    """Whether a request inside ``outer`` stays out of the totals, because another one counts its tokens."""
    if outer is None:
        return False
    if operation == semconv.OPERATION_EMBEDDINGS:
        return outer.is_inside("embedded")
    return kind == "forward" or outer.is_inside("generated")


def open_call(
    kind: str,
    owner: Owner,
    make: Callable[..., C],
    parent: Call | None = None,
    *,
    operation: str | None = None,
    facts: Mapping[str, AttributeValue] | None = None,
    streamer: Callable[[], Any] | None = None,
    info: ModelInfo | None = None,
    attached: bool = True,
    ready: Callable[[C], None] | None = None,
    now: Callable[[], int] = perf_counter_ns,
    offset: Callable[[], int] = clock.offset,
) -> C | None:
    """Start the span of a request and make the call that records it, for kinds of requests that have a call of their own.

    Args:
        kind: of request.
        owner: instrumentation of the model.
        make: makes the call from ``scope``, ``start``, ``offset`` and ``outer``. If it raises, the span ends, and the exception passes.
        parent: as for ``start``, and so are the others.
        operation: name of the operation in the conventions.
        facts: attributes of the request span from its start on.
        streamer: as for ``start``.
        info: as for ``start``.
        attached: whether its span is the current one on this thread until it ends; false for a request that other threads work on.
        ready: is given the call; if it raises, the call is withdrawn.
        now: monotonic clock, in nanoseconds.
        offset: what is added to its readings, for nanoseconds since the epoch, unless a request is around.

    Returns:
        The call, or ``None`` where the caller has switched telemetry off, or the model is paused.
    """
    if function_runs():
        return None
    outer = current.call if parent is None else parent
    # A loop by hand is around this request without being on the stack of this thread, where ``outer`` will be put again.
    around = around_here() if outer is None else outer
    if not owner.pausing.admits(around):
        return None
    began, added = now(), offset() if around is None else around.offset
    nested = _is_nested(kind, operation, around)
    model = info or owner.info
    # They know what there is by now, whatever interrupt comes.
    scopes: list[Any] = []
    made: list[C] = []
    try:
        scope = owner.recorder.start(
            RequestStart(kind, operation, model, began + added, nested, facts or {}, streamer, attached, scopes.append),
            None if around is None else around.scope,
        )
        if scope is None:
            return None
        call = make(scope=scope, start=began, offset=added, outer=outer, made=made)
        if model.costs is not None:
            call.roofline = OpenRoofline(model.costs, every=owner.settings.roofline == "all")
        owner.pausing.begins(call)
        if ready is not None:
            ready(call)
        return call
    except BaseException:
        # Nothing else would end the request: its span would stay the current one, and its observers on the modules.
        for left in made:
            _withdraw(left)
        for opened in scopes:
            opened.end(RequestEnd(began + added, None, {}))
        raise


def _withdraw(call: Call) -> None:
    """Take off what a call has attached that nobody knows yet. Contains errors of its own."""
    if current.call is call:
        current.call = call.outer
    with contain("start of a request"):
        Call.release(call)
        if call.held:
            call.held[-1].release_all(call.held)
        if call.pausing is not None:
            call.pausing.ends(call)
