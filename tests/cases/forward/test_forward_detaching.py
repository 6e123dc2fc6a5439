"""Plain forward passes in several threads, and models that are detached while they run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace import Span, SpanProcessor
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from tests.cases import models
from tests.cases.forward.nets import HIDDEN, LAYERS, Net, Recursive, fail, hooks_on, interrupt, names
from tests.cases.telemetry import Telemetry


def test_two_threads_forward_and_generate(telemetry: Telemetry) -> None:
    """Plain forwards and generate() of one model in several threads: each is its own trace with its own modules."""
    model = models.llama()
    handle = telemetry.instrument(model)
    errors: list[BaseException] = []

    def work(generates: bool) -> None:
        try:
            with torch.no_grad():
                for _ in range(6):
                    if generates:
                        model.generate(models.prompt(), max_new_tokens=4, min_new_tokens=4)
                    else:
                        model(models.prompt())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index % 2 == 0,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handle.uninstrument()
    assert not errors
    telemetry.check()
    assert telemetry.usage() == [(6, 4)] * 12
    assert len(telemetry.roots()) == 24 and hooks_on(model) == 0
    traces = {span.context.trace_id for span in telemetry.spans() if span.context}
    assert len(traces) == 24


def test_uninstrument_inside_a_forward_and_from_another_thread(telemetry: Telemetry) -> None:
    """Detaching while the model runs changes no result, is no error, and leaves no hook once the pass has returned."""
    for elsewhere in (False, True):
        model = Net()
        want = model(hidden=HIDDEN)
        handle = telemetry.instrument(model)

        def detach(handle: Any = handle, elsewhere: bool = elsewhere) -> None:
            if elsewhere:
                thread = threading.Thread(target=handle.uninstrument)
                thread.start()
                thread.join()
            else:
                handle.uninstrument()

        model.layers[0].before = detach
        assert torch.equal(model(hidden=HIDDEN), want)
        model.layers[0].before = None
        assert torch.equal(model(hidden=HIDDEN), want)
        assert hooks_on(model) == 0
        telemetry.instrument(model)
        model(hidden=HIDDEN)
    telemetry.check()
    assert [(span.parent, span.status.is_ok) for span in telemetry.forwards()] == [(None, True)] * 4


def test_uninstrument_and_again_inside_a_forward(telemetry: Telemetry) -> None:
    """Detaching and instrumenting anew while the model runs, with the user's exception on top, hides nothing and leaks nothing."""
    model = Net()
    handles = [telemetry.instrument(model)]

    def swap() -> None:
        handles[-1].uninstrument()
        handles.append(telemetry.instrument(model))
        fail()

    model.layers[0].before = swap
    for _ in range(3):
        with pytest.raises(ValueError, match="layer failed"):
            model(hidden=HIDDEN)
    handles[-1].uninstrument()
    telemetry.check()
    assert hooks_on(model) == 0


def test_detached_at_the_very_start_of_a_forward(telemetry: Telemetry) -> None:
    """Where uninstrument() comes while the request is being opened, the span ends when the pass returns, and is no error."""
    handle: Any = None

    class Detaches(SpanProcessor):
        def on_start(self, span: Span, parent_context: object = None) -> None:
            handle.uninstrument()

    telemetry.tracer_provider.add_span_processor(Detaches())
    handle = telemetry.instrument(model := Net())
    want = Net.forward(model, hidden=HIDDEN)
    assert torch.equal(model(hidden=HIDDEN), want)
    telemetry.check()
    assert [(span.name, (span.attributes or {}).get(semconv.ERROR_TYPE)) for span in telemetry.forwards()] == [("forward Net", None)]
    assert hooks_on(model) == 0
    model(hidden=HIDDEN)
    assert len(telemetry.forwards()) == 1


def test_request_inside_a_forward_that_was_detached(telemetry: Telemetry) -> None:
    """What runs inside a pass after its uninstrument() is nested in it as before, for the pass has not ended."""
    inner, model = Net(), Net()
    telemetry.instrument(inner)
    handle = telemetry.instrument(model)

    def detach() -> None:
        thread = threading.Thread(target=handle.uninstrument)
        thread.start()
        thread.join()
        inner(hidden=HIDDEN)

    model.layers[0].before = detach
    model(hidden=HIDDEN)
    telemetry.check()
    outer, nested = telemetry.forwards()
    assert outer.context is not None
    assert [outer.parent, nested.parent] == [None, outer.context]


