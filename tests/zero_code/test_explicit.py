"""Models that the program instruments itself under zero code: its word counts, and nothing is recorded twice."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import inferspan
from inferspan import semconv
from inferspan.zero_code.candidates import Candidates
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.zero_code.test_models import Net, bert, names

Observe = Callable[..., Any]


def _run(model: Any) -> None:
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))


def test_explicit_call_first(telemetry: Telemetry, observe: Observe) -> None:
    """A model that was instrumented before its first call has the settings of that call and one request a call."""
    observe()
    model = bert()
    telemetry.instrument(model, model_name="mine")
    _run(model)
    assert names(telemetry) == ["forward mine"]
    telemetry.check()


def test_explicit_call_later(telemetry: Telemetry, observe: Observe) -> None:
    """One that zero code observes already changes over to the program's settings; none of its calls is recorded twice."""
    observe()
    model = bert()
    _run(model)
    telemetry.instrument(model, model_name="mine")
    _run(model)
    assert names(telemetry) == ["forward BertModel", "forward mine"]
    telemetry.check()


def test_uninstrument_restores(telemetry: Telemetry, observe: Observe) -> None:
    """After the handle's ``uninstrument()`` zero code goes on with the model."""
    observe()
    model = bert()
    with telemetry.instrument(model, model_name="mine"):
        _run(model)
    _run(model)
    assert names(telemetry) == ["forward mine", "forward BertModel"]


def test_uninstrument_by_model_is_an_end(telemetry: Telemetry, observe: Observe) -> None:
    """``inferspan.uninstrument(model)`` means all of them, zero code included."""
    observe()
    model = bert()
    _run(model)
    assert inferspan.uninstrument(model) is True
    _run(model)
    assert names(telemetry) == ["forward BertModel"]


def test_program_instruments_around(telemetry: Telemetry, observe: Observe) -> None:
    """A model inside a module that the program instruments is a part of it, and is observed alone again afterwards."""

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = bert()

        def forward(self, ids: Any) -> Any:
            return self.inner(ids)

    observe()
    model = Around()
    _run(model)
    with telemetry.instrument(model):
        _run(model)
        _run(model.inner)
    _run(model)
    assert names(telemetry) == ["forward BertModel", "forward Around", "forward BertModel"]


def test_program_instruments_inside(telemetry: Telemetry, observe: Observe) -> None:
    """A module that the program has instrumented stays that, also inside an observed model."""
    observe()
    model, ids = models.llama(), models.prompt()
    telemetry.instrument(model.model, model_name="mine")
    with torch.no_grad():
        model(ids)
        model.model(ids)
    assert names(telemetry)[0] == "forward LlamaForCausalLM"
    assert names(telemetry)[-1] == "forward mine"
    telemetry.check()


def test_program_keeps_its_own_after_the_end(telemetry: Telemetry, observe: Observe) -> None:
    """The end of zero code leaves what the program has instrumented itself."""
    observe()
    model = bert()
    telemetry.instrument(model, model_name="mine")
    inferspan.zero_code.deactivate()
    _run(model)
    assert names(telemetry) == ["forward mine"]


@pytest.mark.parametrize("first", ["program", "zero code"])
def test_off_in_any_order(telemetry: Telemetry, observe: Observe, first: str) -> None:
    """Whoever began first may end first: nothing stays on the classes, and a request is recorded once however often that happens."""
    model = models.llama()
    for _ in range(3):
        if first == "zero code":
            observe()
        handle = telemetry.instrument(model)
        if first == "program":
            observe()
            handle.uninstrument()
        inferspan.zero_code.deactivate()
        handle.uninstrument()
    assert not any("__inferspan__" in vars(found) for kind in type(model).__mro__ for found in vars(kind).values() if inspect.isfunction(found))
    with telemetry.instrument(model):
        model.generate(models.prompt(), max_new_tokens=2)
    assert len(telemetry.requests(nested=None)) == 1


@pytest.mark.parametrize("call", [_run, lambda model: model.generate(models.prompt(), max_new_tokens=2)], ids=["forward", "generate"])
def test_first_calls_of_many_threads(telemetry: Telemetry, observe: Observe, call: Callable[[Any], Any]) -> None:
    """First calls at the same time are a request each, however the threads take turns."""
    observe()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(4):
            model, gate = bert() if call is _run else models.llama(), threading.Barrier(4)

            def run(model: Any = model, gate: threading.Barrier = gate) -> None:
                gate.wait()
                call(model)

            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(names(telemetry)) == 16
    telemetry.check()


def test_call_between_the_wrapper_and_the_decision(telemetry: Telemetry, observe: Observe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call on another thread that finds the new wrapper before the model counts as observed is one request."""
    asked, others = threading.Event(), list[threading.Thread]()
    stop, settle = Candidates._stop, Candidates.settle

    def settling(self: Any, model: Any, **options: Any) -> bool:
        if others and threading.current_thread() is others[0]:
            asked.set()
        return settle(self, model, **options)

    def stopping(self: Any, candidate: Any, state: str) -> None:
        if state == "observed" and not others:
            others.append(threading.Thread(target=model.generate, args=(models.prompt(),), kwargs={"max_new_tokens": 2}))
            others[0].start()
            assert asked.wait(60)
            time.sleep(0.1)  # it waits for the lock that this thread holds
        stop(self, candidate, state)

    monkeypatch.setattr(Candidates, "settle", settling)
    monkeypatch.setattr(Candidates, "_stop", stopping)
    observe()
    model = models.llama()
    model.generate(models.prompt(), max_new_tokens=2)
    others[0].join()
    assert names(telemetry) == ["text_completion"] * 2
    telemetry.check()


def test_wrong_setting_is_a_warning(telemetry: Telemetry, observe: Observe, caplog: pytest.LogCaptureFixture) -> None:
    """A setting that a model cannot have leaves that model alone, with one warning, and the program runs."""
    observe(include="Net", modules=["no.such.module.*"])
    model = Net().eval()
    model(torch.ones(1, 4))
    model(torch.ones(1, 4))
    assert names(telemetry) == []
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["this Net is not observed"]


@pytest.mark.parametrize("way", ["model.compile()", "torch.compile(model)", "compiled before another"])
def test_compiled_model(telemetry: Telemetry, observe: Observe, way: str) -> None:
    """A model that is compiled before its first call is observed, and its result stays the same."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    plain = bert()(torch.tensor([[1, 2, 3]])).last_hidden_state
    observe()
    torch.manual_seed(1)
    model = bert()
    run: Any = model
    if way == "model.compile()":
        model.compile(backend="eager")
    elif way == "torch.compile(model)":
        run = torch.compile(model, backend="eager")
    else:
        torch.compile(Net().eval(), backend="eager")(torch.ones(1, 4))
    with torch.no_grad():
        first, second = (run(torch.tensor([[1, 2, 3]])).last_hidden_state for _ in range(2))
    assert torch.equal(first, plain)
    assert torch.equal(second, plain)
    assert names(telemetry) == ["forward BertModel"] * 2
    said = {(span.attributes or {}).get(semconv.UNOBSERVED) for span in telemetry.forwards()}
    assert said == ({None} if way == "compiled before another" else {"modules: compiled"})
    torch._dynamo.reset()


def test_scripted_and_traced_models(observe: Observe) -> None:
    """A model that waits can be scripted and traced."""
    observe(include="Net")
    model, x = Net().eval(), torch.ones(1, 4)
    expected = model.inner(x)
    assert torch.equal(torch.jit.script(model)(x), expected)
    assert torch.equal(torch.jit.trace(model, (x,))(x), expected)
