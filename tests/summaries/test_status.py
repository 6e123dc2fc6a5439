"""``handle.status()``: what is attached to a model, and when."""

from __future__ import annotations

import json
import logging
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from tests.support.attached import attached


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)

    def forward(self, value: Any) -> Any:
        return self.last(self.act(self.first(value)))


def test_selected_modules(record: Any) -> None:
    """Paths of the observed modules, how many there are, and why the others are not."""
    model = _Model()
    status = record(model, modules=["first", "last"], output_stats=True).status()
    assert status.attached
    assert status.model == "_Model"
    assert status.modules == ("first", "last")
    assert status.total_modules == 3
    assert "modules=('first', 'last'): 1 module is not selected" in status.unobserved
    assert "output_stats" in status.figures
    assert "routing" not in status.figures


def test_no_modules(record: Any) -> None:
    """Without spans of steps no module is observed, which is the reason that is given."""
    model = _Model()
    status = record(model, steps="none").status()
    assert status.modules == ()
    assert status.unobserved == ("steps='none': no module is observed",)


@pytest.mark.parametrize("hooked", [False, True], ids=["slot", "hooks"])
def test_hooks_are_counted_while_a_pass_runs(record: Any, hooked: bool) -> None:
    """Observers are on the modules during a recorded pass only; the model itself is observed all the time."""
    torch._dynamo.reset()  # after a compilation by another test every module has a pair of hooks
    model, counts = _Model(), []
    if hooked:
        model.act.register_forward_hook(lambda *_: None)
    handle = record(model, modules="all")
    model.first.register_forward_hook(lambda *_: counts.append(handle.status().hooks))
    assert handle.status().hooks == 0
    model(torch.ones(1, 4))
    assert handle.status().hooks == 0
    # A module with hooks of the program has a pair of ours, the others one observer.
    assert counts == [5 if hooked else 4]
    assert handle.status().root_hooks == attached(model)["hooks"] + 1 - bool(attached(model)["hooks"])


def test_compiled_modules_are_named(record: Any) -> None:
    """Parts that run compiled are not observed, and the status says so before the first pass."""
    model = _Model()
    model.first.compile(backend="eager")
    assert "modules: compiled in parts" in record(model).status().unobserved


def test_detached(record: Any) -> None:
    """After ``uninstrument()`` nothing is attached."""
    model = _Model()
    handle = record(model)
    handle.uninstrument()
    assert not handle.status().attached
    assert str(handle.status()) == "detached"


def test_forms(record: Any) -> None:
    """The same facts as a line, as text, as plain values and as HTML; names of models are text."""
    model = _Model()
    handle = record(model, modules="all", model_name="<b>name\x1b[1m</b>")
    status = handle.status()
    assert str(status).endswith(": 3 of 3 modules observed, 0 hooks on them now")
    assert "\x1b" not in str(status)
    assert "  modules: first, act, last" in status.text()
    assert "  modules: first and 2 more" in status.text(most=1)
    assert json.loads(json.dumps(status.as_dict()))["modules"] == ["first", "act", "last"]
    page = ElementTree.fromstring(status._repr_html_())
    assert "b" not in {element.tag for element in page.iter()}
    assert "first, act, last" in "".join(page.itertext())
    assert "3 of 3 modules observed, 0 hooks on them now" in repr(handle)


def test_log(record: Any, caplog: pytest.LogCaptureFixture) -> None:
    """At debug level there is a line for each beginning, and one of what goes at the end."""
    model = _Model()
    with caplog.at_level(logging.DEBUG, logger="inferspan"):
        record(model, modules="all").uninstrument()
    lines = [one.getMessage() for one in caplog.records if "instrument:" in one.getMessage()]
    told = "_Model: 3 of 3 modules observed, 0 hooks on them now, 1 on the model itself"
    assert lines == [f"instrument: {told}", f"uninstrument: {told}"]


def test_functions_of_the_program_are_counted(record: Any) -> None:
    """Those of every handle of the model, until they are removed; the words have them as well."""
    model = _Model()
    handle = record(model, numerics="all")
    assert handle.status().functions == 0
    hooks = [handle.on_module("act", lambda *_: None), handle.on_module("last", lambda *_: None, when="before")]
    assert handle.status().functions == 2
    assert "functions of on_module: 2" in handle.status().text()
    assert "numerics" in handle.status().figures
    hooks[0].remove()
    assert handle.status().as_dict()["functions"] == 1