@pytest.mark.parametrize("where", ["root", "layer"])
def test_uninstrument_in_an_always_called_hook(telemetry: Telemetry, where: str) -> None:
    """Detaching while torch goes through the hooks of a failed call does not replace the user's exception."""
    model = Net()
    handle = telemetry.instrument(model)
    target = model if where == "root" else model.layers[1]

    def detach(*_: Any) -> None:
        handle.uninstrument()

    mine = [target.register_forward_hook(detach, always_call=True), target.register_forward_hook(lambda *_: None, always_call=True)]
    model.layers[1].before = fail
    with pytest.raises(ValueError, match="layer failed"):
        model(hidden=HIDDEN)
    model.layers[1].before = None
    for hook in mine:
        hook.remove()
    model(hidden=HIDDEN)
    assert hooks_on(model) == 0
    telemetry.check()
    assert len(telemetry.forwards()) == 1
    telemetry.instrument(model)
    model(hidden=HIDDEN)
    telemetry.check()
    assert len(telemetry.forwards()) == 2


def test_a_packed_row_is_nobodys_request(telemetry: Telemetry) -> None:
    """A pass with the arguments of continuous batching gives no span, the next ordinary one does."""

    class Packed(nn.Linear):
        def forward(self, hidden: Tensor, cu_seq_lens_q: Any = None, read_index: Any = None) -> Tensor:
            return super().forward(hidden)

    model, hidden = Packed(4, 4), torch.zeros(1, 4)
    with telemetry.instrument(model):
        model(hidden, cu_seq_lens_q=torch.tensor([0, 1]), read_index=[torch.tensor([0])])
        assert telemetry.spans() == []
        model(hidden)
    assert [span.name for span in telemetry.spans()] == ["forward Packed"]


