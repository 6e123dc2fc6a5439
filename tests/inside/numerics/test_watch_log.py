"""The numerics watch of a module call: the short way of the hook against the general one, in host memory and as on a device."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferspan.capture.inside.watch import Numerics, WatchLog
from inferspan.capture.modules.recorder import IN_C
from inferspan.capture.values.deferred import Stability
from tests.cases.telemetry import Telemetry

NAN, INF = float("nan"), float("inf")


class _Request:
    """A request whose calls have spans, or not."""

    def __init__(self, *, recorded: bool = False) -> None:
        self.open_calls = int(recorded)


def _run(chance: random.Random, log: WatchLog, *, short: bool, request: _Request) -> list[Any]:
    """Calls of a model with bad values at random places, in a log; those that it returned."""
    returned = []
    for step in range(12):
        for module in range(9):
            output = torch.randn(1, chance.choice([1, 3]), 16, generator=torch.Generator().manual_seed(chance.randrange(99)))
            if chance.random() < 0.05:
                output[0, 0, : chance.randrange(1, 5)] = chance.choice([NAN, INF, 3e38])
            made: Any = (output, None) if module % 2 else output
            if chance.random() < 0.1:
                made = {"more": [output, output.clone()]}
            if chance.random() < 0.1:
                made = None
            found = log.see(f"m.{module}", step, made, request) if short else log.add(f"m.{module}", step, 0, made)
            if found is not None:
                returned.append(found)
            if made is not None and module == 4:
                output.add_(NAN)  # one module's outputs are changed by the next one
        log.flush()
    return returned


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Other tests of this process may have compiled something."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


@pytest.mark.parametrize("reads_host", [True, False], ids=["host", "device"])
@pytest.mark.parametrize("seed", range(15))
def test_both_ways_give_one_verdict(seed: int, *, reads_host: bool) -> None:
    """Over several requests of one model, so that outputs are kept in the later ones; first module and step, and every count."""
    stability, verdicts = Stability(), []
    short, general = Numerics(), Numerics()
    for request in range(4):
        log, other = WatchLog(stability=stability, reads_host=reads_host), WatchLog()
        _run(random.Random(100 * seed + request), log, short=True, request=_Request())
        _run(random.Random(100 * seed + request), other, short=False, request=_Request())
        assert log.read() == other.read()
        assert [(one.module, one.step, one.call, one.nan, one.inf, one.elements) for one in log.read_rows] == [
            (one.module, one.step, one.call, one.nan, one.inf, one.elements) for one in other.read_rows
        ]
        assert (log.modules, log.elements, log.high, log.steps) == (other.modules, other.elements, other.high, other.steps)
        assert log.left_out == other.left_out
        short.add(log, 0)
        general.add(other, 0)
        verdicts.append((short.verdict(), general.verdict()))
    for one, expected in verdicts:
        assert (one.calls, one.nan_values, one.inf_values, one.near_limit) == (
            expected.calls, expected.nan_values, expected.inf_values, expected.near_limit,
        )  # fmt: skip


def test_calls_with_spans_are_returned() -> None:
    """Their counts are known when the request is read, whether or not outputs are kept."""
    stability = Stability()
    for _ in range(3):
        log = WatchLog(stability=stability, reads_host=False)
        returned = [log.see("a", step, torch.tensor([NAN, INF, 1.0]), _Request(recorded=True)) for step in range(6)]
        log.read()
        assert [(one.step, one.nan, one.inf, one.elements) for one in returned if one is not None] == [(step, 1, 1, 3) for step in range(6)]


def test_a_call_whose_output_has_changed_is_no_call_that_was_looked_at() -> None:
    """It is left out, by reason."""
    stability = Stability()
    for request in range(2):
        log = WatchLog(stability=stability, reads_host=False)
        for step in range(6):
            output = torch.ones(4)
            log.see("a", step, output, _Request())
            if request and step == 3:
                output.fill_(NAN)
        log.read()
    assert log.left_out == {"changed in place": 1}
    assert log.modules == {"a": 5}
    assert log.elements == 20
    assert log.read_rows == []


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_other_kinds_of_outputs_after_plain_ones_are_named(telemetry: Telemetry) -> None:
    """A module may return anything at its next call, of the same shape as well."""
    plain = torch.ones(2, 2)
    returns: list[Any] = [
        plain, plain.to_sparse(), plain, plain.to("meta"), (plain, None), torch.nested.nested_tensor([plain, plain]), plain.long(), (), None,
    ]  # fmt: skip

    class Returns(nn.Module):
        """Returns one of them after the other."""

        def forward(self, index: int) -> Any:
            return returns[index]

    class Holds(nn.Module):
        """Calls one module with each of them."""

        def __init__(self) -> None:
            super().__init__()
            self.part = Returns()

        def forward(self, hidden: Tensor) -> Tensor:
            for index in range(len(returns)):
                self.part(index)
            return hidden

    model = Holds()
    handle = telemetry.instrument(model, numerics=["part"])
    model(torch.ones(2))
    assert handle.numerics().not_looked_at == {"sparse": 1, "meta": 1, "nested": 1, "integer": 1}
    assert handle.numerics().calls == 3
    assert handle.numerics().elements == 12
    telemetry.check()


@pytest.mark.skipif(not IN_C, reason="needs the C extension")
@pytest.mark.parametrize(("modules", "most"), [("none", 3), ("all", 5)])
def test_a_call_is_a_few_python_calls(telemetry: Telemetry, modules: str, most: int) -> None:
    """The hook, the log, and the counts in C behind one more; torch's own are not counted. Older torch needs one to keep Dynamo out.

    A recorded call has two more, which join what was found to its span: the call itself is recorded in C.
    """

    class Many(nn.Module):
        """Thirty modules."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Identity() for _ in range(30))

        def forward(self, hidden: Tensor, rounds: int) -> Tensor:
            for _ in range(rounds):
                for part in self.parts:
                    hidden = part(hidden)
            return hidden

    model, calls = Many(), 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_globals.get("__name__", "").startswith("inferspan.")

    telemetry.instrument(model, numerics=["parts.*"], modules=modules)
    model(torch.ones(3), 1)
    found = []
    for rounds in (2, 12):
        calls = 0
        sys.setprofile(profile)
        try:
            model(torch.ones(3), rounds)
        finally:
            sys.setprofile(None)
        found.append(calls)
    keeps_out = not hasattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy")
    assert (found[1] - found[0]) / 10 / 30 <= most + keeps_out
