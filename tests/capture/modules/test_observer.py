"""What stands in the place of a module's compiled call during a recorded pass changes nothing that a program can see."""

from __future__ import annotations

import gc
import inspect
import linecache
import sys
import threading
import weakref
from types import FrameType
from typing import Any

import pytest
import torch
import torch._dynamo  # so that it can tell when something is compiled
from torch import Tensor, nn

from inferspan import semconv
from inferspan.capture.compile.state import SLOT
from inferspan.capture.modules import groups as module_groups
from inferspan.capture.modules import observer as observed_call
from inferspan.capture.modules.recorder import IN_C
from tests.capture.modules.observed import ONES, Holder, Scaled, run
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

pytestmark = pytest.mark.usefixtures("nothing_compiled")



def test_forward_is_the_own_one(telemetry: Telemetry) -> None:
    """In the middle of a pass a module's forward is what it always is; one key of its dictionary is ours, and its name is torch's."""
    model = Holder(Scaled())
    before = set(vars(model.parts[0]))
    got = run(telemetry, model, lambda parts: (parts[0].forward == Scaled.forward.__get__(parts[0]), set(vars(parts[0]))))
    assert got == (True, before | {SLOT})
    assert set(vars(model.parts[0])) == before


def test_frames_of_a_call(telemetry: Telemetry) -> None:
    """A module runs below no more Python frames than without us, of torch's or ours; C code adds none, and takes the place of one."""

    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            frame: Any = inspect.currentframe()
            names = []
            while frame.f_code.co_name != "forward" or frame.f_locals.get("self") is self:
                names.append(frame.f_code.co_name)
                frame = frame.f_back
            found.append(names)
            return x

    found: list[list[str]] = []
    model = Holder(Counts())
    model(ONES)
    run(telemetry, model, lambda parts: None)
    plain, observed = found
    assert plain == ["forward", "_call_impl", "_wrapped_call_impl"]
    assert observed == ["forward", *([] if IN_C else ["__call__"]), "_wrapped_call_impl"]


def test_arguments_pass_as_they_are(telemetry: Telemetry) -> None:
    """Positional and named arguments of any name reach the module."""
    part = Scaled()
    got = run(telemetry, Holder(part), lambda parts: parts[0](ONES, self_=1.0, args=2.0, kwargs=3.0, module=4.0))
    assert torch.equal(got, ONES * 12)
    shapes = [(span.attributes or {}).get(semconv.INPUT_SHAPES) for span in telemetry.modules()]
    assert shapes == [("1x2",), ("1x2",)]


def test_direct_calls_are_none(telemetry: Telemetry) -> None:
    """A program that calls forward() itself gets no span for it, as no hook would run."""
    run(telemetry, Holder(Scaled()), lambda parts: parts[0].forward(ONES))
    assert [span.name for span in telemetry.modules()] == ["layer 0"]


def test_hooks_of_the_user_are_seen(telemetry: Telemetry) -> None:
    """A module with somebody's hooks on it is observed by hooks: what those return is its output, and what they raise its failure."""
    part = Scaled()
    model = Holder(part)
    part.register_forward_hook(lambda module, given, output: output[:, :1])
    run(telemetry, model, lambda parts: None)
    assert [(span.attributes or {})[semconv.OUTPUT_SHAPES] for span in telemetry.modules()] == [("1x1",)]


def _interrupted_at(number: int, model: nn.Module) -> bool:
    """Run a pass with Ctrl-C before a line of what attaches and detaches, counted through the pass; whether there are as many lines."""
    left = number

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # Python asks for signals between calls, and not where a block begins or ends.
        if event == "line" and not text.startswith(("with ", "try:", "finally:")):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename in (module_groups.__file__, observed_call.__file__) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        model(ONES)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("by", ["slot", "hooks"])
def test_interrupts_while_it_is_attached(telemetry: Telemetry, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C wherever modules are given observers or lose them: the next pass runs, and all comes off in the end."""
    if by == "hooks":
        monkeypatch.setattr(module_groups, "can_observe", lambda module: False)
    number = 0
    interrupted = True
    while interrupted:
        number += 1
        model = Holder(Scaled(), nn.Sequential(Scaled()))
        with telemetry.instrument(model, modules="all"):
            interrupted = _interrupted_at(number, model)
            assert torch.equal(model(ONES), ONES * 4)
        assert set(attached(model).values()) == {0}, number
    assert number > 50


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_failures_are_told_by_their_type(telemetry: Telemetry, error: type[BaseException]) -> None:
    """Whatever passes through a module stands on its span, and reaches the caller as it is."""
    raised = error("it")

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise raised

    class Recovers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Fails()

        def forward(self, x: Tensor) -> Tensor:
            try:
                self.inner(x)
            except BaseException as caught:
                return x if caught is raised else torch.zeros(0)
            return torch.zeros(0)

    model = Holder(Recovers())
    run(telemetry, model, lambda parts: None)
    assert torch.equal(model(ONES), ONES)
    assert {(span.attributes or {}).get(semconv.ERROR_TYPE) for span in telemetry.modules()} == {None, error.__name__}


def test_other_threads_pass_through(telemetry: Telemetry) -> None:
    """A thread without a request of its own runs the same modules unseen while another one's pass is recorded."""
    part = Scaled()
    model = Holder(part)

    def elsewhere(parts: Any) -> Tensor:
        found: list[Tensor] = []
        thread = threading.Thread(target=lambda: found.append(parts[0](ONES)))
        thread.start()
        thread.join()
        return found[0]

    assert torch.equal(run(telemetry, model, elsewhere), ONES * 2)
    assert len(telemetry.modules()) == 1


def test_nothing_is_kept(telemetry: Telemetry) -> None:
    """A module dies when the program drops it, without the cyclic collector, also if its pass was recorded."""
    model = Holder(Scaled(), Scaled())
    with telemetry.instrument(model, modules="all"):
        model(ONES)
        gone = weakref.ref(model.parts[0])
        gc.disable()
        try:
            del model.parts[0]
            assert gone() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("first", [0, 1])
def test_a_model_inside_a_model(telemetry: Telemetry, first: int) -> None:
    """Where a model and a part of it are instrumented, each module has one span, of the innermost; and whoever goes first, all comes off."""
    inner = Holder(Scaled())
    model = Holder(inner, Scaled())
    handles = [telemetry.instrument(model, modules="all"), telemetry.instrument(inner, modules="all")]
    inner.inside = lambda parts: handles[first].uninstrument()
    model(ONES)
    telemetry.check()
    handles[1 - first].uninstrument()
    assert set(attached(model).values()) == {0}
    assert all(SLOT not in vars(one) for one in model.modules())


def test_each_module_has_one_span(telemetry: Telemetry) -> None:
    """Modules of a model inside a model stand under the inner request and nowhere else; its own call is that request."""
    inner = Holder(Scaled())
    model = Holder(inner, Scaled())
    with telemetry.instrument(model, modules="all"), telemetry.instrument(inner, modules="all"):
        model(ONES)
    telemetry.check()
    assert sorted(span.name for span in telemetry.spans()) == ["forward Holder", "forward Holder", "layer 0", "layer 1"]