def test_two_threads_cannot_end_one_call_twice(telemetry: Telemetry) -> None:
    """uninstrument() in the moment in which a call ends itself leaves one ended span, no error and no complaint."""
    for _ in range(30):
        model = nn.Linear(4, 4)
        handle = telemetry.instrument(model)
        running, stop = threading.Event(), threading.Event()

        def work(model: nn.Module = model, running: threading.Event = running, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                model(torch.zeros(1, 4))
                running.set()

        thread = threading.Thread(target=work)
        thread.start()
        assert running.wait(30)
        handle.uninstrument()
        stop.set()
        thread.join(30)
        assert hooks_on(model) == 0
    telemetry.check()
    assert {span.status.is_ok for span in telemetry.forwards()} == {True}


# ---------------------------------------------------------------------------------------------------- a pass of another thread
class Running:
    """A pass on a thread of its own, stopped inside the model until the test lets it go on.

    Args:
        work: runs the pass.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._inside, self._go = threading.Event(), threading.Event()
        self.raised: list[BaseException] = []
        self._work = work
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.raised.append(error)

    def stop(self) -> None:
        """Called inside the model."""
        self._inside.set()
        assert self._go.wait(60)

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._inside.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._thread.join(60)


def _outcomes(telemetry: Telemetry) -> list[tuple[str, Any]]:
    return [(span.name, (span.attributes or {}).get(semconv.ERROR_TYPE)) for span in telemetry.spans()]


def test_detached_during_a_pass_of_another_thread(telemetry: Telemetry) -> None:
    """The pass ends on its own thread: one span, no error, with every module; its hooks stay that long and no longer."""
    handle = telemetry.instrument(model := Net())
    passes = Running(lambda: model(hidden=HIDDEN))
    model.layers[0].before = passes.stop
    with passes:
        handle.uninstrument()
        assert telemetry.spans() == []
        assert hooks_on(model) > 0
    assert hooks_on(model) == 0
    assert passes.raised == []
    telemetry.check()
    assert _outcomes(telemetry) == [("forward Net", None), *((name, None) for name in LAYERS)]
    assert handle.summary().forwards == 1


def test_no_new_request_while_another_thread_is_inside(telemetry: Telemetry) -> None:
    """Hooks that wait for a pass of another thread record nothing else."""
    handle = telemetry.instrument(model := Net())
    passes = Running(lambda: model(hidden=HIDDEN))
    model.layers[0].before = passes.stop
    with passes:
        handle.uninstrument()
        model.layers[0].before = None
        model(hidden=HIDDEN)
    telemetry.check()
    assert names(telemetry) == LAYERS
    assert hooks_on(model) == 0


def test_instrumented_again_while_another_thread_is_inside(telemetry: Telemetry) -> None:
    """The pass belongs to the first instrumentation, which comes off when it returns; the second one is whole."""
    first = telemetry.instrument(model := Net())
    passes = Running(lambda: model(hidden=HIDDEN))
    model.layers[0].before = passes.stop
    with passes:
        first.uninstrument()
        second = telemetry.instrument(model)
    model.layers[0].before = None
    model(hidden=HIDDEN)
    second.uninstrument()
    telemetry.check()
    assert [handle.summary().forwards for handle in (first, second)] == [1, 1]
    assert hooks_on(model) == 0


def test_detached_during_a_recursive_pass_of_another_thread(telemetry: Telemetry) -> None:
    """A model that calls itself is one request to its end, whenever it was detached."""
    handle = telemetry.instrument(model := Recursive())
    passes = Running(lambda: model(HIDDEN))
    entered = iter([lambda: None, passes.stop, lambda: None])
    model.linear.register_forward_pre_hook(lambda *_: next(entered)())
    with passes:
        handle.uninstrument()
    telemetry.check()
    assert [span.status.is_ok for span in telemetry.forwards()] == [True]
    assert len([name for name in names(telemetry) if name == "linear"]) == 3


@pytest.mark.parametrize("then", ["call", "instrument"])
def test_detached_during_a_pass_that_fails(telemetry: Telemetry, then: str) -> None:
    """The user's exception is the error of the request. A hook that torch goes through at that moment goes with the next occasion."""
    handle = telemetry.instrument(model := Net())
    passes = Running(lambda: model(hidden=HIDDEN))

    def stop_and_fail() -> None:
        passes.stop()
        fail()

    model.layers[1].before = stop_and_fail
    with passes:
        handle.uninstrument()
    assert [type(error) for error in passes.raised] == [ValueError]
    telemetry.check()
    assert [(span.attributes or {})[semconv.ERROR_TYPE] for span in telemetry.forwards()] == ["ValueError"]
    model.layers[1].before = None
    if then == "call":
        model(hidden=HIDDEN)
    else:
        telemetry.instrument(model).uninstrument()
    assert hooks_on(model) == 0
    assert len(telemetry.forwards()) == 1


def test_interrupted_pass_of_a_thread_that_lives_on(telemetry: Telemetry) -> None:
    """A pass that its thread has left by an interrupt has ended with it, and uninstrument() leaves no hook."""
    handle = telemetry.instrument(model := Net())
    model.layers[1].before = interrupt

    def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            model(hidden=HIDDEN)
        passes.stop()

    passes = Running(work)
    with passes:
        handle.uninstrument()
        telemetry.check()
        assert [(span.attributes or {})[semconv.ERROR_TYPE] for span in telemetry.forwards()] == ["KeyboardInterrupt"]
        assert hooks_on(model) == 0
    assert passes.raised == []


def test_user_hooks_during_detaching(telemetry: Telemetry) -> None:
    """While one thread goes through the exit hooks of a failed pass, another one may detach: the user's exception stays what it is."""
    handle = telemetry.instrument(model := Net())
    model.layers[1].before = fail
    passes = Running(lambda: model(hidden=HIDDEN))
    model.register_forward_hook(lambda *_: passes.stop(), always_call=True)
    model.register_forward_hook(lambda *_: None, always_call=True)
    with passes:
        inferspan.uninstrument(model)
    assert [type(error) for error in passes.raised] == [ValueError]
    handle.uninstrument()
    telemetry.check()


def test_an_observer_that_the_program_has_kept_still_calls_its_module(telemetry: Telemetry) -> None:
    """Observers are used again for the next pass, unless somebody else has got hold of one."""
    kept: list[Any] = []

    class Keeping(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            kept.append(self.__dict__.get("_compiled_call_impl"))
            return super().forward(rows)

    model, rows = nn.Sequential(Keeping(4, 4), nn.Linear(4, 4)), torch.ones(1, 4)
    telemetry.instrument(model, modules="all")
    for _ in range(3):
        model(rows)
    first = kept[0]
    assert first is not None
    assert torch.equal(first(rows), model[0](rows))
    assert len(telemetry.modules()) == 6
    telemetry.check()
