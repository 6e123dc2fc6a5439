"""Failures of our own while a call is recorded: the module runs once, its output comes back, nothing is kept."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inferspan import extension, guard
from inferspan.capture.modules import recorder, shapes
from tests.capture.modules.recorders import IMPLEMENTATIONS, IN_C_CODE, Counted, Implementation, described_by, in_c, observe, rows_of


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_own_failures(implementation: Implementation, running: None, monkeypatch: pytest.MonkeyPatch, contained: list[guard.Swallowed]) -> None:
    """What fails while a call is recorded is contained, and counted; the module runs once, and its output comes back."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    class Collector:
        append = fail

    module, engine = Counted(), object()
    observed, log = observe(implementation, module, engine), implementation.log()
    log.engine, recorder.current.call, log.calls_left = engine, log, 9
    calls: list[Any] = []

    def answer(*args: Any) -> Any:
        calls.append(args)
        return {"output": args[0]}

    module.answer = answer
    log.output_stats = Collector()
    assert list(observed(torch.ones(2))) == ["output"]
    assert (log.recorded, log.open_calls, len(calls)) == (0, 0, 1)
    assert [error.kind for error in contained] == ["RuntimeError"]
    log.output_stats = None
    contained.clear()
    with described_by(monkeypatch, fail):
        for place in range(2):
            assert list(observed(torch.ones(3, 3))) == ["output"]
            assert (log.recorded, log.open_calls, len(calls)) == (0, 0, 2 + place)
    assert {error.kind for error in contained} == {"RuntimeError"} and contained[0].place == "module call"
    contained.clear()
    observed(torch.ones(2))
    assert log.recorded == 1


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_own_failures_keep_nothing(implementation: Implementation, running: None, monkeypatch: pytest.MonkeyPatch, contained: list[guard.Swallowed]) -> None:
    """What a module took and gave goes at once, though an exception of ours has passed frames that had it; the collector need not come."""

    def fail_at(form: type) -> Callable[..., Any]:
        def fail(*given: Any) -> Any:
            if type(given[-1]) is form:
                raise RuntimeError("ours")
            return ()

        return fail

    module, engine = Counted(), object()
    observed, log = observe(implementation, module, engine), implementation.log()
    log.engine, recorder.current.call, log.calls_left = engine, log, 9
    module.answer = lambda *_: [torch.ones(2)]
    gc.collect()
    gc.disable()
    try:
        for form in (tuple, list):
            with described_by(monkeypatch, fail_at(form)):
                x = torch.ones(3)
                seen = [weakref.ref(x)]
                seen.append(weakref.ref(observed(x, 5)[0]))
                del x
                assert [reference() for reference in seen] == [None, None]
                assert len(contained) == 1
                contained.clear()
    finally:
        gc.enable()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_clock_that_fails_once(implementation: Implementation, running: None, contained: list[guard.Swallowed]) -> None:
    """Where a call begins on the device is not known then; that it was made, and did not fail, is."""
    module, engine = Counted(), object()
    observed, log = observe(implementation, module, engine), implementation.log()
    log.engine, recorder.current.call, log.calls_left = engine, log, 9
    answers: list[Any] = [3, 2, RuntimeError("the driver")]

    def record() -> Any:
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    pool = SimpleNamespace(native=None, record=record, seconds=lambda begins, ends: [0.5 for _ in begins])
    log.clock = clock = implementation.boundaries((pool,), 0, 0, perf_counter_ns)
    x = torch.ones(2)
    assert observed(x) is x
    assert (log.open_calls, answers) == (0, [3])
    (row,) = rows_of(log)
    assert (row[0], row[5], row[6], row[7]) == (0, shapes.describe(x), shapes.describe(x), None)
    assert clock.cut().seconds((pool,), -1, -1) == {} and [error.kind for error in contained] == ["RuntimeError"]
    contained.clear()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_log_handler_that_raises(implementation: Implementation, running: None, monkeypatch: pytest.MonkeyPatch, contained: list[guard.Swallowed]) -> None:
    """Telling of a failure of ours may fail as well: the module's output comes back."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("the disk is full")

    module, engine = Counted(), object()
    observed, log = observe(implementation, module, engine), implementation.log()
    log.engine, recorder.current.call, log.calls_left = engine, log, 9
    monkeypatch.setattr(guard, "_logged", set())
    monkeypatch.setattr(logging.getLogger("inferspan"), "handle", fail)
    x = torch.ones(3, 3)
    with described_by(monkeypatch, fail):
        assert observed(x) is x
    assert [error.kind for error in contained] == ["OSError"]
    contained.clear()


@in_c
def test_limit_of_recursion(running: None, contained: list[guard.Swallowed]) -> None:
    """A module that comes as close to it as it can without us is not kept from that, though there is no room to describe what it takes."""
    module, engine = Counted(), object()
    module.answer = lambda x, depth: module(x, depth - 1) if depth else x

    def deepest() -> int:
        depth = 0
        while True:
            try:
                # Another shape each time, which has to be described.
                module(torch.ones(1, 1 + depth % 2), depth)
            except RecursionError:
                return depth - 1
            depth += 1

    plain = deepest()
    observed, log = observe(IN_C_CODE, module, engine), IN_C_CODE.log()
    log.engine, recorder.current.call, log.calls_left = engine, log, 10**6
    assert observed.attached and deepest() >= plain
    contained.clear()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_interrupt_while_recording(implementation: Implementation, running: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is no failure of ours: it passes."""

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    module, engine = Counted(), object()
    observed, log = observe(implementation, module, engine), implementation.log()
    log.engine, recorder.current.call, log.calls_left = engine, log, 9
    with described_by(monkeypatch, interrupted), pytest.raises(KeyboardInterrupt):
        observed(torch.ones(3, 3))
    assert observed(torch.ones(3, 3)).shape == (3, 3)


@pytest.mark.parametrize("broken", ["a file without bind", "another _call_impl", "another __call__"])
def test_what_is_not_as_expected_is_left_alone(broken: str) -> None:
    """An extension that is not what it says, and a torch whose calls somebody has replaced, cost a program nothing but speed."""
    code = f"""
    import sys, types
    import torch
    from torch import nn

    class Theirs:
        def __init__(self, function):
            self.function = function

        def __get__(self, module, kind):
            return self if module is None else lambda *args, **kwargs: self.function(module, *args, **kwargs)

    broken = {broken!r}
    if broken == "a file without bind":
        sys.modules["inferspan.capture.modules._recorder"] = types.ModuleType("inferspan.capture.modules._recorder")
        sys.modules["inferspan.capture.modules._recorder"].ABI = {extension.ABI}
    elif broken == "another _call_impl":
        nn.Module._call_impl = Theirs(nn.Module._call_impl)
    else:
        nn.Module.__call__ = Theirs(nn.Module.__call__)
    import inferspan
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    expected = model(torch.ones(1, 2))
    with inferspan.instrument(model, tracer_provider=provider, modules="all", nvml=False, host=False):
        found = model(torch.ones(1, 2))
    inferspan.flush()
    print(torch.equal(found, expected), sorted(span.name for span in exporter.get_finished_spans()))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True ['forward Sequential', 'layer 0', 'layer 1']"
