"""Plain forward passes that an interrupt leaves: Ctrl-C in the model and in code of ours."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from inferspan import semconv
from inferspan.capture.target import Target
from tests.cases import models
from tests.cases.forward.nets import HIDDEN, Net, hooks_on, interrupt
from tests.cases.telemetry import Telemetry


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same thread", "other thread"])
@pytest.mark.parametrize("via", ["next call", "uninstrument"])
def test_interrupt_in_mid_forward(telemetry: Telemetry, elsewhere: bool, via: str) -> None:
    """Ctrl-C leaves nothing open: the next call of the thread or uninstrument() ends it as an error, and what follows starts clean."""
    handle = telemetry.instrument(model := Net())
    model.layers[1].before = interrupt

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            model(hidden=HIDDEN)
        model.layers[1].before = None
        if via == "next call":
            model(hidden=HIDDEN)

    if elsewhere:
        thread = threading.Thread(target=interrupted)
        thread.start()
        thread.join()
    else:
        interrupted()
    model(hidden=HIDDEN)
    handle.uninstrument()
    model(hidden=HIDDEN)
    telemetry.check()
    failed = [(span.attributes or {}).get(semconv.ERROR_TYPE) is not None for span in telemetry.forwards()]
    assert failed == [True] + [False] * (2 if via == "next call" else 1)
    assert all(span.parent is None for span in telemetry.forwards())
    assert hooks_on(model) == 0


def test_interrupts_do_not_pile_up(telemetry: Telemetry) -> None:
    """Many interrupted calls in a row each end when the next one starts."""
    handle = telemetry.instrument(model := Net())
    model.layers[0].before = interrupt
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            model(hidden=HIDDEN)
    handle.uninstrument()
    telemetry.check()
    assert len(telemetry.forwards()) == 5 and all(span.parent is None for span in telemetry.forwards())


def test_interrupt_of_one_model_ends_at_the_call_of_another(telemetry: Telemetry) -> None:
    """A call left open by Ctrl-C does not become the parent of what another model does later on the thread."""
    first, second = Net(), models.llama()
    telemetry.instrument(first)
    telemetry.instrument(second)
    first.layers[0].before = interrupt
    with pytest.raises(KeyboardInterrupt):
        first(hidden=HIDDEN)
    with torch.no_grad():
        second.generate(models.prompt(), max_new_tokens=2)
    first.layers[0].before = None
    first(hidden=HIDDEN)
    telemetry.close()
    telemetry.check()
    assert [span.parent for span in (*telemetry.forwards(), *telemetry.requests(nested=None))] == [None] * 3
    assert len(telemetry.requests()) == 1, "the generate() counts as nested in a call that is long gone"


def test_interrupt_below_another_request(telemetry: Telemetry) -> None:
    """Ctrl-C in an instrumented part of a model that is generating ends both requests, the inner one inside the outer."""
    model = models.llama()
    telemetry.instrument(model)
    telemetry.instrument(model.model.layers[1])
    hook = model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: interrupt())
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        model.generate(models.prompt(), max_new_tokens=3)
    hook.remove()
    telemetry.check()
    with torch.no_grad():
        model.generate(models.prompt(), max_new_tokens=3)
    telemetry.check()
    assert len(telemetry.roots()) == 2


@pytest.mark.parametrize("place", ["new_device_clock", "close_pass"])
def test_interrupts_inside_our_own_code(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Ctrl-C that arrives while we open or end a request passes, leaves nothing on a module, and the next call is clean."""
    model = Net()
    telemetry.instrument(model)

    def interrupt(*_: Any) -> Any:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Target, place, interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(hidden=HIDDEN)
    assert hooks_on(model.layers) == 0
    model(hidden=HIDDEN)
    telemetry.check()
    assert len(telemetry.forwards()) == 2
